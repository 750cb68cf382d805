"""One file shared by ranks, or cut into other batches, gives the same translations."""

import contextlib
import os

import pytest

import toy
from hvd_nmt import translate
from hvd_nmt.training import devices, horovod
from hvd_nmt.translation import engine, ranks

SAMPLED = ("--sample", "--temperature", "0.9")
"""a search finds the same for every line, with so little training; draws do not"""


def test_batches_of_1_and_of_64_give_the_same(translated, dev):
    apart = translated("--batch-tokens", "1", *SAMPLED)
    assert apart == translated("--batch-tokens", "640", *SAMPLED)
    assert len(apart) == len(dev)
    assert all(apart)
    assert len(set(apart)) > 20


def test_two_ranks_give_what_one_does(toy_run, toy_data, translated, toy_commands, tmp_path):
    words = ("--run", os.fspath(toy_run), "--min-length", "6", *SAMPLED, "--output", "shared",
             "--input", os.fspath(toy_data / "dev.en"))  # fmt: skip
    command = [*toy.horovodrun(2), *toy_commands.command("hvd_nmt.translate"), *words]
    done = toy.Run(command, tmp_path, toy.environment(tmp_path)).finished()
    assert done.returncode == 0, done.stderr
    shared = (tmp_path / "shared").read_text(encoding="utf-8").splitlines()
    assert shared == translated(*SAMPLED)


def test_threads_are_set_before_the_ranks_talk(monkeypatch):
    """Also on a host with GPUs, where `devices.set_up` leaves the threads as they are."""
    threads = []
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setattr(horovod, "init", lambda: horovod.Rank(0, 2, 0, 2, "here"))
    monkeypatch.setattr(horovod, "raise_on_all_ranks", contextlib.nullcontext)
    monkeypatch.setattr(horovod, "shutdown", lambda: None)
    monkeypatch.setattr(devices, "set_up", lambda rank: None)
    monkeypatch.setattr(engine, "use_threads", threads.append)
    with ranks.join() as group:
        assert threads == [group.threads(0)]
    assert threads[0] > 0


@pytest.mark.parametrize(("options", "says"), [
    ((), "ranks get no stdin: give --input."),
    (("--input", __file__), "what several ranks print is no file: give --output."),
])  # fmt: skip
def test_ranks_need_files(monkeypatch, capsys, options, says):
    monkeypatch.setenv("HOROVOD_RANK", "0")
    assert translate.main(["--run", "x", *options]) == 2
    assert capsys.readouterr().err == f"hvd_nmt.translate: {says}\n"

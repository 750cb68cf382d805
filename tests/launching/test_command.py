"""What is to run, as words."""

from pathlib import Path

import pytest

from hvd_nmt import launch
from hvd_nmt.launching import command

TRAIN = ("python", "-m", "hvd_nmt.train", "--run-dir", "runs/x")


@pytest.mark.parametrize(
    ("words", "own", "wanted"),
    [
        (["-H", "a:2", "--", *TRAIN], ["-H", "a:2"], list(TRAIN)),
        (["-np", "2", "train", "--run-dir", "x"], ["-np", "2"], ["train", "--run-dir", "x"]),
        (["--", "echo", "train"], [], ["echo", "train"]),
        (["--help"], ["--help"], []),
    ],
)
def test_the_command_begins_after_two_dashes_or_with_train(words, own, wanted):
    assert command.split(words) == (own, wanted)


def test_train_is_short_and_its_options_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (TRAIN, ("train", *TRAIN[3:]), ("/x/hvd-nmt", "train", *TRAIN[3:])):
        parsed = command.parse(words)
        assert parsed.config.run_dir == Path("runs/x")
    assert command.parse(["train", *TRAIN[3:]]).words == TRAIN
    assert command.parse(["python", "other.py"]).config is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-H", "a:2", "--hostfile", "x", "train"], "not with both"),
        (["-H", "a:2", "-np", "3", "train"], "have 2 slots, and 3 ranks were asked for"),
        (["-H", "a:2", "--min-ranks", "3", "train"], "--min-ranks is 3, above the 2 ranks"),
        (["-H", "a:2", "--min-ranks", "1", "train", "--ranks", "2"], "lets no host be left out"),
        (["-H", "a:2", "--restarts-per-hour", "-1", "train"], "must not be negative"),
        (["-H", "a:2"], "No command is given: write it after --, or train, as in python -m"),
        (["train", "--preset", "bsae"], "Unknown preset 'bsae"),
    ],
)
def test_what_cannot_work_together(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    assert launch.main(words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1

"""The command: what it measures, as a table. How fast this machine is, no test can know."""

import functools
import os
import re
import types

import pytest

from hvd_nmt import bench
from hvd_nmt.bench import BenchConfig
from hvd_nmt.explain import model_flops
from hvd_nmt.training.benchmark import Benchmark
from hvd_nmt.training.memory import Slices
from hvd_nmt.training.plan import Plan


def rows(text):
    """Name -> value of the table."""
    return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in text.splitlines())


def test_translating_is_measured(toy_run, tmp_path, capsys):
    (tmp_path / "text").write_text("the dog\n" * 9)
    words = ["--translate", "--run", os.fspath(toy_run), "--source", os.fspath(tmp_path / "text"),
             "--sentences", "5", "--rounds", "2", "--beam-size", "2"]  # fmt: skip
    assert bench.main(words) == 0
    said = capsys.readouterr()
    assert said.err.count("round ") == 3
    table = {name: value.replace(",", "") for name, value in rows(said.out).items()}
    assert table["sentences, source tokens, target tokens"].startswith("5 ")
    # A token or more each; one is shown as a whole number, the other with a digit more.
    assert float(table["target tokens/s"]) + 0.6 > float(table["sentences/s"]) > 0
    times = table["latency of one sentence, ms: median, min, max"].split()
    median, least, most = map(float, times)
    assert 0 < least <= median <= most
    size, unit = table["peak memory"].split()
    assert float(size) * {"MB": 1, "GB": 1000}[unit] > 100
    assert table["backend, beam, threads"].startswith("tensorflow 2 ")


@pytest.mark.parametrize(("slices", "shown"), [(None, "1"), (Slices(4, 1, 2), "4")])
def test_the_slices_of_a_step_are_shown(slices, shown):
    plan = types.SimpleNamespace(
        precision="float32", ranks=1, compilation=None, slices=slices, config=BenchConfig(),
        data=types.SimpleNamespace(manifest=types.SimpleNamespace(vocabulary_size=8000)),
    )  # fmt: skip
    plan.flops = functools.partial(Plan.flops, plan)
    time = types.SimpleNamespace(
        input_wait_s=0.0, compute_s=1.0, straggler_wait_s=0.0, communication_s=0.0
    )
    step = {"step_s": 1.0, "source_tokens": 5.0, "target_tokens": 6.0, "step_time": time,
            "sentences": 1}  # fmt: skip
    table = dict(Benchmark([step], plan, 10**9, 10**9).rows())
    assert table["slices of a step"] == shown
    needed = model_flops.of_step(plan.config.model, 8000, 5, 6, 1)
    assert table["model FLOP/s"] == f"{needed / 1e9:.3g} GFLOP/s"
    assert "MFU" not in str(table)
    measured = dict(Benchmark([step], plan, 10**9, 10**9, 4 * needed).rows())
    assert measured["model FLOP/s of that (MFU)"] == "25 %"


def test_the_input_is_measured_alone(toy_data, capsys):
    words = ["--input", "--data.corpus", "files", "--data.directory", os.fspath(toy_data),
             "--training.tokens-per-step", "128"]  # fmt: skip
    assert bench.main(words) == 0
    table = rows(capsys.readouterr().out)
    assert table["sentence pairs, steps an epoch"].startswith("400, ")
    assert float(table["batches/s"].replace(",", "")) > 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--steps", "0"), 2, "--steps and --warmup-steps must be at least 1."),
        (("--translate", "--run", "x", "--source", "none"), 3, "none cannot be read"),
        (("--translate", "--run", "x"), 2,
         "--translate measures one process: start it without horovodrun."),
        (("--input", "--data.directory", "none"), 3, "none"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(words, code, says, capsys, monkeypatch):
    if "horovodrun" in says:
        monkeypatch.setenv("HOROVOD_RANK", "0")
    assert bench.main(words) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"hvd_nmt.bench: {says}")
    assert said.err.count("\n") == 1

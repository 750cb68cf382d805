"""The command: what it measures, as a table. How fast this machine is, no test can know."""

import functools
import re
import types

import pytest

import toy
from hvd_nmt import bench
from hvd_nmt.bench import BenchConfig
from hvd_nmt.explain import flops
from hvd_nmt.training import benchmark
from hvd_nmt.training.plan import Plan


def test_the_rates_are_those_of_the_steps():
    manifest = types.SimpleNamespace(vocabulary_size=8000)
    setup = types.SimpleNamespace(
        config=BenchConfig(), data=types.SimpleNamespace(manifest=manifest)
    )
    plan = types.SimpleNamespace(setup=setup)
    plan.flops = functools.partial(Plan.flops, plan)
    time = types.SimpleNamespace(
        input_wait_s=0.5, compute_s=1.0, straggler_wait_s=0.0, communication_s=0.5
    )
    step = types.SimpleNamespace(
        step_s=2.0, source_tokens=5.0, target_tokens=6.0, step_time=time, sentences=1
    )
    needed = flops.flops_of_step(setup.config.model, 8000, 5, 6, 1)
    table = dict(benchmark.rows(plan, [step, step], 10**9, 2 * needed))
    assert table["real tokens/s, source + target"] == "6"
    assert table["model FLOP/s"] == f"{needed / 2e9:.3g} GFLOP/s"
    assert table["model FLOP/s of that (MFU)"] == "25 %"
    assert table["share of compute"] == "50.0%"
    assert table["share of exposed communication"] == "25.0%"


@pytest.mark.long
def test_steps_are_measured(toy_data, tmp_path):
    small = toy.SMALL[: toy.SMALL.index("--training.log-every")]
    done = toy.python(
        "-m", "hvd_nmt.bench", "--steps", "2", "--data.corpus", "files", "--data.directory",
        toy_data, *small, cwd=tmp_path, env=toy.environment(tmp_path),
    )  # fmt: skip
    lines = (re.split(r"\s{2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    table = {line[0]: line[1] for line in lines if len(line) == 2}
    assert float(table["real tokens/s, source + target"].replace(",", "")) > 0
    assert table["model FLOP/s of that (MFU)"].endswith(" %")
    assert list(tmp_path.glob("[!.]*")) == []


def test_a_mistake_is_one_sentence(refused):
    said = refused(2, bench, "--steps", "0")
    assert said == "hvd_nmt.bench: --steps is 0: it must be above 0 and finite.\n"

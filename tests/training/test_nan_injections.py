"""NaN in random ranks and steps: never in a checkpoint, the right sentences named, the run goes on.

    HVD_NMT_NAN_INJECTIONS=1000 pytest tests/training/test_nan_injections.py

Seconds for each; without the variable there are a few. HVD_NMT_NAN_SEED chooses others.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import toy
from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.run_files import NOT_FINITE
from hvd_nmt.data import corpus
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.explain.coverage import coverage
from hvd_nmt.records.read import read_run
from hvd_nmt.telemetry import jsonl

RUNS = int(os.environ.get("HVD_NMT_NAN_INJECTIONS", "3"))
SEED = int(os.environ.get("HVD_NMT_NAN_SEED", "1"))
STEPS = 22  # as in nan_runs.py
_A_RUN_S = 120


@pytest.fixture(scope="module")
def runs(toy_commands, toy_data, tmp_path_factory):
    """Where nan_runs.py ran, and what it says of each run on rank 0."""
    out = tmp_path_factory.mktemp("nan_runs")
    start = toy_commands.command(os.fspath(Path(__file__).with_name("nan_runs.py")))
    arguments = map(str, (out, toy_data, RUNS, SEED))
    run = toy.Run([*toy.horovodrun(2), *start, *arguments], out, toy.environment(out))
    done = run.finished(240 + _A_RUN_S * RUNS)
    assert done.returncode == 0, done.stdout + done.stderr
    by_rank = [list(jsonl.read(out / f"{rank}.jsonl")) for rank in range(2)]
    assert [one["code"] for one in by_rank[0]] == [one["code"] for one in by_rank[1]]
    assert len(by_rank[0]) == RUNS
    return out, by_rank[0]


def test_a_run_goes_on_after_one_nan_and_ends_at_the_second(runs):
    out, answers = runs
    for number, answer in enumerate(answers):
        (_, step), *second = answer["places"]
        gone_back = [line["step"] for line in jsonl.read(out / str(number) / NOT_FINITE)]
        assert set(gone_back) == {step}
        if second:
            assert answer["code"] == 6, answer
            assert f"At step {second[0][1]} " in answer["err"]
            assert f"gone back for step {step} of this epoch" in answer["err"]
        else:
            assert answer["code"] == 0, answer
            assert toy.metrics(out / str(number), "end")


def test_no_checkpoint_ever_holds_a_nan(runs):
    out, answers = runs
    for number in range(len(answers)):
        run_dir = out / str(number)
        for prefix in [*names.prefixes(run_dir), *names.prefixes(run_dir / "best_models")]:
            reader = tf.train.load_checkpoint(os.fspath(prefix))
            for name, dtype in reader.get_variable_to_dtype_map().items():
                if dtype.is_floating:
                    assert np.isfinite(reader.get_tensor(name)).all(), (prefix, name)


def test_the_sentences_of_the_guilty_rank_are_named(runs, toy_data):
    out, answers = runs
    plan = BatchPlan.of(corpus.load(toy_data).train, 128, 1)
    for number, answer in enumerate(answers):
        rank, step = answer["places"][0]
        position = plan.position(step - 1)
        wanted = plan.epoch(position.epoch).sentences(position.step)[rank::2].tolist()
        lines = list(jsonl.read(out / str(number) / NOT_FINITE))
        assert [line["sentence"] for line in lines] == wanted
        assert {line["rank"] for line in lines} == {rank}


def test_what_was_fed_and_what_was_left_out_make_up_what_was_planned(runs, toy_data):
    """No epoch is finished here, so the steps are added up."""
    out, answers = runs
    plan = BatchPlan.of(corpus.load(toy_data).train, 128, 1).epoch(0)
    for number, answer in enumerate(answers):
        run = read_run(out / str(number))
        assert coverage(run).faults == ()
        if answer["code"]:
            continue
        counted = sum(
            of.count for fed in run.fed for of in (*fed.by_epoch.values(), *fed.left_out.values())
        )
        assert counted == sum(len(plan.sentences(step)) for step in range(STEPS))

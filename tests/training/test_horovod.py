"""Whole runs on two ranks in which one rank fails: all ranks decide alike, and say why."""

import functools
import math
import os
import re
import socket

import numpy as np
import pytest
import tensorflow as tf

import toy
from hvd_nmt.checkpoints import names
from hvd_nmt.data import corpus
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.records.read import read_run
from hvd_nmt.reporting.questions import RunSummary
from hvd_nmt.telemetry import jsonl

HOST = socket.gethostname()
NAN_STEP, MAX_STEPS, SLOW_S = 6, 8, 0.4  # as in faulty_runs.py
SHORT = ("another_configuration", "another_code", "optimizer_not_wrapped", "nan_on_one_rank")
LONG = (
    "nan_three_times_in_a_row", "overflows_in_every_second_step", "slow_input_on_one_rank",
)  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Where faulty_runs.py runs: a run directory per fault."""
    return tmp_path_factory.mktemp("faulty_runs")


@pytest.fixture(scope="module")
def answers(out, run_on_ranks, toy_data):
    """Fault -> what each rank's `main` returned and printed; made when it is asked for."""

    @functools.cache
    def by_rank(faults):
        lines = run_on_ranks("faulty_runs.py", 2, out, toy_data, *faults, eager=faults == SHORT)
        return [{line["fault"]: line for line in each} for each in lines]

    return lambda name: [found[name] for found in by_rank(SHORT if name in SHORT else LONG)]


@pytest.mark.parametrize(
    ("fault", "code", "sentence"),
    [
        ("another_configuration", 5, "The configuration differs between hosts"),
        ("another_code", 5, "The code of hvd_nmt differs between hosts"),
        ("optimizer_not_wrapped", 6, "Gradients do not add up: on rank 0"),
        pytest.param(
            "nan_three_times_in_a_row", 6,
            f"At step {NAN_STEP + 1} the loss became NaN or Inf on rank 1 ({HOST}), step 3 in a "
            "row. It was skipped, as those before; the checkpoints are good",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "overflows_in_every_second_step", 6,
            "At step 34 the gradient became NaN or Inf at a loss scale", marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_all_ranks_leave_with_the_same_code_and_one_says_why(out, answers, fault, code, sentence):
    first, second = answers(fault)

    assert (first["code"], second["code"]) == (code, code)
    assert f"hvd_nmt.train: {sentence}" in first["err"]
    assert "Traceback" not in first["err"] + second["err"]
    assert second["out"] == ""
    assert "hvd_nmt.train: " not in second["err"]
    if fault in SHORT:  # nothing was trained before
        assert not list((out / fault).glob("model.ckpt-*"))
        assert not (out / fault / "metrics.jsonl").exists()


def test_a_step_with_a_nan_changes_no_weight_and_the_run_goes_on(answers):
    first, second = (answer["checksums"] for answer in answers("nan_on_one_rank"))
    assert [answer["code"] for answer in answers("nan_on_one_rank")] == [0, 0]
    assert first == second
    assert len(first) == MAX_STEPS
    assert first[NAN_STEP - 1] == first[NAN_STEP - 2]
    assert len(set(first)) == MAX_STEPS - 1


def test_the_sentences_of_a_nan_are_named(out, answers, toy_data):
    first, _ = answers("nan_on_one_rank")
    run_dir = out / "nan_on_one_rank"
    plan = BatchPlan.of(corpus.load(toy_data).train, 128, 1)
    wanted = plan.epoch(0).sentences(NAN_STEP - 1)[1::2].tolist()
    lines = list(jsonl.read(run_dir / "not_finite.jsonl"))
    assert [line["sentence"] for line in lines] == wanted
    assert {(line["step"], line["epoch"], line["rank"]) for line in lines} == {(NAN_STEP, 1, 1)}
    texts = [
        (toy_data.parent / f"train.{language}").read_text(encoding="utf-8").splitlines()
        for language in ("en", "de")
    ]
    for line in lines:
        assert [line["source"], line["target"]] == [text[line["sentence"]] for text in texts]
    (said,) = [line for line in first["out"].splitlines() if line.startswith("not finite")]
    assert f"step {NAN_STEP}: the loss became NaN or Inf on rank 1 (" in said
    assert f"Its {len(lines)} sentences are in {run_dir / 'not_finite.jsonl'}" in said
    assert f"{wanted[0]}: {lines[0]['source']!r}" in said


def test_what_is_left_out_is_not_logged_and_the_report_says_it(out, answers, toy_data):
    answers("nan_on_one_rank")
    run_dir = out / "nan_on_one_rank"
    assert [line["step"] for line in toy.metrics(run_dir)] == [1, 2, 3, 4, 5, 7, 8]
    assert all(math.isfinite(line["train_loss"]) for line in toy.metrics(run_dir))
    assert len(toy.metrics(run_dir, "start")) == 1
    plan = BatchPlan.of(corpus.load(toy_data).train, 128, 1)
    counted = [line["sentences"] for line in toy.metrics(run_dir)]
    assert counted == [len(plan.epoch(0).sentences(place)) for place in (0, 1, 2, 3, 4, 6, 7)]
    answer = RunSummary(read_run(run_dir)).answers[6]
    said = f"1 step changed no weight, because of NaN or Inf: {NAN_STEP}; their sentences are in"
    assert any(said in sentence for sentence in answer.evidence)


@pytest.mark.long
def test_the_loss_scale_and_the_steps_it_skipped_are_recorded(out, answers):
    """From step 31 on the scale is the lowest; 32 and those after it are left out."""
    first, _ = answers("overflows_in_every_second_step")
    lines = toy.metrics(out / first["fault"])
    scales, skipped = (
        [line[f"Loss_Optimization/{name}"] for line in lines]
        for name in ("loss_scale", "skipped_steps")
    )
    assert [line["step"] for line in lines] == [*range(1, 32)]
    assert scales == [2.0 ** (15 - number // 2) for number in range(31)]
    assert skipped == [number // 2 for number in range(1, 32)]
    assert "  loss scale 1 (15 skipped)  " in first["out"]
    assert "at a loss scale of 1, the lowest, step 3 in a row" in first["err"]


def test_no_checkpoint_holds_a_nan(out, answers):
    answers("nan_on_one_rank")
    run_dir = out / "nan_on_one_rank"
    assert {names.step_of(p) for p in names.prefixes(run_dir)} == {3, 6, 8}
    for prefix in [*names.prefixes(run_dir), *names.prefixes(run_dir / "best_models")]:
        tensors = [t for t in tensors_of(prefix).values() if t.dtype.kind == "f"]
        assert len(tensors) > 30
        assert all(np.isfinite(tensor).all() for tensor in tensors)


def tensors_of(prefix):
    """Every number in a checkpoint, by key."""
    reader = tf.train.load_checkpoint(os.fspath(prefix))
    return {
        name: np.asarray(reader.get_tensor(name))
        for name in reader.get_variable_to_shape_map()
        if name != names.OBJECT_GRAPH
    }


@pytest.mark.long
def test_one_slow_rank_shows_as_waiting_for_it_and_not_as_network(out, answers):
    """Rank 1 waits for its input, so half of the ranks' time there is waiting for rank 1."""
    first, second = answers("slow_input_on_one_rank")
    assert [first["code"], second["code"]] == [0, 0]
    assert re.search(r"^weights +checksum 0x[0-9a-f]+ equal on 2 rank", first["out"], re.M)
    lines = toy.metrics(out / "slow_input_on_one_rank")
    assert [line["step"] for line in lines] == list(range(1, MAX_STEPS + 1))
    waits = []
    for line in lines:
        parts = {name.removeprefix("step_time/"): value for name, value in line.items()
                 if name.startswith("step_time/")}  # fmt: skip
        total_s = parts.pop("total_s")
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == pytest.approx(total_s, rel=1e-6)
        assert line["rank_input_wait_s"][1] >= SLOW_S
        waits.append([parts["straggler_wait_s"], parts["communication_s"]])
    assert len(parts) == 4
    # In the first step both trace the graph; of the others one may be late for another reason.
    straggler_wait_s, communication_s = np.median(waits[1:], axis=0)
    assert straggler_wait_s > SLOW_S / 4
    assert straggler_wait_s > communication_s
    assert len(second["input_waits_s"]) == MAX_STEPS
    assert min(second["input_waits_s"]) >= SLOW_S

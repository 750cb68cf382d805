"""Whole runs on two ranks in which one rank fails: all ranks decide alike, and say why."""

import math
import os
import socket
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import toy
from hvd_nmt.checkpoints import names
from hvd_nmt.common import jsonl
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.data import corpus
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.records.read import read_run
from hvd_nmt.reporting.run_summary import RunSummary
from hvd_nmt.training import horovod

HOST = socket.gethostname()
NAN_STEP, MAX_STEPS = 6, 8  # as in faulty_runs.py
SAID = {  # fault -> exit code of all ranks, and what one of them says
    "another_configuration": (2, "The configuration differs between hosts"),
    "gradients_not_summed": (6, "Gradients do not add up: on rank 0"),
    "nan_three_times_in_a_row": (
        6, f"At step {NAN_STEP + 1} the loss became NaN or Inf on rank 1 ({HOST}), step 3 in a "
        "row. These steps were skipped, the checkpoints are good",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Where faulty_runs.py runs: a run directory per fault."""
    return tmp_path_factory.mktemp("faulty_runs")


@pytest.fixture(scope="module")
def answers(out, run_on_ranks, toy_data):
    """Fault -> what each rank's `main` returned and printed."""
    faults = (*SAID, "nan_on_one_rank")
    by_rank = run_on_ranks("faulty_runs.py", 2, out, toy_data, *faults, eager=True)
    return {lines[0]["fault"]: lines for lines in zip(*by_rank, strict=True)}


@pytest.mark.parametrize("fault", SAID)
def test_all_ranks_leave_with_the_same_code_and_one_says_why(out, answers, fault):
    (first, second), (code, sentence) = answers[fault], SAID[fault]

    assert (first["code"], second["code"]) == (code, code)
    assert f"hvd_nmt.train: {sentence}" in first["err"]
    assert "Traceback" not in first["err"] + second["err"]
    assert second["out"] == ""
    assert "hvd_nmt.train: " not in second["err"]
    if fault != "nan_three_times_in_a_row":  # nothing was trained before
        assert not list((out / fault).glob("model.ckpt-*"))
        assert not (out / fault / "metrics.jsonl").exists()


def test_a_step_with_a_nan_changes_no_weight_and_the_run_goes_on(answers):
    first, second = (answer["checksums"] for answer in answers["nan_on_one_rank"])
    assert [answer["code"] for answer in answers["nan_on_one_rank"]] == [0, 0]
    assert first == second
    assert len(first) == MAX_STEPS
    assert first[NAN_STEP - 1] == first[NAN_STEP - 2]
    assert len(set(first)) == MAX_STEPS - 1


def test_the_sentences_of_a_nan_are_named(out, answers, toy_data):
    first, _ = answers["nan_on_one_rank"]
    run_dir = out / "nan_on_one_rank"
    plan = BatchPlan.of_data(corpus.load(toy_data), (), 128, 1)
    wanted = plan.epoch(0).sentences(NAN_STEP - 1)[1::2].tolist()
    lines = list(jsonl.read(run_dir / "not_finite.jsonl"))
    assert [line["sentence"] for line in lines] == wanted
    assert {(line["step"], line["rank"]) for line in lines} == {(NAN_STEP, 1)}
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


@pytest.mark.usefixtures("answers")
def test_what_is_left_out_is_not_logged_and_the_report_says_it(out, toy_data):
    run_dir = out / "nan_on_one_rank"
    assert [line["step"] for line in toy.metrics(run_dir)] == [1, 2, 3, 4, 5, 7, 8]
    assert all(math.isfinite(line["train_loss"]) for line in toy.metrics(run_dir))
    assert len(toy.metrics(run_dir, "start")) == 1
    plan = BatchPlan.of_data(corpus.load(toy_data), (), 128, 1)
    counted = [line["sentences"] for line in toy.metrics(run_dir)]
    assert counted == [len(plan.epoch(0).sentences(place)) for place in (0, 1, 2, 3, 4, 6, 7)]
    answer = RunSummary(read_run(run_dir)).answers[6]
    said = f"1 step changed no weight, because of NaN or Inf: {NAN_STEP}; their sentences are in"
    assert any(said in sentence for sentence in answer.evidence)


@pytest.mark.usefixtures("answers")
def test_no_checkpoint_holds_a_nan(out):
    run_dir = out / "nan_on_one_rank"
    assert {names.step_of(p) for p in names.prefixes(run_dir)} == {3, 6, 8}
    for prefix in [*names.prefixes(run_dir), *names.prefixes(run_dir / "best_models")]:
        reader = tf.train.load_checkpoint(os.fspath(prefix))
        keys = [key for key in reader.get_variable_to_shape_map() if key != names.OBJECT_GRAPH]
        assert len(keys) > 30
        assert all(np.isfinite(reader.get_tensor(key)).all() for key in keys)


def test_a_machine_whose_name_has_no_address_is_told_before_gloo_ends_it(monkeypatch):
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="no-such-host-here"))
    with pytest.raises(ConfigError, match=r"add the line `127\.0\.1\.1 no-such-host-here` to"):
        horovod.init()

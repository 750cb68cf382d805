"""The lines of metrics.jsonl read back."""

import pytest

from hvd_nmt.config.exchange import Exchange
from hvd_nmt.records import metrics
from hvd_nmt.records.record import Run, Start

START = {"kind": "start", "time_s": 1_000.0, "first_step": 1, "hosts": ["a", "b"],
         "parameters": 10, "gradient_bytes": 40, "process_started_s": 987.5}  # fmt: skip
TRAIN = {"kind": "train", "time_s": 1_010.0, "step": 5, "steps": 5, "step_time/total_s": 2.0,
         "train_loss": 4.0, "rank_ready_s": [1.0, 1.5], "step_time/exchange_s": 0.25}  # fmt: skip


def read(*lines):
    return metrics.records(lines)


def test_seconds_of_training_are_summed_over_starts():
    """What a start recorded of those before it counts: their lines may have gone."""
    lines = [
        {"kind": "start", "time_s": 100.0}, {"kind": "train", "step": 1, "time_s": 150.0},
        {"kind": "start", "time_s": 1000.0}, {"kind": "train", "step": 2, "time_s": 1010.0},
    ]  # fmt: skip
    assert metrics.trained_s([]) == 0
    assert metrics.trained_s(read(*lines)) == 60
    lines.append({"kind": "start", "time_s": 2000.0, "trained_s": 70.0})
    assert metrics.trained_s(read(*lines)) == 70
    assert metrics.trained_s(read(*lines, {"kind": "stop", "time_s": 2005.0})) == 75


def test_the_start_up_of_every_start_counts():
    again = START | {"time_s": 2_000.0, "process_started_s": 1_980.0}
    assert metrics.startup_s(read(START, again)) == pytest.approx(12.5 + 20)
    old = {key: value for key, value in START.items() if key != "process_started_s"}
    assert metrics.startup_s(read(old)) is None


def test_the_pauses_between_starts_count():
    """From the last record of a start, which the next has counted, to the next process."""
    first, last_s = START | {"trained_s": 0.0}, START["time_s"] + 70
    again = {"time_s": last_s + 45, "process_started_s": last_s + 30, "trained_s": 70.0}
    again["lost_steps"] = metrics.steps_after(2, read(first, TRAIN))
    assert metrics.pauses(read(first, START | again)) == ((last_s, pytest.approx(30), 3),)
    assert metrics.steps_after(7, read(first, TRAIN)) == 0
    assert metrics.pauses(read(first)) == metrics.pauses(read(START, START)) == ()


def test_an_hour_by_which_a_clock_was_set_back_takes_no_time():
    again = START | {"time_s": 1_010.0 - 3600, "process_started_s": 1_000.0 - 3600}
    lines = [START, TRAIN, again, TRAIN | {"time_s": 1_030.0 - 3600}]
    assert metrics.span_s(metrics.times_s(read(*lines))) == (987.5, 987.5 + 22.5 + 30)


def test_an_exchange_is_that_of_its_start(tmp_path):
    islands = START | {"exchange": "islands", "sync_every": 8, "all_reduce_s": 2.0}
    records = read(START, TRAIN, islands, TRAIN | {"step": 9})
    plain, cured = metrics.intervals(records)
    assert cured.exchange_s == 0.25
    run = Run("x", tmp_path, "hvd_nmt", starts=tuple(metrics.of_kind(Start, records)))
    assert run.start_of(plain).exchange == Exchange()
    assert run.start_of(cured).hosts == ("a", "b")
    assert run.start_of(cured).exchange == Exchange("islands", 8)
    assert run.start_of(cured).all_reduce_s == 2.0

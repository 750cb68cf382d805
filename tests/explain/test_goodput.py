"""The parts of the wall time of runs that were made up second by second."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_nmt.checkpoints.run_files import Line
from hvd_nmt.common.units import count
from hvd_nmt.explain import goodput as goodputs
from hvd_nmt.explain.goodput import Goodput, goodput
from hvd_nmt.records import metrics

STARTUP_S, SETUP_S, TRACING_S, SAVE_S, EVALUATION_S, PAUSE_S = 7.0, 3.0, 5.0, 2.0, 4.0, 50.0
LEFT_OUT = 23
"""a step with NaN"""


def made_up(steps_of_starts: list[int], last_line: str = "") -> list[Line]:
    """Lines of a run with steps of 1 s, logged each 5, saved each 7, evaluated each 10.

    Each of its starts was killed after so many steps, or recorded its end with a `last_line`.
    """
    lines: list[Line] = []
    now_s, saved = 1000.0, 0
    for steps in steps_of_starts:
        begun_s, done, logged_s, counted = now_s, saved, 0.0, 0
        now_s += STARTUP_S
        of = metrics.records(lines)
        lost, trained_s = metrics.steps_after(saved, of), metrics.trained_s(of)
        lines = [line for line in lines if line.get("step", 0) <= saved]
        before = {"process_started_s": begun_s, "trained_s": trained_s, "lost_steps": lost}
        lines.append({"kind": "start", "time_s": now_s, "first_step": saved + 1, **before})
        now_s += SETUP_S
        for step in range(saved + 1, saved + 1 + steps):
            step_s = 1.0 + TRACING_S * (step == done + 1)
            now_s, logged_s, counted = now_s + step_s, logged_s + step_s, counted + 1
            if step == LEFT_OUT:
                logged_s, counted = logged_s - step_s, counted - 1
            if step % 5 == 0 and counted:
                train = {"kind": "train", "steps": counted, "step_time/total_s": logged_s / counted}
                lines.append(train | {"time_s": now_s, "step": step})
                logged_s, counted = 0.0, 0
            if step % 7 == 0:
                now_s, saved = now_s + SAVE_S, step
                save = {"kind": "save", "wait_s": SAVE_S, "copies": 1}
                lines.append(save | {"time_s": now_s, "step": step})
            if step % 10 == 0:
                now_s += EVALUATION_S
                evaluation = {"kind": "eval", "eval_seconds": EVALUATION_S}
                lines.append(evaluation | {"time_s": now_s, "step": step})
        if last_line:
            lines.append({"kind": last_line, "time_s": now_s, "steps": 40})
        now_s += PAUSE_S
    return lines


def of_lines(lines: list[Line]) -> Goodput:
    return goodput(metrics.run_of(Path("made-up"), metrics.records(lines))) or Goodput(0, None, {})


def test_a_run_without_a_fault():
    spent = of_lines(made_up([40], "end"))
    assert spent.parts == pytest.approx({
        goodputs.STEPS: 39, goodputs.START: STARTUP_S + SETUP_S + TRACING_S, goodputs.LEFT_OUT: 1,
        "4 evaluations": 4 * EVALUATION_S, "5 checkpoints": 5 * SAVE_S, goodputs.OTHER: 0,
    })  # fmt: skip
    assert spent.share == pytest.approx(39 / spent.wall_s)


def test_steps_that_were_done_again_count_once():
    """Killed after step 20, which was evaluated, it went on from step 14, saved but not logged."""
    spent = of_lines(made_up([20, 26]))
    assert spent.parts[goodputs.STEPS] == pytest.approx(39)
    assert spent.parts[goodputs.AGAIN] == pytest.approx(6 + EVALUATION_S)
    assert spent.parts["1 restart after a failure"] == PAUSE_S
    assert spent.share == pytest.approx(39 / spent.wall_s)


@pytest.mark.parametrize("starts", [[46], [20, 26]])
def test_a_run_from_before_these_times_were_recorded_has_no_goodput(starts):
    lines = made_up(starts)
    for line in lines:
        for key in ("process_started_s", "trained_s"):
            line.pop(key, None)
    assert of_lines(lines).share is None
    assert str(of_lines(lines)) == "unknown"
    assert of_lines(lines[:1]).wall_s == 0


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.sampled_from(["", "stop"]))
def test_the_parts_add_up_to_the_wall_time(steps_of_starts, last_line):
    lines = made_up([*steps_of_starts, 30], last_line)
    spent = of_lines(lines)
    assert sum(spent.parts.values()) == pytest.approx(spent.wall_s)
    name, others = ("pause", "between starts") if last_line else ("restart", "after a failure")
    assert spent.parts[f"{count(len(steps_of_starts), name)} {others}"] >= PAUSE_S
    assert spent.parts[goodputs.OTHER] <= 1e-6 + 0.01 * spent.wall_s
    done = max(line["step"] for line in lines if line["kind"] == "train")
    assert spent.share == pytest.approx((done - (done >= LEFT_OUT)) / spent.wall_s)

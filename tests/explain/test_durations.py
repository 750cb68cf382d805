"""Durations of steps and runs of known results."""

from hvd_nmt.explain import durations
from hvd_nmt.records.record import Interval, Run


def run_of(tmp_path, intervals=()):
    return Run("r", tmp_path, "hvd_nmt", intervals=tuple(intervals))


def test_the_mean_step_weighs_intervals_by_their_steps(tmp_path):
    rows = [
        Interval(step, steps, step_s=step_s)
        for step, steps, step_s in ((10, 10, 9.0), (20, 10, 1.0), (50, 30, 2.0))
    ]
    times = durations.step_times(run_of(tmp_path, rows))
    assert times.mean_s == 1.75
    assert (times.steps, times.intervals, times.first_s) == (40, 2, (9.0,))
    assert times.margin_s is None  # two intervals say nothing of their spread
    assert durations.step_times(run_of(tmp_path, rows[:1])).mean_s == 9.0
    assert durations.step_times(run_of(tmp_path)) is None


def test_the_first_interval_of_every_start_is_left_out(tmp_path):
    starts = [(9.0, 10.0), (1.0, 100.0), (1.0, 100.0)] * 2  # seconds and tokens/s of intervals
    rows = [Interval(10 * n, 10, step_s=step_s, tokens_per_s=tokens, start=n // 4)
            for n, (step_s, tokens) in enumerate(starts, start=1)]  # fmt: skip
    times = durations.step_times(run_of(tmp_path, rows))
    assert (times.mean_s, times.steps, times.first_s) == (1.0, 40, (9.0, 9.0))
    assert durations.mean_rate(run_of(tmp_path, rows), "tokens_per_s") == 100.0


def test_a_finished_log_counts_the_steps_behind_its_last_line(tmp_path):
    run = Run("log", tmp_path, "OpenSeq2Seq", max_steps=1600, finished=True,
              intervals=(Interval(1501, 100),))  # fmt: skip
    assert durations.steps_done(run) == 1600

"""Step times."""

import pytest

from hvd_nmt.telemetry.steps import StepTime, StepTimeMeans, step_time


def test_what_is_neither_input_nor_communication_is_computation():
    assert step_time(1.75, input_wait_s=0.25, communication_s=1.0) == StepTime(0.25, 0.5, 1.0, 1.75)


def test_clocks_that_overshoot_give_no_negative_computation():
    assert step_time(1.0, input_wait_s=0.5, communication_s=0.5000001).compute_s == 0.0


@pytest.mark.parametrize("times", [(-1.0, 0.0, 0.0), (1.0, -0.1, 0.0), (1.0, 0.0, float("nan"))])
def test_times_that_cannot_be_are_refused(times):
    with pytest.raises(ValueError, match="from 0 on"):
        step_time(*times)


def test_means_since_they_were_last_taken():
    means = StepTimeMeans()
    assert means.take() is None
    means.add(StepTime(0.0, 1.0, 0.5, 1.5))
    means.add(StepTime(1.0, 2.0, 0.0, 3.0))
    assert len(means) == 2
    assert means.take() == StepTime(0.5, 1.5, 0.25, 2.25)
    assert len(means) == 0
    means.add(StepTime(0.0, 4.0, 0.0, 4.0))
    assert means.take() == StepTime(0.0, 4.0, 0.0, 4.0)

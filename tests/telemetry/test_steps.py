"""Step times."""

import pytest

from hvd_nmt.telemetry.steps import StepTime, step_time


def test_one_rank_waits_for_nobody():
    found = step_time(1.75, 1.0, 0, ready_s=[0.7], input_wait_s=[0.25])
    assert found == StepTime(0.25, 0.5, 0.0, 1.0, 1.75)


@pytest.mark.parametrize(("rank", "waited_s"), [(0, 2.5), (1, 0.5)])
def test_the_wait_for_the_slowest_rank_is_no_communication(rank, waited_s):
    """Both ranks see the same network, the fast one after it has waited 2 s for the slow one."""
    found = step_time(3.75, waited_s, rank, ready_s=[1.0, 3.0], input_wait_s=[0.0, 0.5])
    assert found == StepTime(0.25, 2.0, 1.0, 0.5, 3.75)


def test_clocks_that_overshoot_give_no_negative_part():
    found = step_time(1.0, 0.5000001, 0, ready_s=[0.5], input_wait_s=[0.5])
    assert found.compute_s == 0.0
    assert found.input_wait_s + found.communication_s == pytest.approx(1.0)

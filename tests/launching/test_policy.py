"""What is done when the ranks have ended."""

import pytest

from hvd_nmt.launching.policy import AttemptEnd, Decision, decide, pause_s


def ends(*codes, progressed=False, every_s=10.0):
    return [AttemptEnd(code, progressed, number * every_s) for number, code in enumerate(codes)]


@pytest.mark.parametrize("code", [0, 2, 3, 4, 6])
def test_what_is_done_or_would_fail_again_ends_with_its_code(code):
    for asked_to_stop in (False, True):
        assert decide(ends(137, code), 10, asked_to_stop) == Decision(False, code)


@pytest.mark.parametrize("code", [5, 75, 134, 137, 139, 143, 255])
def test_ranks_that_were_lost_start_again_unless_they_were_to_stop(code):
    assert decide(ends(code), 10).restarts
    assert decide(ends(code), 10, asked_to_stop=True) == Decision(False, 75)


@pytest.mark.parametrize("code", [1, 9, 127])
def test_a_defect_starts_again_only_while_there_is_progress(code):
    assert decide(ends(code, progressed=True), 10).restarts
    decision = decide(ends(code), 10)
    assert (decision.restarts, decision.exit_code) == (False, code)
    assert f"code {code}" in decision.why


def test_five_starts_in_a_row_without_progress_are_enough():
    assert decide(ends(137, 137, 137, 137), 10).restarts
    decision = decide(ends(137, 137, 137, 137, 5), 10)
    assert (decision.restarts, decision.exit_code) == (False, 5)
    assert "5 starts in a row" in decision.why
    some = [*ends(137, 137, 137, 137), AttemptEnd(137, True, 50.0), AttemptEnd(137, False, 60.0)]
    assert decide(some, 10).restarts


def test_pauses_grow_until_there_is_progress():
    numbers = (0, 1, 2, 3, 9, 10, 10_000)
    assert [pause_s(number) for number in numbers] == [0, 0, 2, 4, 256, 300, 300]
    assert decide(ends(137, 137, 137), 10).pause_s == 4
    assert decide([*ends(137, 137, 137), AttemptEnd(137, True, 40.0)], 10).pause_s == 0


def test_restarts_within_an_hour_are_bounded():
    """The third restart has to wait until the first is an hour ago."""
    some = ends(137, 137, 137, progressed=True, every_s=600.0)
    assert decide(some, 3).pause_s == 0
    assert decide(some, 2).pause_s == 3600 - 1200
    assert decide([*some, AttemptEnd(137, True, 4000.0)], 2).pause_s == 600 + 3600 - 4000
    decision = decide(some, 0)
    assert not decision.restarts
    assert "--restarts-per-hour 0" in decision.why

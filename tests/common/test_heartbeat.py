"""How long a rank may be silent in each section of a run."""

import math
import mmap
import os

import pytest

from hvd_nmt.common import heartbeat


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when a test says so."""
    now_s = [1000.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now_s[0])
    return now_s


@pytest.fixture
def beat(clock):
    heart = heartbeat.Heartbeat()
    heart._page, heart.limit_s = mmap.mmap(-1, heartbeat.PAGE.size), None
    return heart


def allowed_s(beat, clock):
    return heartbeat.read(beat._page).deadline_s - clock[0]


def test_limits_are_learned_between_a_floor_and_a_ceiling(beat, clock):
    expected_s = []
    for took_s in (30.0, 1.0, 600.0, 1.0):
        beat.enter(heartbeat.STEP)
        expected_s.append(allowed_s(beat, clock))
        clock[0] += took_s
        beat.enter(heartbeat.CALLBACKS)
    beat.enter(heartbeat.STEP)
    assert [*expected_s, allowed_s(beat, clock)] == [1800, 300, 300, 1800, 1800]
    beat.enter(heartbeat.CALLBACKS)
    assert allowed_s(beat, clock) == 120


def test_whoever_waits_for_others_has_twice_as_long(beat, clock):
    beat.enter(heartbeat.CALLBACKS)
    with beat.section(heartbeat.EVALUATION):
        clock[0] += 20
        with beat.waiting():
            assert allowed_s(beat, clock) == 2 * 1800
        clock[0] += 1
        beat.sign()
        assert allowed_s(beat, clock) == 1800  # it has not ended once
    with beat.section(heartbeat.EVALUATION):
        assert allowed_s(beat, clock) == 200
        with beat.waiting():
            assert allowed_s(beat, clock) == 400
    beat.enter(heartbeat.STEP, waits=True)
    assert allowed_s(beat, clock) == 2 * 1800
    assert heartbeat.read(beat._page).stopped_deadline_s - clock[0] == 120


@pytest.mark.parametrize(
    ("given_s", "first_s", "later_s"), [(7, 1800, 7), (9000, 9000, 9000), (0, math.inf, math.inf)]
)
def test_a_limit_can_be_given(beat, clock, given_s, first_s, later_s):
    """What is begun for the first time may take much longer, such as tracing a graph."""
    beat.limit_s = given_s
    for expected_s in (first_s, later_s):
        beat.enter(heartbeat.INPUT)
        assert allowed_s(beat, clock) == expected_s
        beat.enter(heartbeat.STEP)


def test_a_checkpoint_has_the_longest_time_however_short_it_was(beat, clock):
    for _ in range(2):
        with beat.section(heartbeat.CHECKPOINT):
            assert allowed_s(beat, clock) == 1800
            clock[0] += 0.1
    beat.limit_s = 9.0
    with beat.section(heartbeat.CHECKPOINT):
        assert allowed_s(beat, clock) == 9


def test_the_page_says_what_the_rank_does(beat, clock):
    assert heartbeat.read(beat._page).section == ""
    beat.enter(heartbeat.COMPILATION, waits=True)
    deadline_s, _, began_s, *rest = heartbeat.read(beat._page)
    assert (deadline_s, began_s, *rest) == (4600, 1000, True, heartbeat.COMPILATION, 0)


def test_an_agent_gives_the_page_by_its_number(monkeypatch):
    file = os.memfd_create(heartbeat.MEMORY)
    os.truncate(file, heartbeat.PAGE.size)
    page = mmap.mmap(file, heartbeat.PAGE.size)
    monkeypatch.setenv("HVD_NMT_HEARTBEAT", str(file))
    beat = heartbeat.Heartbeat()
    assert not beat.is_read
    beat.begin()
    assert beat.is_read
    assert heartbeat.read(page).section == heartbeat.START
    assert "HVD_NMT_HEARTBEAT" not in os.environ  # what a rank starts has no page


def test_a_section_has_not_ended_where_another_is_inside_of_it(beat, clock):
    with beat.limited(None):
        with beat.section(heartbeat.EXCHANGE):
            clock[0] += 1
        assert allowed_s(beat, clock) == 1800
        beat.enter(heartbeat.CALLBACKS)
        with beat.section(heartbeat.EXCHANGE):
            assert allowed_s(beat, clock) == 120
    assert allowed_s(beat, clock) == 1800  # it may hang at its exit, too

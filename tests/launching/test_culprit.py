"""Who was the first to fail, of all that hosts can report."""

import dataclasses
import signal

import pytest

from hvd_nmt.common import heartbeat
from hvd_nmt.launching.culprit import LOST_END_S, OWN_END_S, RankExit, asked, find, without_cause

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
NO_MEMORY = RankExit(3, "rank 3 on b", -signal.SIGABRT, heartbeat.STEP, of_memory=True)


def end(rank, code, section=heartbeat.STEP):
    return RankExit(rank, f"rank {rank} on {HOSTS[rank]}", code, section)


def lost(rank):
    return end(rank, 5, heartbeat.LOST)


def state(rank, **changes):
    return {"where": f"rank {rank} on {HOSTS[rank]}", "section": heartbeat.STEP, "waits": True,
            "seconds": 30.0, "began_s": 70.0, "stopped": False, "stuck": False,
            **changes}  # fmt: skip


def stuck(rank, **changes):
    return state(rank, stuck=True, **changes)


@pytest.mark.parametrize("before", [[], [lost(0)], [end(0, -signal.SIGABRT)]])
@pytest.mark.parametrize(
    ("first", "exit_code", "words"),
    [
        (end(3, -signal.SIGKILL), 137, "was killed by SIGKILL (section 'step'); perhaps"),
        (end(3, -signal.SIGSEGV), 139, "was killed by SIGSEGV (section 'step')."),
        (NO_MEMORY, 134, "was killed by SIGABRT (section 'step'); perhaps memory was full."),
        (end(3, 1), 1, "ended with code 1 (section 'step')."),
        (end(3, 4), 4, "ended with code 4 (section 'step')."),
    ],
)
def test_a_rank_that_ended_by_itself_is_blamed_in_any_order(before, first, exit_code, words):
    blame = find([*before, first, end(2, -signal.SIGKILL), lost(1)], [], {})
    assert blame.sentence.startswith(f"rank 3 on b {words}")
    assert blame.exit_code == exit_code
    # All may have the same error.
    assert blame.patience_s == (OWN_END_S if first.code > 0 else LOST_END_S)
    assert not blame.asks


def test_a_lost_host_is_named_and_the_others_may_save():
    blame = find([lost(0)], [state(1)], {"b": "it does not answer"})
    assert blame.sentence.startswith("b is lost: it does not answer;")
    assert (blame.exit_code, blame.asks) == (255, True)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        # Others wait for it, even those in Python.
        ([stuck(0), stuck(1, waits=False), state(3, stopped=True)],
         "rank 3 on b is stopped (SIGSTOP) in the section 'step'"),
        ([stuck(0), stuck(2, waits=False), state(3)], "rank 2 on b hangs in the section 'step'"),
        # The one that loops may have longer than those that wait for it.
        ([stuck(0), stuck(1), state(2, waits=False, began_s=99.0)], "rank 2 on b hangs"),
        # All wait, one longest.
        ([stuck(n, began_s=80.0 - (n == 3) / 50) for n in range(4)], "rank 3 on b hangs"),
    ],
)  # fmt: skip
def test_the_stuck_rank_that_others_wait_for_is_blamed(states, words):
    blame = find([], states, {})
    assert blame.sentence.startswith(words)
    assert blame.exit_code == 137


def test_ranks_that_saved_have_their_grace():
    blame = find([end(1, 75)], [], {})
    assert (blame.sentence, blame.exit_code, blame.patience_s) == ("", 75, 60.0)


@pytest.mark.parametrize(
    ("ends", "states", "words"),
    [
        ([lost(0), end(1, -signal.SIGABRT)], [state(2)], "the ranks lost their connections"),
        ([lost(0)], [state(3, section="", seconds=301.0)], "rank 3 on b did not join the others"),
        ([end(1, 0), lost(0)], [state(2)], "rank 1 on a ended with code 0 before the others."),
        ([end(2, -signal.SIGABRT), end(3, -signal.SIGABRT)], [],
         "rank 2 on b was killed by SIGABRT"),
    ],
)  # fmt: skip
def test_where_all_are_consequences_something_is_blamed_after_a_while(ends, states, words):
    assert find(ends, states, {}) is None
    assert without_cause(ends, states).sentence.startswith(words)


def test_a_rank_that_was_asked_to_stop_is_named():
    ends = [end(0, 75), dataclasses.replace(end(2, 75), asked=signal.SIGTERM)]
    assert asked(ends) == "rank 2 on b was asked to stop by SIGTERM: all saved."
    assert asked(ends[:1]) == ""

"""Who was the first to fail, of all that hosts can tell."""

import signal

import pytest

from hvd_nmt.common import heartbeat
from hvd_nmt.launching.culprit import LOST_END_S, OWN_END_S, RankExit, asked, find, without_cause

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
GRACE_S = 60.0


def end(rank, code, section=heartbeat.STEP):
    return RankExit(rank, HOSTS[rank], code, section)


def lost(rank):
    return end(rank, 5, heartbeat.LOST)


def state(section=heartbeat.STEP, **changes):
    return {"section": section, "waits": True, "seconds": 30.0, "began_s": 70.0,
            "stopped": False, "stuck": False, **changes}  # fmt: skip


def found(ends=(), states=None, lost_hosts=None):
    return find(ends, states or {}, HOSTS, lost_hosts or {})


@pytest.mark.parametrize("before", [[], [lost(0)], [end(0, -signal.SIGABRT)]])
@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [
        (-signal.SIGKILL, 137, "rank 3 on b was killed by SIGKILL (section 'step'); perhaps"),
        (-signal.SIGSEGV, 139, "rank 3 on b was killed by SIGSEGV (section 'step')."),
        (1, 1, "rank 3 on b ended with code 1 (section 'step')."),
        (4, 4, "rank 3 on b ended with code 4 (section 'step')."),
    ],
)
def test_a_rank_that_ended_by_itself_is_named_whoever_followed(before, code, exit_code, words):
    verdict = found([*before, end(3, code), lost(1)])
    assert verdict.sentence.startswith(words)
    assert verdict.exit_code == exit_code
    assert verdict.patience_s == (
        OWN_END_S if code > 0 else LOST_END_S
    )  # all may have the same error
    assert not verdict.asks


def test_the_first_of_two_is_named():
    ends = [end(2, -signal.SIGKILL), end(1, -signal.SIGKILL)]
    assert "rank 2 on b" in found(ends).sentence


def test_a_lost_host_is_named_and_the_others_may_save():
    verdict = found([lost(0)], {1: state()}, {"b": "it does not answer"})
    assert verdict.sentence.startswith("b is lost: it does not answer;")
    assert (verdict.exit_code, verdict.asks) == (255, True)


def test_a_stopped_rank_is_named_before_those_that_wait_for_it():
    states = {0: state(stuck=True), 1: state(stuck=True, waits=False), 3: state(stopped=True)}
    verdict = found([], states)
    assert verdict.sentence.startswith("rank 3 on b is stopped (SIGSTOP) in the section 'step'")
    assert verdict.exit_code == 137


def test_of_stuck_ranks_it_is_not_one_that_waits():
    states = {0: state(stuck=True), 2: state(stuck=True, waits=False), 3: state()}
    words = "rank 2 on b hangs in the section 'step' for 30.0 s"
    assert found([], states).sentence.startswith(words)


def test_a_rank_that_waits_is_not_named_while_another_is_in_python():
    """The one that loops may have longer than those that wait for it."""
    states = {0: state(stuck=True), 1: state(stuck=True), 2: state(waits=False, began_s=99.0)}
    assert found([], states).sentence.startswith("rank 2 on b hangs")


def test_if_all_wait_it_is_the_one_that_does_so_longest():
    states = {n: state(stuck=True, began_s=80.0 - (n == 3) / 50) for n in range(4)}
    assert found([], states).sentence.startswith("rank 3 on b hangs")


def test_ranks_that_saved_have_their_grace():
    verdict = found([end(1, 75)])
    assert (verdict.sentence, verdict.exit_code, verdict.patience_s) == ("", 75, GRACE_S)


def test_consequences_alone_tell_of_no_cause():
    ends = [lost(0), end(1, -signal.SIGABRT)]
    assert found(ends, {2: state()}) is None
    sentence = without_cause(ends, {2: state()}, HOSTS).sentence
    assert sentence.startswith("the ranks lost their connections")


def test_whoever_does_not_come_to_the_start_is_late():
    late = without_cause([lost(0)], {3: state("", seconds=301.0)}, HOSTS)
    assert late.sentence.startswith("rank 3 on b did not join the others")


def test_a_rank_that_ends_well_too_early_is_named():
    sentence = without_cause([end(1, 0), lost(0)], {2: state()}, HOSTS).sentence
    assert sentence == "rank 1 on a ended with code 0 before the others."


def test_if_all_abort_the_first_is_named():
    ends = [end(2, -signal.SIGABRT), end(3, -signal.SIGABRT)]
    assert "rank 2 on b was killed by SIGABRT" in without_cause(ends, {}, HOSTS).sentence


def test_an_abort_for_want_of_memory_is_no_consequence():
    verdict = found([lost(0), RankExit(3, "b", -signal.SIGABRT, heartbeat.STEP, of_memory=True)])
    said = "rank 3 on b was killed by SIGABRT (section 'step'); perhaps memory was full."
    assert (verdict.sentence, verdict.exit_code) == (said, 134)


def test_who_was_asked_to_stop_is_named():
    ends = [end(0, 75), RankExit(2, "b", 75, heartbeat.STEP, asked=signal.SIGTERM)]
    assert asked(ends) == "rank 2 on b was asked to stop by SIGTERM: all saved."
    assert asked(ends[:1]) == ""

"""The verdict between two hosts, in six cases whose bottleneck is known because it was made.

One run trains all the while; its link, input and second rank are changed under it, and the steps of
each case are judged as a run of their own. Where the cores are shared with others, these may slow a
rank for a while, and then that is the bottleneck: a case whose verdict or step time is another than
what was made is given more steps, twice at most, and the last ones count.
"""

import dataclasses
import statistics
from pathlib import Path

import pytest

import toy
from hvd_nmt.explain import between_hosts, bottleneck
from hvd_nmt.explain.exchange_cost import ring_bytes
from hvd_nmt.explain.intervals import typical
from hvd_nmt.records.read import read_run

STEPS = 9
ATTEMPTS = 3
CASES = {
    "nothing": (0, "", bottleneck.COMPUTE),
    "quick link": (0.1, "", bottleneck.COMPUTE),
    "slow link": (0.7, "", bottleneck.NETWORK),
    "slower link": (1.4, "", bottleneck.NETWORK),
    "slow input": (0.7, "input", bottleneck.INPUT),
    "slow rank": (0.7, "rank", bottleneck.STRAGGLER),
}
"""name: the time that is added to a step, in steps of the first case; what is slow, where it is not
the link; what the verdict must be"""
SLOW_LINKS = ("slow link", "slower link")
OPTIONS = (
    "--model.width", "256", "--model.feed-forward-width", "1024", "--model.heads", "4",
    "--training.tokens-per-step", "12000",
    "--evaluation.every-steps", "100000", "--checkpoints.every-steps", "100000",
)  # fmt: skip


@pytest.fixture(scope="module")
def cases(two_hosts, host_commands, tmp_path_factory):
    """Each case's part of the run, as a run."""
    cwd = tmp_path_factory.mktemp("verdict")
    data = toy.toy_data(cwd, pairs=3000)
    script = host_commands.command(str(Path(__file__).with_name("slowed_train.py")))
    options = toy.train_options(data, "run", 100_000, *OPTIONS)
    command = [*two_hosts.horovodrun("v100a:1,v100b:1"), *script, *options]
    bounds, parts, run_dir = {}, {}, cwd / "run"
    with two_hosts.running(command, cwd) as started:
        started.wait_for(lambda: toy.steps_done(run_dir) >= 8)
        for name, (added, slow, wanted) in CASES.items():
            two_hosts.unlimit()
            if added and not slow:
                two_hosts.limit(f"{link_MB_per_s(parts, name) * 8:.1f}mbit")
            added_s = added * measured_s(parts, "nothing") if slow else 0
            (cwd / "slow").write_text(f"{slow} {added_s:.3f}", encoding="utf-8")
            for _ in range(ATTEMPTS):
                begin = toy.steps_done(run_dir) + 2  # one step is under way while things change
                end = begin + STEPS
                started.wait_for(lambda end=end: toy.steps_done(run_dir) >= end)
                bounds[name] = begin, end
                parts[name] = part(read_run(run_dir), begin, end)
                if bottleneck.verdict(parts[name]).kind == wanted and (
                    name not in SLOW_LINKS or measured_s(parts, name) == predicted_s(parts, name)
                ):
                    break
        run = read_run(run_dir)
    return {name: part(run, *of) for name, of in bounds.items()}


def part(run, begin, end):
    """The steps after `begin` to `end`, as a run."""
    kept = tuple(one for one in run.intervals if begin < one.step <= end)
    return dataclasses.replace(run, intervals=kept)


def link_MB_per_s(cases, name):
    """Of a link that takes as long for a step's bytes as case `name` adds."""
    run = cases["nothing"]
    added_s = CASES[name][0] * measured_s(cases, "nothing")
    return ring_bytes(run.gradient_bytes, run.ranks) / added_s / 1e6


def measured_s(cases, name):
    return statistics.median(interval.step_s for interval in cases[name].intervals)


def predicted_s(cases, name):
    """By what the link of case `name` adds, beside its own computing; within 20 %."""
    run = cases[name]
    step = between_hosts.step_of(run, typical(run.intervals))
    transfer_s = CASES[name][0] * measured_s(cases, "nothing")
    return pytest.approx(dataclasses.replace(step, transfer_s=transfer_s).total_s, rel=0.20)


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_right(cases, name):
    found = bottleneck.verdict(cases[name])
    assert found.kind == CASES[name][2], found
    assert abs(sum(found.shares.values()) - 1) < 1e-6


@pytest.mark.parametrize("name", SLOW_LINKS)
def test_the_step_time_on_a_slow_link_is_predicted_from_its_bytes(cases, name):
    assert measured_s(cases, name) == predicted_s(cases, name)


@pytest.mark.parametrize("name", SLOW_LINKS)
def test_the_card_carried_the_bytes_of_the_ring(cases, name):
    found = bottleneck.verdict(cases[name])
    assert found.interface == "eth0"
    assert found.seen_bytes == pytest.approx(found.predicted_bytes, rel=0.25)


def test_the_slow_rank_and_its_host_are_named(cases):
    (phase,) = bottleneck.verdict(cases["slow rank"]).phases
    assert phase.lag.who == "rank 1 on v100b"


def test_the_advice_for_a_slow_link_is_about_the_network(cases):
    advice = bottleneck.verdict(cases["slower link"]).advice
    assert advice
    assert any(one.what.startswith("islands") for one in advice)
    assert any("network" in one.what for one in advice)
    step_s = bottleneck.verdict(cases["slower link"]).step_s
    assert all(one.predicted_step_s < step_s for one in advice)

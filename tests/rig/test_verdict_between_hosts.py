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
    "nothing": (None, "", bottleneck.COMPUTE),
    "1 Gbit/s": ("1gbit", "", bottleneck.COMPUTE),
    "100 Mbit/s": ("100mbit", "", bottleneck.NETWORK),
    "50 Mbit/s": ("50mbit", "", bottleneck.NETWORK),
    "slow input": (None, "input", bottleneck.INPUT),
    "slow rank": (None, "rank", bottleneck.STRAGGLER),
}
"""name: link, what is slow, what the verdict must be"""
LINKS_MB_PER_S = {"100 Mbit/s": 12.5, "50 Mbit/s": 6.25}
# 7.5 MB a step take 0.06, 0.6 and 1.2 s on the three links, beside 0.5 to 1.2 s of computing.
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
        for name, (link, slow, wanted) in CASES.items():
            two_hosts.unlimit()
            if link:
                two_hosts.limit(link)
            (cwd / "slow").write_text(slow, encoding="utf-8")
            for _ in range(ATTEMPTS):
                begin = toy.steps_done(run_dir) + 2  # one step is under way while things change
                end = begin + STEPS
                started.wait_for(lambda end=end: toy.steps_done(run_dir) >= end)
                bounds[name] = begin, end
                parts[name] = part(read_run(run_dir), begin, end)
                if bottleneck.verdict(parts[name]).kind == wanted and (
                    name not in LINKS_MB_PER_S
                    or measured_s(parts, name) == predicted_s(parts, name)
                ):
                    break
        run = read_run(run_dir)
    return {name: part(run, *of) for name, of in bounds.items()}


def part(run, begin, end):
    """The steps after `begin` to `end`, as a run."""
    kept = tuple(one for one in run.intervals if begin < one.step <= end)
    return dataclasses.replace(run, intervals=kept)


def measured_s(cases, name):
    return statistics.median(interval.step_s for interval in cases[name].intervals)


def predicted_s(cases, name):
    """By the ring's bytes over the link of case `name`, beside its own computing; within 20 %."""
    run = cases[name]
    step = between_hosts.step_of(run, typical(run.intervals))
    transfer_s = ring_bytes(run.gradient_bytes, run.ranks) / (LINKS_MB_PER_S[name] * 1e6)
    return pytest.approx(dataclasses.replace(step, transfer_s=transfer_s).total_s, rel=0.20)


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_right(cases, name):
    found = bottleneck.verdict(cases[name])
    assert found.kind == CASES[name][2], found
    assert abs(sum(found.shares.values()) - 1) < 1e-6


@pytest.mark.parametrize("name", LINKS_MB_PER_S)
def test_the_step_time_on_a_slow_link_is_predicted_from_its_bytes(cases, name):
    assert measured_s(cases, name) == predicted_s(cases, name)


@pytest.mark.parametrize("name", LINKS_MB_PER_S)
def test_the_card_carried_the_bytes_of_the_ring(cases, name):
    found = bottleneck.verdict(cases[name])
    assert found.interface == "eth0"
    assert found.seen_bytes == pytest.approx(found.predicted_bytes, rel=0.25)


def test_the_slow_rank_and_its_host_are_named(cases):
    (phase,) = bottleneck.verdict(cases["slow rank"]).phases
    assert phase.lag.who == "rank 1 on v100b"


def test_the_advice_for_a_slow_link_is_about_the_network(cases):
    advice = bottleneck.verdict(cases["50 Mbit/s"]).advice
    assert advice
    assert any(one.what.startswith("islands") for one in advice)
    assert any("network" in one.what for one in advice)
    step_s = bottleneck.verdict(cases["50 Mbit/s"]).step_s
    assert all(one.predicted_step_s < step_s for one in advice)

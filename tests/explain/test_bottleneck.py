"""The verdict and its arithmetic, on runs made by hand."""

import dataclasses
import math
from pathlib import Path

import pytest

from hvd_nmt.common.gradient import ring_bytes
from hvd_nmt.explain import bottleneck, exchange_cost
from hvd_nmt.records.record import HostSamples, Interval, Run

GRADIENT_BYTES = 243_523_584
"""of transformer-base in float32"""
STEPS_PER_INTERVAL = 10


def interval(number, input_s=0.0, compute_s=0.4, straggler_s=0.0, communication_s=0.0, **more):
    step_s = input_s + compute_s + straggler_s + communication_s
    return Interval(
        step=number * STEPS_PER_INTERVAL, steps=STEPS_PER_INTERVAL,
        time_s=1000 + number * STEPS_PER_INTERVAL * step_s, step_s=step_s, input_wait_s=input_s,
        compute_s=compute_s, straggler_wait_s=straggler_s, communication_s=communication_s, **more,
    )  # fmt: skip


def run(*, hosts=("a", "a", "b", "b"), telemetry=(), **parts):
    return Run(
        name="x", path=Path("x"), source="hvd_nmt", hosts=hosts, gradient_bytes=GRADIENT_BYTES,
        intervals=tuple(interval(number, **parts) for number in range(1, 6)), telemetry=telemetry,
    )  # fmt: skip


CUT = {"communication_s": 1.2}
STALL = {"input_s": 1.4}


def uneven(*stretches):
    """A run of stretches: (intervals, parts)."""
    parts = [of for number, of in stretches for _ in range(number)]
    rows = tuple(interval(number, **of) for number, of in enumerate(parts, start=1))
    return dataclasses.replace(run(), intervals=rows)


def card(host, bytes_per_s, until_s=1100.0, link_mbit_per_s=None):
    """A host whose eth0 sends evenly and whose lo sends more."""

    def nic(of_second, rate, loopback):
        return {
            "sent_bytes_total": of_second * rate, "sent_MB_per_s": rate / 1e6,
            "is_loopback": loopback, "link_mbit_per_s": link_mbit_per_s,
        }  # fmt: skip

    samples = [
        {"time_s": 1000.0 + second,
         "nics": {"eth0": nic(second, bytes_per_s, False), "lo": nic(second, 1e10, True)}}
        for second in range(int(until_s - 1000))
    ]  # fmt: skip
    return HostSamples(host, {}, samples)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ({}, bottleneck.COMPUTE),
        ({"communication_s": 1.2}, bottleneck.NETWORK),
        ({"communication_s": 0.05}, bottleneck.COMPUTE),
        ({"input_s": 0.4}, bottleneck.INPUT),
        ({"straggler_s": 0.3, "rank_ready_s": (0.4, 0.4, 0.4, 1.6)}, bottleneck.STRAGGLER),
    ],
)
def test_the_largest_wait_gives_the_kind(parts, kind):
    found = bottleneck.verdict(run(**parts))
    assert found.kind == kind
    assert set(found.per_interval) == {kind}
    assert found.sentence.lower().startswith(kind)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_a_rank_that_is_late_because_its_input_is_late_is_an_input_problem():
    found = bottleneck.verdict(run(
        input_s=0.25, straggler_s=0.75, rank_ready_s=(0.4, 0.4, 0.4, 1.4),
        rank_input_wait_s=(0.0, 0.0, 0.0, 1.0),
    ))  # fmt: skip
    assert found.kind == bottleneck.INPUT


def test_the_first_interval_with_the_tracing_of_the_graph_decides_nothing():
    found = bottleneck.verdict(uneven((1, {"compute_s": 60.0}), (4, CUT)))
    assert found.kind == bottleneck.NETWORK
    assert found.step_s == pytest.approx(1.6)


def test_bytes_are_known_twice_and_the_link_from_the_card_at_work():
    """Steps of 1.6 s that send what the ring law says, at the rate the card then has."""
    sent = ring_bytes(GRADIENT_BYTES, 4)
    hosts = tuple(card(host, sent / 1.6) for host in ("a", "b"))
    found = bottleneck.verdict(run(communication_s=1.2, telemetry=hosts))
    assert found.predicted_bytes == sent == 365_285_376
    assert found.seen_bytes == pytest.approx(sent, rel=0.02)
    assert found.interface == "eth0"
    travelling_s = 1.2 + exchange_cost.HIDDEN_SHARE * 0.4
    assert found.link_MB_per_s == pytest.approx(sent / travelling_s / 1e6, rel=0.02)
    assert "1.20 of 1.60 s" in found.sentence


@pytest.mark.parametrize("link_MB_per_s", [12.5, 125.0])
def test_the_step_on_another_link_is_what_is_no_network_and_the_exposed_bytes(link_MB_per_s):
    transfer_s = ring_bytes(GRADIENT_BYTES, 4) / 1e6 / link_MB_per_s
    wanted_s = 0.4 + transfer_s - exchange_cost.HIDDEN_SHARE * 0.4
    assert bottleneck.step_at(run(), link_MB_per_s) == pytest.approx(wanted_s)


def test_a_transfer_that_hides_behind_the_computing_costs_nothing():
    assert bottleneck.step_at(run(), 1e6) == pytest.approx(0.4)


def test_advice_is_sorted_and_only_what_helps():
    found = bottleneck.verdict(run(communication_s=1.2))
    times = [advice.predicted_step_s for advice in found.advice]
    assert times == sorted(times)
    assert max(times) < 1.6
    fewer = next(one for one in found.advice if "float16 on the wire" in one.what)
    hidden_s = exchange_cost.HIDDEN_SHARE * 0.4
    # Half of 1.0 G in place of 1.5 G.
    assert fewer.predicted_step_s == pytest.approx(0.4 + (1.2 + hidden_s) / 3 - hidden_s)
    # The same step on the link that would be as fast.
    sent = ring_bytes(GRADIENT_BYTES, 4) / 1e6
    faster = bottleneck.step_at(run(communication_s=1.2), 3 * sent / (1.2 + hidden_s))
    assert faster == pytest.approx(fewer.predicted_step_s)
    assert bottleneck.verdict(run()).advice == ()


@pytest.mark.parametrize("hosts", [("a",), ("a", "a")])
def test_ranks_of_one_host_send_nothing_over_its_card(hosts):
    found = bottleneck.verdict(run(hosts=hosts, telemetry=(card("a", 1e6),)))
    assert (found.seen_bytes, found.predicted_bytes, found.interface) == (None, None, None)


def test_ranks_of_one_host_are_not_bound_by_a_network():
    found = bottleneck.verdict(run(hosts=("a", "a"), communication_s=1.2))
    assert found.kind == bottleneck.LOCAL == "communication-bound"
    assert set(found.per_interval) == {bottleneck.LOCAL}
    assert "between the ranks of one host; it crosses no network" in found.sentence
    assert found.advice
    assert not any("a network" in one.what for one in found.advice)


def test_steps_without_their_parts_give_no_verdict():
    bare = tuple(Interval(step, 1, None, step_s=1.6) for step in range(1, 5))
    found = bottleneck.verdict(dataclasses.replace(run(), intervals=bare))
    assert found.kind == bottleneck.UNKNOWN
    assert found.step_s == 1.6
    assert "hvd_nmt" in found.sentence
    timeless = tuple(Interval(step, 1, None, loss=3.0) for step in range(1, 5))
    found = bottleneck.verdict(dataclasses.replace(run(), intervals=timeless))
    unknown = "The record of x has no step times, so what bound them cannot be told."
    assert found.sentence == unknown
    assert bottleneck.verdict(dataclasses.replace(run(), intervals=())).kind == bottleneck.UNKNOWN


@pytest.mark.parametrize(
    ("stretches", "kind", "first_sentence"),
    [
        ([(10, {}), (5, CUT)], bottleneck.NETWORK,
         "Compute-bound to step 100, network-bound from step 101 on."),
        ([(4, {}), (2, {"communication_s": 2.6})], bottleneck.NETWORK,
         "Compute-bound to step 40, network-bound from step 41 on."),
        ([(57, {}), (3, CUT)], bottleneck.COMPUTE,
         "Compute-bound to step 570, network-bound from step 571 on."),
        ([(20, CUT), (40, {})], bottleneck.NETWORK,
         "Network-bound to step 200, compute-bound from step 201 on."),
        ([(20, {}), (20, CUT), (20, STALL)], bottleneck.INPUT,
         "Compute-bound to step 200, network-bound from step 201 to 400, input-bound from step 401 "
         "on."),
        ([(9, {}), (1, STALL)] * 6, bottleneck.INPUT,
         "Input-bound: ranks wait 0.14 of 0.54 s of a step for a batch."),
    ],
)  # fmt: skip
def test_a_run_is_judged_by_time_and_what_changed_is_named_with_its_step(
    stretches, kind, first_sentence
):
    found = bottleneck.verdict(uneven(*stretches))
    assert found.sentence.startswith(first_sentence)
    assert found.kind == kind
    assert found.phases[0].first_step == 11  # the first interval holds the tracing
    assert sum(found.shares.values()) == pytest.approx(1)


def test_a_link_cut_in_the_last_third_takes_most_of_the_time():
    """Two thirds of the intervals computed, but more time went into the network."""
    found = bottleneck.verdict(uneven((40, {}), (20, {"communication_s": 2.6})))
    assert found.kind == bottleneck.NETWORK
    assert found.shares["exposed communication"] == pytest.approx(52 / (15.6 + 8 + 52))
    assert "In steps 401 to 600 2.60 of 3.00 s of a step is exposed communication" in found.sentence
    assert "The time of all steps: 0 % waiting for input, 31 % computing, 0 %" in found.sentence


def test_a_stall_that_comes_and_goes_is_counted_by_its_time():
    """14 s every 20 batches: 81 % of the step time, in a twentieth of the intervals."""
    stalls = [(19, {"compute_s": 0.17}), (1, {"compute_s": 0.17, "input_s": 14.0})] * 3
    found = bottleneck.verdict(uneven(*stalls))
    assert found.kind == bottleneck.INPUT
    assert found.shares["waiting for input"] > 0.8
    assert found.sentence.endswith(
        " That comes and goes: 100 % of it is in 3 of 59 intervals, the first of them to step 200."
    )
    assert len(found.phases) == 1


def test_the_tracing_of_every_start_decides_nothing():
    parts = uneven((5, {}), (1, {"communication_s": 60.0}), (5, {})).intervals
    starts = tuple(dataclasses.replace(i, start=int(i.step > 50)) for i in parts)
    found = bottleneck.verdict(dataclasses.replace(run(), intervals=starts))
    assert found.kind == bottleneck.COMPUTE
    assert found.step_s == pytest.approx(0.4)


def test_a_noisy_run_near_the_threshold_has_no_phases():
    noisy = [(1, {"communication_s": 0.1 + 0.05 * math.sin(n * n)}) for n in range(2000)]
    assert len(bottleneck.verdict(uneven(*noisy)).phases) == 1
    slowly = [(1, {"communication_s": 1.2 * n / 600}) for n in range(600)]
    assert len(bottleneck.verdict(uneven(*slowly)).phases) <= 2


@pytest.mark.parametrize(
    ("hosts", "ready", "words"),
    [
        (("a", "b", "b"), (0.4, 0.68, 0.66), "each rank on b computes 0.670 s where those on a "
         "take 0.400 s, 1.7 times as long"),
        (("a", "a", "b", "b"), (0.4, 0.4, 0.4, 1.6), "rank 3 on b computes 1.60 s where the others "
         "take 0.400 s, 4.0 times as long"),
    ],
)  # fmt: skip
def test_the_slow_rank_or_host_is_named_with_its_factor(hosts, ready, words):
    """A slow host that holds most of the ranks is slow against the fastest host."""
    found = bottleneck.verdict(run(hosts=hosts, straggler_s=0.1, rank_ready_s=ready))
    assert found.kind == bottleneck.STRAGGLER
    assert words in found.sentence


@pytest.mark.parametrize("later", [{"rank_ready_s": (1.4, 0.4)}, {"rank_ready_s": (0.4, 0.4)}])
def test_a_slow_rank_is_on_the_host_of_its_own_start(later):
    first = [interval(n, straggler_s=0.5, rank_ready_s=(0.4, 1.4)) for n in range(1, 13)]
    second = [interval(n, straggler_s=0.5, start=1, **later) for n in range(13, 17)]
    hosts = (("a", "b"), ("c", "d"))
    both = dataclasses.replace(run(hosts=hosts[-1]), start_hosts=hosts, intervals=(*first, *second))
    found = bottleneck.verdict(both)
    assert found.kind == bottleneck.STRAGGLER
    assert "rank 1 on b computes 1.40 s" in found.sentence


def test_slow_input_on_one_host_names_that_host():
    found = bottleneck.verdict(run(
        input_s=0.5, straggler_s=0.5,
        rank_ready_s=(0.4, 0.4, 1.4, 1.4), rank_input_wait_s=(0.0, 0.0, 1.0, 1.0),
    ))  # fmt: skip
    assert found.kind == bottleneck.INPUT
    assert "1.00 of 1.40 s of a step for a batch: on b 1.00 s, on a 0.0 ms." in found.sentence


def test_communication_that_the_bytes_do_not_explain_is_not_blamed_on_the_network():
    """Every other interval exposed nothing, so no link and no fewer bytes would save the rest."""
    restless = uneven(*[(1, {"communication_s": 0.5 * (n % 2)}) for n in range(60)])
    found = bottleneck.verdict(restless)
    assert found.kind == bottleneck.NETWORK
    assert found.advice == ()


def test_the_advice_is_about_the_slow_phase():
    found = bottleneck.verdict(uneven((40, {}), (20, CUT)))
    assert found.slow_phase.first_step == 401
    assert found.advice == bottleneck.verdict(uneven((60, CUT))).advice
    assert found.advice[0].what.startswith("islands")
    assert any("network" in one.what for one in found.advice)

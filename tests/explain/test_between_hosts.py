"""Runs under each exchange: bytes predicted and counted, the verdict, and what was gained."""

import dataclasses
from pathlib import Path

import pytest

from hvd_nmt.config.exchange import Exchange
from hvd_nmt.explain import between_hosts, bottleneck, durations
from hvd_nmt.explain.between_hosts import traffic
from hvd_nmt.records.record import HostSamples, Interval, Run, Start

G = 243_523_584
COMPUTE_S = 0.5
ALL_REDUCE_S = 2.0
STEPS = 20
"""of an interval"""
ISLANDS = Exchange("islands", 8)


def intervals(number, exchange_s=None, inside_s=0.0, first=1):
    """Steps that compute, sum gradients within the host, and wait for weights."""
    waited_s = inside_s + (exchange_s or 0.0)
    step_s = COMPUTE_S + waited_s
    return tuple(
        Interval(step=n * STEPS, steps=STEPS, time_s=1000 + n * STEPS * step_s, step_s=step_s,
                 compute_s=COMPUTE_S, input_wait_s=0.0, straggler_wait_s=0.0,
                 communication_s=waited_s, exchange_s=exchange_s)
        for n in range(first, first + number)
    )  # fmt: skip


def run(exchange, rows, hosts=("a", "a", "b", "b")):
    starts = (Start(hosts, exchange.kind, exchange.sync_every, ALL_REDUCE_S),)
    return Run("x", Path("x"), "hvd_nmt", hosts=hosts, gradient_bytes=G, intervals=rows,
               starts=starts)  # fmt: skip


def test_exchanges_that_are_waited_for_make_it_network_bound():
    of = run(ISLANDS, intervals(6, exchange_s=0.75))
    found = bottleneck.verdict(of)
    assert found.kind == bottleneck.NETWORK
    link = between_hosts.step_of(of, of.intervals[-1]).link_MB_per_s(G / 2 / 8)
    assert link == pytest.approx(1.7 * G / 2 / 8 / 0.75 / 1e6)
    assert {"weights exchanged every 32 steps", "a network 10 times as fast"} <= {
        one.what for one in found.advice
    }


def test_sums_within_a_host_are_no_network():
    found = bottleneck.verdict(run(ISLANDS, intervals(6, exchange_s=0.02, inside_s=0.5)))
    assert found.kind == bottleneck.LOCAL
    assert found.network.predicted_bytes == pytest.approx(G / 2 / 8)
    assert bottleneck.verdict(run(ISLANDS, intervals(6, 0.4, 0.1))).kind == bottleneck.NETWORK


@pytest.mark.parametrize(("round_trip_ms", "is_latency"), [(50.0, True), (15.0, False)])
def test_a_link_that_is_limited_by_round_trips_is_not_to_be_faster(round_trip_ms, is_latency):
    """Four for each exchange, and 13 until TCP sends 122 MB with one."""
    samples = [
        {"time_s": 1000.0 + n, "nics": {}, "round_trip_ms": round_trip_ms} for n in range(90)
    ]
    made = run(Exchange("float16"), intervals(6, exchange_s=0.75))
    made = dataclasses.replace(made, telemetry=(HostSamples("a", {}, samples),))
    found = bottleneck.verdict(made)
    assert found.kind == bottleneck.NETWORK
    assert (found.slow_phase.network.round_trip_s is not None) == is_latency
    assert any("10 times as fast" in one.what for one in found.advice) != is_latency


def test_bytes_are_those_of_the_exchange_of_a_start_weighted_by_steps():
    plain, cured = intervals(2), intervals(4, exchange_s=0.0, first=3)
    both = run(ISLANDS, plain + tuple(dataclasses.replace(row, start=1) for row in cured))
    of = dataclasses.replace(both, starts=(Start(both.hosts), *both.starts))
    wanted = (1.5 * G + 4 * G / 16) / 5
    assert between_hosts.predicted_bytes(of, of.intervals[1:]) == pytest.approx(wanted)
    found = bottleneck.verdict(of).network  # never of several settings
    assert found.predicted_bytes == pytest.approx(G / 16)
    assert durations.step_times(of).mean_s == pytest.approx(COMPUTE_S)
    of = run(Exchange("float16"), plain)
    assert between_hosts.predicted_bytes(of, plain) == pytest.approx(G / 2)


def test_a_step_is_compared_with_one_of_plain_training():
    cured = run(ISLANDS, intervals(6, exchange_s=0.02, inside_s=0.01))
    now, plain = bottleneck.verdict(cured).against_plain
    assert now.exchange == ISLANDS
    assert now.total_s == pytest.approx(0.53)
    assert plain.total_s == pytest.approx(COMPUTE_S + ALL_REDUCE_S)
    slower = intervals(6, exchange_s=2.0, inside_s=0.01, first=7)  # than when it was measured
    both = run(ISLANDS, intervals(6, exchange_s=0.02, inside_s=0.01) + slower)
    assert bottleneck.verdict(both).against_plain == (now, plain)


def test_nothing_is_compared_where_nothing_was_measured_or_cured():
    rows = intervals(6, exchange_s=0.0)
    assert bottleneck.verdict(run(Exchange(), rows)).against_plain is None
    unmeasured = Start(("a", "a", "b", "b"), ISLANDS.kind, ISLANDS.sync_every)
    found = dataclasses.replace(run(ISLANDS, rows), starts=(unmeasured,))
    assert bottleneck.verdict(found).against_plain is None


STEP_BYTES = 50e6
"""what two ranks on two hosts send in a step"""
STARTS = ((1000.0, ("a", "b")), (5000.0, ("c", "b")), (9000.0, ("a", "b")))
"""unix time of the first step of each start, and its hosts"""


def resumed_run():
    """Three starts of 60 steps of 2 s, with an idle minute of sampling before and after each."""
    intervals, telemetry = [], {}
    for start, (begin_s, hosts) in enumerate(STARTS):
        intervals += [
            Interval(
                step=60 * start + 10 * n, steps=10, time_s=begin_s + 20.0 * n, step_s=2.0,
                input_wait_s=0.0, compute_s=0.5, straggler_wait_s=0.0, communication_s=1.5,
                start=start,
            )
            for n in range(1, 7)
        ]  # fmt: skip
        for host in hosts:
            samples = telemetry.setdefault(host, [])
            number = 1 + samples[-1]["start"] if samples else 0
            for second in range(-60, 181):
                sent = STEP_BYTES / 2.0 * min(max(second, 0), 120)
                nics = {"eth0": nic(sent), "lo": nic(1e12 * second, True), "eth1": nic(0)}
                samples.append({"time_s": begin_s + second, "start": number, "nics": nics})
    return Run(
        "x", Path("x"), "hvd_nmt", hosts=STARTS[-1][1], gradient_bytes=STEP_BYTES,
        starts=tuple(Start(hosts) for _, hosts in STARTS), intervals=tuple(intervals),
        telemetry=tuple(HostSamples(host, {}, of) for host, of in telemetry.items()),
    )  # fmt: skip


def nic(sent_bytes, is_loopback=False, rate=None):
    return {"sent_bytes_total": sent_bytes, "is_loopback": is_loopback, "link_mbit_per_s": 1000,
            "sent_MB_per_s": rate}  # fmt: skip


def test_bytes_of_a_resumed_run_are_those_of_its_steps():
    run = resumed_run()
    assert traffic(run, run.intervals) == [
        between_hosts.Traffic(host, "eth0", pytest.approx(STEP_BYTES), 125.0) for host in "abc"
    ]
    assert {between_hosts.main_interface(host) for host in run.telemetry} == {"eth0"}
    for alone in run.telemetry:  # each counts for the starts in which it took part
        (found,) = traffic(dataclasses.replace(run, telemetry=(alone,)), run.intervals)
        assert found.bytes_per_step == pytest.approx(STEP_BYTES)


def test_the_verdict_of_a_resumed_run_sees_all_bytes_and_the_whole_link():
    found = bottleneck.verdict(resumed_run())
    assert found.kind == bottleneck.NETWORK
    assert found.network.predicted_bytes == STEP_BYTES
    assert found.network.seen_bytes == pytest.approx(STEP_BYTES)
    assert found.slow_phase.network.link_MB_per_s == pytest.approx(50 / 1.5, rel=0.01)


def test_bytes_between_the_starts_are_nobody_s():
    """A sampler that outlives the training counts what others send; no step sent it."""
    run = resumed_run()
    total, samples = 0.0, []
    for time_s in range(940, 9180):
        in_steps = any(start_s < time_s <= start_s + 120 for start_s, _ in STARTS)
        total += STEP_BYTES / 2.0 if in_steps else 7e6
        samples.append({"time_s": time_s, "start": 0, "nics": {"eth0": nic(total)}})
    run = dataclasses.replace(run, telemetry=(HostSamples("b", {}, samples),))
    (found,) = traffic(run, run.intervals)
    assert found.bytes_per_step == pytest.approx(STEP_BYTES)


def test_without_a_clock_or_samples_nothing_is_known():
    run = resumed_run()
    timeless = [dataclasses.replace(interval, time_s=None) for interval in run.intervals]
    assert traffic(run, timeless) == []
    assert traffic(dataclasses.replace(run, telemetry=()), run.intervals) == []
    assert between_hosts.rates(dataclasses.replace(run, intervals=tuple(timeless))) == []


@pytest.mark.parametrize("back_s", [9.0, 30.0, 60.0])
def test_a_clock_that_is_set_back_changes_no_bytes_per_step(back_s):
    intervals, samples = [], []
    for second in range(121):
        time_s = 1000.0 + second - (back_s if second > 60 else 0.0)
        nics = {"eth0": nic(1e7 * second)}
        samples.append({"time_s": time_s, "start": 0, "nics": nics})
        if second:
            intervals.append(Interval(step=second, steps=1, time_s=time_s, step_s=1.0))
    run = Run("x", Path("x"), "hvd_nmt", telemetry=(HostSamples("a", {}, samples),))
    assert traffic(run, intervals)[0].bytes_per_step == pytest.approx(1e7, rel=0.02)


def test_the_rate_of_an_interval_is_that_of_the_host_that_sent_most():
    def host(name, factor):
        samples = [
            {"time_s": float(t), "gpus": [], "nics": {
                "lo": nic(10**9 * t, True, 999.0), "eth0": nic(t, rate=1.0),
                "ib0": nic(1000 * t, rate=factor * (10.0 if t <= 10 else 30.0)),
            }}
            for t in range(1, 21)
        ]  # fmt: skip
        return HostSamples(name, {}, samples)

    rows = [
        Interval(step, min(step, 10), time_s=float(step), step_s=step_s)
        for step, step_s in ((1, 1.0), (10, 1.0), (20, 0.9))
    ]
    run = Run("r", Path("r"), "hvd_nmt", intervals=tuple(rows),
              telemetry=(host("a", 1.0), host("b", 3.0)))  # fmt: skip
    assert between_hosts.main_interface(run.telemetry[0]) == "ib0"
    assert [rate for _, rate in between_hosts.rates(run)] == [30.0, 90.0]

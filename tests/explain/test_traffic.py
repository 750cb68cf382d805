"""What the network cards carried, on counters that begin anew, over hosts that change."""

import dataclasses
from pathlib import Path

import pytest

from hvd_nmt.explain import bottleneck, traffic
from hvd_nmt.records.record import HostSamples, Interval, Run, Start

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


def nic(sent_bytes, is_loopback=False):
    return {"sent_bytes_total": sent_bytes, "is_loopback": is_loopback, "link_mbit_per_s": 1000}


def test_bytes_of_a_resumed_run_are_those_of_its_steps():
    run = resumed_run()
    found = traffic.sent_per_step(run, run.intervals)
    assert found == traffic.Traffic("eth0", pytest.approx(STEP_BYTES), 125.0)
    assert {traffic.main_interface(host) for host in run.telemetry} == {"eth0"}
    for alone in run.telemetry:  # each counts for the starts in which it took part
        found = traffic.sent_per_step(dataclasses.replace(run, telemetry=(alone,)), run.intervals)
        assert found.bytes_per_step == pytest.approx(STEP_BYTES)


def test_the_verdict_of_a_resumed_run_sees_all_bytes_and_the_whole_link():
    found = bottleneck.verdict(resumed_run())
    assert found.kind == bottleneck.NETWORK
    assert found.predicted_bytes == STEP_BYTES
    assert (found.seen_bytes, found.interface) == (pytest.approx(STEP_BYTES), "eth0")
    assert found.link_MB_per_s == pytest.approx(50 / 1.6, rel=0.01)  # 1.5 s and 0.2 x 0.5 hidden


def test_bytes_between_the_starts_are_nobody_s():
    """A sampler that outlives the training counts what others send; no step sent it."""
    run = resumed_run()
    total, samples = 0.0, []
    for time_s in range(940, 9180):
        in_steps = any(start_s < time_s <= start_s + 120 for start_s, _ in STARTS)
        total += STEP_BYTES / 2.0 if in_steps else 7e6
        samples.append({"time_s": time_s, "start": 0, "nics": {"eth0": nic(total)}})
    run = dataclasses.replace(run, telemetry=(HostSamples("b", {}, samples),))
    found = traffic.sent_per_step(run, run.intervals)
    assert found.bytes_per_step == pytest.approx(STEP_BYTES)


def test_without_a_clock_or_samples_nothing_is_known():
    run = resumed_run()
    timeless = [dataclasses.replace(interval, time_s=None) for interval in run.intervals]
    assert traffic.sent_per_step(run, timeless) is None
    assert traffic.sent_per_step(dataclasses.replace(run, telemetry=()), run.intervals) is None
    assert traffic.rates(dataclasses.replace(run, intervals=tuple(timeless))) == []


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
    assert traffic.sent_per_step(run, intervals).bytes_per_step == pytest.approx(1e7, rel=0.02)

"""The verdict and its arithmetic, on runs made by hand."""

import dataclasses
import math
from pathlib import Path

import pytest

from hvd_nmt.explain import bottleneck
from hvd_nmt.records.record import HostSamples, Interval, Run, Start
from hvd_nmt.reporting.phrases import sentence

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


def run(*, hosts=("a", "a", "b", "b"), **parts):
    return Run(
        name="x", path=Path("x"), source="hvd_nmt", hosts=hosts, gradient_bytes=GRADIENT_BYTES,
        intervals=tuple(interval(number, **parts) for number in range(1, 6)),
    )  # fmt: skip


CUT = {"communication_s": 1.2}
STALL = {"input_s": 1.4}


def uneven(*stretches):
    """A run of stretches: (intervals, parts)."""
    parts = [of for number, of in stretches for _ in range(number)]
    rows = tuple(interval(number, **of) for number, of in enumerate(parts, start=1))
    return dataclasses.replace(run(), intervals=rows)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ({}, bottleneck.COMPUTE),
        ({"communication_s": 1.2}, bottleneck.NETWORK),
        ({"input_s": 0.4}, bottleneck.INPUT),
        ({"straggler_s": 0.3, "rank_ready_s": (0.4, 0.4, 0.4, 1.6)}, bottleneck.STRAGGLER),
        # A wait binds a step of 1 s from a fifth of it on; near that nobody can tell.
        ({"compute_s": 0.77, "communication_s": 0.23}, bottleneck.NETWORK),
        ({"compute_s": 0.79, "communication_s": 0.21}, bottleneck.MIXED),
        ({"compute_s": 0.83, "communication_s": 0.17}, bottleneck.COMPUTE),
        ({"compute_s": 0.77, "input_s": 0.23}, bottleneck.INPUT),
        ({"compute_s": 0.81, "input_s": 0.19}, bottleneck.MIXED),
        ({"compute_s": 1.0, "rank_ready_s": (0.77, 0.77, 0.77, 1.0)}, bottleneck.STRAGGLER),
        ({"compute_s": 1.0, "rank_ready_s": (0.83, 0.83, 0.83, 1.0)}, bottleneck.COMPUTE),
        # It is late because its input is late.
        ({"input_s": 0.25, "straggler_s": 0.75, "rank_ready_s": (0.4, 0.4, 0.4, 1.5),
          "rank_input_wait_s": (0.0, 0.0, 0.0, 1.0)}, bottleneck.INPUT),
        # A pause shows as another wait, and is its cause where it is half of it.
        ({"communication_s": 0.4, "rank_paused_s": (0.0, 0.0, 0.0, 0.3)}, bottleneck.PAUSED),
        ({"communication_s": 1.2, "rank_paused_s": (0.0, 0.0, 0.0, 0.3)}, bottleneck.NETWORK),
        ({"compute_s": 1.0, "rank_paused_s": (0.5, 0.5, 0.0, 0.0)}, bottleneck.PAUSED),
        # The larger of two that bind.
        ({"communication_s": 0.4, "input_s": 0.39}, bottleneck.NETWORK),
        ({"communication_s": 0.39, "input_s": 0.4}, bottleneck.INPUT),
    ],
)  # fmt: skip
def test_the_largest_wait_gives_the_kind(parts, kind):
    found = bottleneck.verdict(run(**parts))
    assert found.kind == kind
    assert sum(found.shares.values()) == pytest.approx(1)


def without_parts(**known):
    bare = tuple(Interval(step, 1, **known) for step in range(1, 5))
    return dataclasses.replace(run(), intervals=bare)


def late(rank):
    """Parts of a step in which one of four ranks computes 0.6 s longer."""
    ready_s = tuple(1.0 if other == rank else 0.4 for other in range(4))
    return {"straggler_s": 0.45, "rank_ready_s": ready_s}


C, N, S = bottleneck.COMPUTE, bottleneck.NETWORK, bottleneck.INPUT  # S: starved
CHANGING = {
    "cut for the last third": ([(10, {}), (5, CUT)], N, [(C, 11, 100), (N, 101, 150)]),
    # Two thirds of the intervals computed, but more time went into the network.
    "cut hard for a longer third": (
        [(40, {}), (20, {"communication_s": 2.6})], N, [(C, 11, 400), (N, 401, 600)]),
    "cut at the very end": ([(57, {}), (3, CUT)], C, [(C, 11, 570), (N, 571, 600)]),
    "healed": ([(20, CUT), (40, {})], N, [(N, 11, 200), (C, 201, 600)]),
    "another rank is late, in steps as long": (
        [(20, late(1)), (20, late(2))], bottleneck.STRAGGLER,
        [(bottleneck.STRAGGLER, 11, 200), (bottleneck.STRAGGLER, 201, 400)]),
    "cut, then starved": (
        [(20, {}), (20, CUT), (20, STALL)], S, [(C, 11, 200), (N, 201, 400), (S, 401, 600)]),
    "starved now and then": ([(9, {}), (1, STALL)] * 6, S, [(S, 11, 600)]),
    "starved seldom": ([(19, {}), (1, {"input_s": 4.0})] * 3, C, [(C, 11, 590)]),
    "islands that exchange seldom and long": (
        [(19, {}), (1, {"communication_s": 4.0, "exchange_s": 4.0})] * 3, N, [(N, 11, 600)]),
    "cut, then cut harder": (
        [(20, CUT), (20, {"communication_s": 4.0})], N, [(N, 11, 200), (N, 201, 400)]),
    "cut harder for a time": (
        [(20, CUT), (20, {"communication_s": 4.0}), (20, CUT)], N,
        [(N, 11, 200), (N, 201, 400), (N, 401, 600)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGING)
def test_a_run_is_judged_by_time_and_what_changed_is_named_with_its_step(name):
    """The first interval, with the tracing of the graph, is in no phase."""
    stretches, kind, phases = CHANGING[name]
    found = bottleneck.verdict(uneven(*stretches))
    assert found.kind == kind
    assert [(of.kind, of.first_step, of.last_step) for of in found.phases] == phases
    assert sum(found.shares.values()) == pytest.approx(1)


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
    assert len(bottleneck.verdict(uneven(*slowly)).phases) <= 5


def test_a_stall_in_which_ranks_were_paused_names_them():
    """A pause is counted one step later."""
    row = {"rank_paused_s": (0.0, 0.0, 4.0, 4.0)}
    made = uneven((9, {}), (1, {"communication_s": 4.0}), (1, row), (9, {}))
    found = bottleneck.verdict(made)
    assert [stall.part for stall in found.stalls] == ["pauses of ranks 2, 3 on b"]
    assert found.kind == bottleneck.COMPUTE


SLOW_HOST = {"hosts": ("a", "b", "b"), "rank_ready_s": (0.4, 0.68, 0.66), "straggler_s": 0.1}
"""it holds most of the ranks, so only against the fastest host is it slow"""
SLOW_RANK = {"rank_ready_s": (0.4, 0.4, 0.4, 1.6), "straggler_s": 0.1}
SLOW_INPUT = {"input_s": 0.5, "straggler_s": 0.5, "rank_ready_s": (0.4, 0.4, 1.4, 1.4),
              "rank_input_wait_s": (0.0, 0.0, 1.0, 1.0)}  # fmt: skip


@pytest.mark.parametrize("later", [{"rank_ready_s": (1.4, 0.4)}, {"rank_ready_s": (0.4, 0.4)}])
def test_a_slow_rank_is_on_the_host_of_its_own_start(later):
    first = [interval(n, straggler_s=0.5, rank_ready_s=(0.4, 1.4)) for n in range(1, 13)]
    second = [interval(n, straggler_s=0.5, start=1, **later) for n in range(13, 17)]
    hosts = (("a", "b"), ("c", "d"))
    starts = tuple(map(Start, hosts))
    both = dataclasses.replace(run(hosts=hosts[-1]), starts=starts, intervals=(*first, *second))
    found = bottleneck.verdict(both)
    assert found.kind == bottleneck.STRAGGLER
    assert "aiting for rank 1 on b took" in sentence(found, both)
    assert found.slow_phase.lag.compute_s == pytest.approx(1.4)


def test_what_is_said_of_each_bottleneck(golden_page):
    made = {
        "computes": run(), "network": run(**CUT), "input": run(**STALL),
        "one host": run(hosts=("a", "a"), **CUT), "slow host": run(**SLOW_HOST),
        "slow rank": run(**SLOW_RANK), "slow input on one host": run(**SLOW_INPUT),
        "no parts": without_parts(step_s=1.6), "no times": without_parts(loss=3.0),
        "nothing": dataclasses.replace(run(), intervals=()),
    }  # fmt: skip
    made |= {name: uneven(*stretches) for name, (stretches, *_) in CHANGING.items()}
    said = [f"# {name}\n{sentence(bottleneck.verdict(of), of)}\n" for name, of in made.items()]
    golden_page("verdicts.txt", "\n".join(said))


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


def crowded(sent_bytes, card_mbit_per_s):
    """A run that waits for its exchange, on hosts whose processors are full."""
    made, samples = run(**CUT), []
    for number in range(9):
        time_s, total = 1000.0 + 10 * number, sent_bytes / 1.6 * 10 * number
        nic = {"is_loopback": False, "link_mbit_per_s": card_mbit_per_s,
               "sent_MB_per_s": sent_bytes / 1.6e6, "received_MB_per_s": sent_bytes / 1.6e6,
               "sent_bytes_total": total, "received_bytes_total": total}  # fmt: skip
        samples.append({"kind": "sample", "time_s": time_s, "nics": {"eth0": nic},
                        "cpu_percent": 97.0})  # fmt: skip
    hosts = tuple(HostSamples(host, {"kind": "host", "host": host}, samples) for host in "ab")
    return dataclasses.replace(made, telemetry=hosts)


def test_full_processors_are_to_blame_only_where_the_link_carries_much():
    """Without processors an exchange carries some hundredth of a fast card, not a thousandth."""
    assert bottleneck.verdict(crowded(60e6, 10_000)).kind == bottleneck.PROCESSORS  # 50 MB/s
    assert bottleneck.verdict(crowded(6e6, 10_000)).kind == bottleneck.NETWORK  # 5 of 1,250 MB/s
    assert bottleneck.verdict(crowded(6e6, 1_000)).kind == bottleneck.PROCESSORS  # 5 of 125 MB/s
    without_wait = dataclasses.replace(run(), telemetry=crowded(60e6, 10_000).telemetry)
    assert bottleneck.verdict(without_wait).kind == bottleneck.COMPUTE


@pytest.mark.parametrize(("own_percent", "kind"), [(20.0, "SHARED"), (90.0, "COMPUTE")])
def test_other_programs_on_full_processors_are_named(own_percent, kind):
    busy = crowded(60e6, 10_000).telemetry
    for host in busy:
        for sample in host.samples:
            sample["own_cpu_percent"] = own_percent
    made = dataclasses.replace(run(communication_s=0.05), telemetry=busy)
    found = bottleneck.verdict(made)
    assert found.kind == getattr(bottleneck, kind)
    whats = [advice.what for advice in found.advice]
    assert ("no other program on the processors" in whats) is (kind == "SHARED")
    said = sentence(found, made)
    assert ("77 % of the processors for other programs" in said) is (kind == "SHARED")
    restless = uneven(*[(1, {"communication_s": 2.0 * (n % 2)}) for n in range(5)])
    restless = dataclasses.replace(restless, telemetry=busy)  # waits more than it computes
    assert bottleneck.verdict(restless).kind == bottleneck.MIXED

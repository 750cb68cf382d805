"""What bound the steps of a run, in words: of a `Verdict` the answer with its numbers."""

from __future__ import annotations

from hvd_nmt.common.units import data_size, percent, step_duration
from hvd_nmt.config.exchange import PLAIN
from hvd_nmt.explain.bottleneck import INPUT, LOCAL, NETWORK, STRAGGLER, Phase, Verdict
from hvd_nmt.explain.exchange_cost import name_of
from hvd_nmt.records.record import Run


def sentence(verdict: Verdict, run: Run) -> str:
    """The answer; its first sentence names the steps at which it changed, if it did."""
    slow = verdict.slow_phase
    if slow is None:
        return _why_unknown(verdict, run)
    exchange = run.start_of(slow.step).exchange
    reason, exchanged = _reason(slow, verdict, exchange == PLAIN), ""
    if exchange != PLAIN and len(set(run.hosts_of(slow.step))) > 1:
        exchanged = f" Between hosts: {name_of(exchange)}."
    if len(verdict.phases) == 1:
        return f"{slow.kind.capitalize()}: {reason}.{_rare(verdict)}{exchanged}"
    first, *between, last = verdict.phases
    changes = [
        f"{first.kind.capitalize()} to step {first.last_step:,}",
        *(f"{p.kind} from step {p.first_step:,} to {p.last_step:,}" for p in between),
        f"{last.kind} from step {last.first_step:,} on",
    ]
    times = ", ".join(f"{percent(share)} {name}" for name, share in verdict.shares.items())
    return (
        f"{', '.join(changes)}. In steps {slow.first_step:,} to {slow.last_step:,} {reason}. "
        f"The time of all steps: {times}.{exchanged}"
    )


def _why_unknown(verdict: Verdict, run: Run) -> str:
    if not run.intervals:
        return "Nobody can tell yet: no step was recorded."
    if verdict.step_s is None:
        return f"The record of {run.name} has no step times, so what bound them cannot be told."
    return (
        f"The record of {run.name} has the time of its steps but not what they waited for, so what "
        "bound them can only be guessed; train with hvd_nmt to have it measured."
    )


def _rare(verdict: Verdict) -> str:
    rare = verdict.rare
    if rare is None:
        return ""
    return (
        f" That comes and goes: {percent(rare.share)} of it is in {rare.intervals:,} of "
        f"{rare.of_intervals:,} intervals, the first of them to step {rare.first_step:,}."
    )


def _reason(phase: Phase, verdict: Verdict, is_plain: bool) -> str:
    """The numbers behind the kind of a phase."""
    step, lag, step_s = phase.step, phase.lag, phase.step.step_s or 0.0
    if phase.kind == NETWORK:
        text = f"{_part(step.communication_s, step_s)} of a step is exposed communication"
        if verdict.predicted_bytes:
            law = "by the ring law" if is_plain else "as predicted"
            text += f"; {data_size(verdict.predicted_bytes)} per host and step {law}"
        if verdict.seen_bytes:
            text += f", {data_size(verdict.seen_bytes)} seen on {verdict.interface}"
        if verdict.link_MB_per_s:
            text += f", at about {verdict.link_MB_per_s:.1f} MB/s while they travel"
        return text
    if phase.kind == LOCAL:
        return (
            f"{_part(step.communication_s, step_s)} of a step is exposed communication "
            "between the ranks of one host; it crosses no network"
        )
    if phase.kind == INPUT:
        text = f"ranks wait {_part(phase.input_s, step_s)} of a step for a batch"
        hosts = [f"on {host} {step_duration(wait_s)}" for host, wait_s in phase.host_input_s]
        return f"{text}: {', '.join(hosts)}" if hosts else text
    if phase.kind == STRAGGLER:
        if not lag.who:
            return f"ranks wait {_part(lag.seconds, step_s)} of a step for the slowest"
        return (
            f"{lag.who} computes {step_duration(lag.compute_s)} where {lag.others} take "
            f"{step_duration(lag.others_compute_s)}, "
            f"{lag.compute_s / max(lag.others_compute_s, 1e-9):.1f} times as long, in a step of "
            f"{step_duration(step_s)}"
        )
    return (
        f"{_part(step.compute_s, step_s)} of a step is computing, "
        f"{step_duration(step.communication_s or 0.0)} exposed communication, "
        f"{step_duration(step.straggler_wait_s or 0.0)} waiting for whichever rank is last, "
        f"{step_duration(step.input_wait_s or 0.0)} waiting for input"
    )


def _part(seconds: float | None, step_s: float) -> str:
    """1.20 of 1.60 s, 12.0 of 28.0 ms."""
    seconds = seconds or 0.0
    if step_s >= 0.1:
        return f"{seconds:.2f} of {step_s:.2f} s"
    return f"{1000 * seconds:.1f} of {1000 * step_s:.1f} ms"

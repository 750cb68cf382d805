"""The questions about the network, and in words what bound the steps of a run."""

from typing import TYPE_CHECKING

from hvd_nmt.common.units import count, data_size, percent, step_duration
from hvd_nmt.config.exchange import PLAIN
from hvd_nmt.explain import between_hosts, machines
from hvd_nmt.explain.bottleneck import INPUT, LOCAL, NETWORK, STRAGGLER, Phase, Verdict
from hvd_nmt.explain.exchange_cost import ISLANDS_PRICE, link_sentence, name_of, ring_bytes
from hvd_nmt.explain.machines import Estimate
from hvd_nmt.records.openseq2seq_log import UNKNOWN_HOST
from hvd_nmt.records.record import Run
from hvd_nmt.reporting.answer import Answer, Table

if TYPE_CHECKING:
    from hvd_nmt.reporting.questions import RunSummary

_ALONE = "No: one rank has nobody to exchange gradients with."


def sentence(verdict: Verdict, run: Run) -> str:
    """The verdict in words; its first sentence names the steps at which it changed, if it did."""
    slow = verdict.slow_phase
    if slow is None:
        if not run.intervals:
            return "Nobody can tell yet: no step was recorded."
        known = "no step times" if verdict.step_s is None else "step times, but not their parts"
        return (
            f"The record of {run.name} has {known}, so what bound the steps cannot be told; train "
            "with hvd_nmt to have it measured."
        )
    exchange, exchanged = run.start_of(slow.step).exchange, ""
    reason = _reason(slow, verdict, exchange == PLAIN)
    if exchange != PLAIN and len(set(run.hosts_of(slow.step))) > 1:
        exchanged = f" Between hosts: {name_of(exchange)}."
    if len(verdict.phases) == 1:
        return f"{slow.kind.capitalize()}: {reason}.{exchanged}"
    phases = ", ".join(
        f"{phase.kind} in steps {phase.first_step:,} to {phase.last_step:,}"
        for phase in verdict.phases
    )
    times = ", ".join(f"{percent(share)} {name}" for name, share in verdict.shares.items())
    return (
        f"{phases.capitalize()}. In steps {slow.first_step:,} to {slow.last_step:,} {reason}. The "
        f"time of all steps: {times}.{exchanged}"
    )


def _reason(phase: Phase, verdict: Verdict, is_plain: bool) -> str:
    """The numbers behind the kind of a phase."""
    step, lag, step_s = phase.step, phase.lag, phase.step.step_s or 0.0
    exposed = f"{_part(step.communication_s, step_s)} of a step is exposed communication"
    if phase.kind == LOCAL:
        return f"{exposed} between the ranks of one host; it crosses no network"
    if phase.kind == NETWORK:
        if verdict.predicted_bytes:
            law = "by the ring law" if is_plain else "as predicted"
            exposed += f"; {data_size(verdict.predicted_bytes)} per host and step {law}"
        if verdict.seen_bytes:
            exposed += f", {data_size(verdict.seen_bytes)} seen on {verdict.interface}"
        if verdict.link_MB_per_s:
            exposed += f", at about {verdict.link_MB_per_s:.1f} MB/s while they travel"
        return exposed
    if phase.kind == INPUT:
        hosts = [f"on {host} {step_duration(wait_s)}" for host, wait_s in phase.host_input_s]
        where = f": {', '.join(hosts)}" if hosts else ""
        return f"ranks wait {_part(phase.input_s, step_s)} of a step for a batch{where}"
    if phase.kind == STRAGGLER:
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


def network_bound(summary: "RunSummary") -> Answer:
    """Question 5."""
    run, verdict, slow = summary.record, summary.verdict, summary.verdict.slow_phase
    if slow is None:
        return _unmeasured_network(summary)
    kinds = {phase.kind for phase in verdict.phases}
    short = "Yes." if verdict.kind == NETWORK else _ALONE if _is_alone(run) else "No."
    if NETWORK in kinds and len(kinds) > 1:
        short = "For a part of the run."
    evidence = []
    if verdict.predicted_bytes:
        text = f"Predicted: {data_size(verdict.predicted_bytes)} sent by each host in a step"
        if verdict.seen_bytes:
            off = 100 * (verdict.seen_bytes / verdict.predicted_bytes - 1)
            seen = data_size(verdict.seen_bytes)
            text += f"; seen on {verdict.interface}: {seen} ({off:+.1f} %)"
        evidence.append(f"{text}.")
    if run.ranks > 1 and len(set(run.hosts)) == 1:
        evidence.append("All ranks are on one host: their bytes cross no network card.")
    if slow.kind == NETWORK:
        said = link_sentence(between_hosts.step_of(run, slow.step))
        evidence.append(f"By these steps {said}.")
    if verdict.kind != NETWORK and verdict.link_MB_per_s:
        evidence.append(f"By its own word the link allows {verdict.link_MB_per_s:.1f} MB/s.")
    if verdict.against_plain is not None:
        now, plain = verdict.against_plain
        price = f"; {ISLANDS_PRICE}" if now.exchange.islands else ""
        evidence.append(
            f"With {name_of(now.exchange)} a step took {step_duration(now.total_s)}; with the "
            f"plain all-reduce, which takes {step_duration(plain.transfer_s)} here, it would take "
            f"{step_duration(plain.total_s)} (predicted): {plain.total_s / now.total_s:.1f} times "
            f"as fast{price}."
        )
    step_s = slow.step.step_s or 0.0
    rows = tuple(
        (one.what, step_duration(one.predicted_step_s), f"{step_s / one.predicted_step_s:.2f} x",
         one.why)
        for one in verdict.advice
    )  # fmt: skip
    title = f"What would make a step of {step_duration(step_s)} shorter (predicted, for equal work)"
    advice = (Table(title, ("change", "step", "speed", "why"), rows),) if rows else ()
    return Answer(f"{short} {summary.sentence}", tuple(evidence), advice)


def _is_alone(run: Run) -> bool:
    """One rank, and no sign of others: a log of Horovod may show one rank of many."""
    return len(run.hosts) == 1 and not run.config.get("openseq2seq", {}).get("use_horovod")


def _unmeasured_network(summary: "RunSummary") -> Answer:
    run, step_s = summary.record, summary.verdict.step_s
    if _is_alone(run):
        return Answer(_ALONE)
    evidence = [
        "Missing: how long each step waited for its gradients, and the rate of the network card. "
        "hvd_nmt measures both; beside other programs record `sar -n DEV 1`."
    ]
    if run.gradient_bytes and step_s:
        ranks = run.ranks if run.ranks > 1 else 4
        sent = ring_bytes(run.gradient_bytes, ranks)
        evidence.append(
            f"A ring over {ranks} ranks sends {data_size(sent)} per host and step "
            f"({data_size(run.gradient_bytes)} of gradients); in {step_duration(step_s)} that is "
            f"{sent / 1e6 / step_s:.1f} MB/s in the mean: if the link between the hosts carries "
            "little more, it was the bottleneck."
        )
    return Answer(summary.sentence, tuple(evidence), known=False)


def step_and_traffic(summary: "RunSummary") -> Answer:
    """Question 11."""
    run, verdict = summary.record, summary.verdict
    if _is_alone(run) or (len(set(run.hosts)) == 1 and UNKNOWN_HOST not in run.hosts):
        return Answer(
            "Not at all: all ranks are on one host, and nothing crosses a network.",
            (f"{count(run.ranks, 'rank')} on {run.hosts[0]}.",),
        )
    found = between_hosts.rates(run)
    if len(found) < 4:
        seen = f"{count(len(found), 'interval')} with both" if run.telemetry else "no telemetry"
        return Answer(
            f"The record cannot tell: it has {seen}, and at least 4 intervals with step time and "
            "samples of the network card of each host are needed. hvd_nmt records both (telemetry, "
            "training.log_every); beside other programs record `sar -n DEV 1` with a clock.",
            known=False,
        )
    rates = [rate for _, rate in found]
    text = f"A host sent {min(rates):.1f} to {max(rates):.1f} MB/s"
    if related := machines.pearson([(rate, i.step_s or 0.0) for i, rate in found]):
        text += f"; correlation with step time {_words(related)}, {len(found)} intervals"
    sent = verdict.seen_bytes or verdict.predicted_bytes
    per_step = f"{data_size(sent)} a step" if sent else "the same bytes in each step"
    mean = " on average" if any(start.exchange.islands for start in run.starts) else ""
    evidence = [
        f"Every host sends {per_step}{mean}, whatever happens, so mean rate x step time is "
        "constant: slow steps show a low rate whether or not the network is their cause. That part "
        "of the relation is arithmetic and no evidence."
    ]
    waits = [(i.communication_s, i.step_s or 0.0) for i, _ in found
             if i.communication_s is not None]  # fmt: skip
    if cause := machines.pearson(waits):
        evidence.append(
            f"The exposed communication tells more: its correlation with step time is "
            f"{_words(cause)}, so it explains {percent(cause.value**2)} of the variation of the "
            "step time."
        )
    return Answer(f"{text}. {summary.sentence}", tuple(evidence))


def _words(found: Estimate) -> str:
    return f"r = {found.value:.2f} (95 %: {found.low:.2f} to {found.high:.2f})"

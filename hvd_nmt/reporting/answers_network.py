"""The questions about the network: was it the bottleneck, and how does step time relate to it."""

from __future__ import annotations

from collections import Counter

from hvd_nmt.common.gradient import ring_bytes
from hvd_nmt.common.units import count, data_size, percent, step_duration
from hvd_nmt.config.exchange import PLAIN
from hvd_nmt.explain import between_hosts, bottleneck, machines, traffic
from hvd_nmt.explain.between_hosts import AgainstPlain
from hvd_nmt.explain.exchange_cost import SYNC_EVERY, link_sentence, name_of
from hvd_nmt.explain.intervals import settled
from hvd_nmt.records.openseq2seq_log import UNKNOWN_HOST
from hvd_nmt.records.record import Interval, Run
from hvd_nmt.reporting.answer import Answer, Facts, Table

_ALONE = "No: one rank has nobody to exchange gradients with."


def network_bound(facts: Facts) -> Answer:
    """Question 5."""
    run, verdict = facts.run, facts.verdict
    if verdict.kind == bottleneck.UNKNOWN:
        return _unmeasured_network(facts)
    kinds = {phase.kind for phase in verdict.phases}
    short = "Yes." if verdict.kind == bottleneck.NETWORK else _ALONE if _is_alone(run) else "No."
    if bottleneck.NETWORK in kinds and len(kinds) > 1:
        short = "For a part of the run."
    evidence = []
    if verdict.predicted_bytes:
        text = f"Predicted: {data_size(verdict.predicted_bytes)} sent by each host in a step"
        if verdict.seen_bytes:
            off = 100 * (verdict.seen_bytes / verdict.predicted_bytes - 1)
            seen = data_size(verdict.seen_bytes)
            text += f"; seen on {verdict.interface}: {seen} ({off:+.1f} %)"
        evidence.append(text + ".")
    if run.ranks > 1 and len(set(run.hosts)) == 1:
        evidence.append("All ranks are on one host: their bytes cross no network card.")
    evidence += _link(facts)
    evidence += _gained(verdict.against_plain)
    if verdict.kind != bottleneck.NETWORK and verdict.link_MB_per_s:
        evidence.append(f"By its own word the link allows {verdict.link_MB_per_s:.1f} MB/s.")
    if len(verdict.per_interval) > 1:
        kinds_seen = Counter(verdict.per_interval).items()
        each = ", ".join(f"{number:,} {kind}" for kind, number in kinds_seen)
        evidence.append(f"Interval by interval: {each}.")
    return Answer(f"{short} {facts.sentence}", tuple(evidence), _advice(verdict))


def _link(facts: Facts) -> list[str]:
    """What the link costs, where the run waits for it, and what else it would give."""
    run, slow = facts.run, facts.verdict.slow_phase
    if slow is None or slow.kind != bottleneck.NETWORK:
        return []
    waited_s = between_hosts.waited_s(run, slow.step)
    step = between_hosts.step_of(run, slow.step, waited_s).under(PLAIN)
    said = link_sentence(
        step.ranks_by_host, step.transfer_s, step.latency_s, step.compute_s, SYNC_EVERY
    )
    return [f"By these steps {said}."]


def _gained(found: AgainstPlain | None) -> list[str]:
    """What the exchange gained against plain training, and what of its price is known."""
    if found is None:
        return []
    sentences = [
        f"With {name_of(found.exchange)} a step took {step_duration(found.step_s)}; with the plain "
        f"all-reduce, which takes {step_duration(found.all_reduce_s)} here, it would take "
        f"{step_duration(found.plain_step_s)} (predicted): {found.times_as_fast:.1f} times as fast."
    ]
    if found.exchange.islands:
        if plain := found.after_as_long():
            step, loss = plain
            last = max(found.losses)
            sentences.append(
                f"The validation loss at step {last:,} is {found.losses[last]:.4f}. In the same "
                f"time plain training would have come to step {step:,} (predicted); this run had "
                f"{loss:.4f} there."
            )
        sentences.append(
            "The updates of islands are others than those of plain training, whose own losses are "
            "not known unless it is trained too; docs/slow-links.md has both side by side for "
            "other runs."
        )
    return sentences


def _advice(verdict: bottleneck.Verdict) -> tuple[Table, ...]:
    if not verdict.advice or verdict.slow_phase is None:
        return ()
    step_s = verdict.slow_phase.step.step_s or 0.0
    rows = tuple(
        (one.what, step_duration(one.predicted_step_s), f"{step_s / one.predicted_step_s:.2f} x",
         one.why)
        for one in verdict.advice
    )  # fmt: skip
    title = f"What would make a step of {step_duration(step_s)} shorter (predicted, for equal work)"
    return (Table(title, ("change", "step", "speed", "why"), rows),)


def _is_alone(run: Run) -> bool:
    """One rank, and no sign of others: a log of Horovod may show one rank of many."""
    return len(run.hosts) == 1 and not run.config.get("openseq2seq", {}).get("use_horovod")


def _unmeasured_network(facts: Facts) -> Answer:
    run, verdict = facts.run, facts.verdict
    if _is_alone(run):
        return Answer(_ALONE)
    evidence = []
    if run.gradient_bytes:
        ranks = run.ranks if run.ranks > 1 else 4
        sent = ring_bytes(run.gradient_bytes, ranks)
        text = (
            f"A ring over {ranks} ranks sends {data_size(sent)} per host and step "
            f"({data_size(run.gradient_bytes)} of gradients)"
        )
        if verdict.step_s:
            text += (
                f"; in {step_duration(verdict.step_s)} that is {sent / 1e6 / verdict.step_s:.1f} "
                "MB/s in the mean: if the link between the hosts carries little more, it was the "
                "bottleneck"
            )
        evidence.append(text + ".")
    evidence.append(
        "Missing: how long each step waited for its gradients, and the rate of the network card. "
        "hvd_nmt measures both; beside other programs record `sar -n DEV 1`."
    )
    return Answer(facts.sentence, tuple(evidence), known=False)


def step_and_traffic(facts: Facts) -> Answer:
    """Question 11."""
    run = facts.run
    if _is_alone(run) or (len(set(run.hosts)) == 1 and UNKNOWN_HOST not in run.hosts):
        return Answer(
            "Not at all: all ranks are on one host, and nothing crosses a network.",
            (f"{count(run.ranks, 'rank')} on {run.hosts[0]}.",),
        )
    pairs = traffic_pairs(facts)
    if len(pairs) < 4:
        seen = f"{count(len(pairs), 'interval')} with both" if run.telemetry else "no telemetry"
        return Answer(
            f"The record cannot tell: it has {seen}, and at least 4 intervals with step time and "
            "samples of the network card of each host are needed. hvd_nmt records both (telemetry, "
            "training.log_every); beside other programs record `sar -n DEV 1` with a clock.",
            known=False,
        )
    related = machines.pearson(pairs)
    rates = sorted(rate for rate, _ in pairs)
    sent = facts.verdict.seen_bytes or facts.verdict.predicted_bytes
    per_step = f"{data_size(sent)} a step" if sent else "the same bytes in each step"
    mean = " on average" if any(start.exchange.islands for start in run.starts) else ""
    evidence = [
        f"Every host sends {per_step}{mean}, whatever happens, so mean rate x step time is "
        "constant: slow steps show a low rate whether or not the network is their cause. That part "
        "of the relation is arithmetic and no evidence."
    ]
    text = f"A host sent {rates[0]:.1f} to {rates[-1]:.1f} MB/s"
    if related:
        text += (
            f"; correlation with step time r = {related.r:.2f} (95 %: {related.low:.2f} to "
            f"{related.high:.2f}, {related.n} intervals)"
        )
    waits = [(i.communication_s, i.step_s) for i, _ in _rates(facts)
             if i.communication_s is not None and i.step_s is not None]  # fmt: skip
    cause = machines.pearson(waits)
    if cause:
        evidence.append(
            f"The exposed communication tells more: its correlation with step time is "
            f"r = {cause.r:.2f} (95 %: {cause.low:.2f} to {cause.high:.2f}), so it explains "
            f"{percent(cause.r**2)} of the variation of the step time."
        )
    return Answer(f"{text}. {facts.sentence}", tuple(evidence))


def traffic_pairs(facts: Facts) -> list[tuple[float, float]]:
    """MB/s sent by a host and seconds per step, for each interval that counts and has both."""
    return [(rate, i.step_s) for i, rate in _rates(facts) if i.step_s is not None]


def _rates(facts: Facts) -> list[tuple[Interval, float]]:
    counted = {interval.step for interval in settled(facts.run.intervals)}
    return [(i, rate) for i, rate in traffic.rates(facts.run) if i.step in counted]

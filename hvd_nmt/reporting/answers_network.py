"""The questions about the network."""

from collections.abc import Iterable
from operator import attrgetter

from hvd_nmt.common.units import count, data_size, duration, link_speed, percent, step_duration
from hvd_nmt.explain import between_hosts, bottleneck, machines
from hvd_nmt.explain.bottleneck import COMPUTE, NETWORK, PROCESSORS, Phase, Verdict
from hvd_nmt.explain.exchange_cost import ISLANDS_PRICE, name_of, ring_bytes
from hvd_nmt.explain.intervals import by_settings, last_settings
from hvd_nmt.records.openseq2seq_log import UNKNOWN_HOST
from hvd_nmt.records.record import Run
from hvd_nmt.reporting.answer import Answer, Table
from hvd_nmt.reporting.run_facts import RunFacts
from hvd_nmt.reporting.verdict_sentence import (
    MOST_PHASES,
    computing,
    in_steps,
    is_alone,
    sentence,
    settings,
    span,
)

_ALONE = "No: one rank exchanges no gradients."
_MOST_STALLS = 5  # that are listed
_USUAL_OFF = 5.0  # percent, which need no explanation


def each_setting(run: Run) -> tuple[Table, ...]:
    """The steps under each of several settings; () where they never changed."""
    if len(parts := by_settings(run)) < 2:
        return ()
    rows = tuple(
        (*settings(part), step_duration(of.step_s or 0.0), sentence(of, part))
        for part, of in zip(parts, map(bottleneck.verdict, parts), strict=True)
    )
    title = "Settings changed between starts; nothing above is a mean over several"
    head = ("steps", "settings", "mean step", "what took the time")
    return (Table(title, head, rows),)


def _details(phase: Phase, verdict: Verdict) -> Iterable[str]:
    steps, lag = span(phase), phase.lag
    if len(verdict.phases) > 1:
        rest = "" if phase.kind == COMPUTE else f", computing {computing(phase)}"
        yield f"{in_steps(phase)}{rest}; a step took {step_duration(phase.step.step_s or 0.0)}."
    if phase.kind == bottleneck.STRAGGLER:
        yield (
            f"In {steps} {lag.who} computes {step_duration(lag.compute_s)} in each step. "
            f"{lag.others.capitalize()} take {step_duration(lag.others_compute_s)}, and wait."
        )
    if phase.kind == NETWORK and phase.round_trip_s is not None:
        yield (
            f"In {steps} a packet and its answer took {step_duration(phase.round_trip_s)}: a "
            "faster link brings little, fewer and larger exchanges do."
        )
    if phase.kind == bottleneck.INPUT and phase.host_input_s:
        hosts = ", ".join(f"on {host} {step_duration(wait)}" for host, wait in phase.host_input_s)
        yield f"In {steps} a step waits for input {hosts}."
    if phase.kind == bottleneck.SHARED:
        yield (
            f"In {steps} the processors were {phase.busy_percent:.0f} % busy, "
            f"{phase.others_percent:.0f} % for other programs: end them, or run elsewhere."
        )
    if phase.kind == PROCESSORS:
        yield (
            f"In {steps} the processors were {phase.busy_percent:.0f} % busy, and the card reports "
            "a far faster link. End other programs there, or run fewer ranks on each host. If "
            "something slows the link behind the card, it is a limit, too; iperf3 shows it."
        )


def network_bound(facts: RunFacts) -> Answer:
    """Each rank measures when its gradients are ready and when their sum arrives. The time after
    the slowest rank is ready is exposed communication. A part of the step limits it if it takes
    more than 20 %. For the slowest rank, that part is its extra computing time against the typical
    rank; for a slow host, against the fastest host. The first interval of each start does not
    count. A phase ends where a part of the step changes for good. Predicted bytes of each host in a
    step: the ring law, 2 (N-1)/N x gradient bytes (Patarasuk and Yuan 2009). Other exchanges have
    other laws (explain/exchange_cost.py). Seen bytes: the counter of the network card.
    """
    run, verdict, slow = last_settings(facts.record), facts.verdict, facts.verdict.slow_phase
    if slow is None:
        return _unmeasured_network(facts)
    kinds = {phase.kind for phase in verdict.phases}
    short = "Yes." if verdict.kind == NETWORK else _ALONE if is_alone(run) else "No."
    if verdict.kind == PROCESSORS:
        short = "Probably not."
    if NETWORK in kinds and len(kinds) > 1:
        short = "Partly."
        if len(verdict.phases) > MOST_PHASES and slow.kind != NETWORK:
            of_network = [phase for phase in verdict.phases if phase.kind == NETWORK]
            short += f" {in_steps(max(of_network, key=attrgetter('seconds')))}."
    elif verdict.kind == bottleneck.MIXED and slow.wait == NETWORK:
        short = "Perhaps."
    evidence = [said for phase in verdict.phases for said in _details(phase, verdict)]
    exchange = run.start_of(slow.step).exchange
    if exchange.kind != "float32" and len(set(run.hosts_of(slow.step))) > 1:
        evidence.append(f"Between the hosts: {name_of(exchange)}.")
    evidence += _stalls(verdict)
    other = _other_program(verdict, run)
    evidence += _bytes(verdict, other)
    if run.ranks > 1 and len(set(run.hosts)) == 1:
        evidence.append("All ranks are on one host: their bytes cross no network card.")
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
    if not rows and kinds == {COMPUTE}:
        evidence.append(
            "No wait is a limit: more GPUs or hosts, a faster device or a smaller model shorten "
            "these steps; so do 16 bits (training.precision) where they are not used yet."
        )
    where = f" ({span(slow)})" * (len(verdict.phases) > 1)
    title = (
        f"What would make a step of {step_duration(step_s)}{where} shorter, predicted for equal "
        "work"
    )
    advice = [Table(title, ("change", "step", "speed", "why"), rows)] if rows else []
    tables = (*advice, *each_setting(facts.record))
    also = " Probably another program sends, too." if other else ""
    return Answer(f"{short} {facts.sentence}{also}", tuple(evidence), tables)


def _stalls(verdict: Verdict) -> Iterable[str]:
    for stall in sorted(verdict.stalls, key=lambda stall: -stall.seconds)[:_MOST_STALLS]:
        of = stall.interval
        yield (
            f"Steps {of.step - of.steps + 1:,} to {of.step:,} took {duration(stall.seconds)} more "
            f"than usual, most of it {stall.part}."
        )


def _other_program(verdict: Verdict, run: Run) -> str:
    """Which host sent most beside the training, in which steps, as a sentence; "": none."""
    predicted, seen, found = verdict.predicted_bytes, verdict.seen_bytes, []
    if not predicted or not between_hosts.others_send(predicted, seen, verdict.step_s):
        return ""
    for phase in verdict.phases:
        part = [i for i in run.intervals if phase.first_step <= i.step <= phase.last_step]
        found += [(sent, phase) for sent in between_hosts.traffic(run, part)]
    most, phase = max(found, key=lambda one: one[0].bytes_per_step)
    return (
        f"Probably another program, which the record cannot name, also sends: {most.host} sent "
        f"{data_size(most.bytes_per_step)} a step in {span(phase)}, and training sends "
        f"{data_size(predicted)}."
    )


def _bytes(verdict: Verdict, other: str) -> Iterable[str]:
    """What a host sent in a step: predicted, seen, and what the rest is."""
    predicted, seen = verdict.predicted_bytes, verdict.seen_bytes
    if predicted:
        text = f"Predicted: {data_size(predicted)} sent by each host in a step"
        if seen:
            off = 100 * (seen / predicted - 1)
            text += f"; seen on {verdict.interface}: {data_size(seen)} ({off:+.1f} %)"
        if seen and off > _USUAL_OFF and verdict.step_s:
            text += f"; the rest, {data_size(seen - predicted)}, is " + (
                "more than TCP's headers and Horovod's talk"
                if other
                else "headers of TCP and what Horovod's ranks ask each other each millisecond"
            )
        yield f"{text}."
    if other:
        yield other
    slow = verdict.slow_phase
    limits = slow is not None and slow.kind in (NETWORK, PROCESSORS)
    if slow and limits and slow.link_MB_per_s and slow.round_trip_s is None:
        where = f" in {span(slow)}" * (len(verdict.phases) > 1)
        link = f"the link carried about {link_speed(slow.link_MB_per_s)}"
        yield f"While they travelled{where}, {link}."
    if verdict.card_MB_per_s:
        yield f"The network card reports a link of {link_speed(verdict.card_MB_per_s)}."


def _unmeasured_network(facts: RunFacts) -> Answer:
    run, step_s = facts.record, facts.verdict.step_s
    if is_alone(run):
        return Answer(_ALONE)
    evidence = [
        "Missing: how long each step waited for its gradients, and the rate of the network card. "
        "hvd_nmt measures both; with other programs, record `sar -n DEV 1`."
    ]
    if run.gradient_bytes and step_s:
        ranks = run.ranks if run.ranks > 1 else 4
        sent = ring_bytes(run.gradient_bytes, ranks)
        evidence.append(
            f"A ring over {ranks} ranks sends {data_size(sent)} per host and step "
            f"({data_size(run.gradient_bytes)} of gradients); in {step_duration(step_s)} that is "
            f"{sent / 1e6 / step_s:.1f} MB/s in the mean. If the link between the hosts carries "
            "little more, it was the bottleneck."
        )
    return Answer(facts.sentence, tuple(evidence), known=False)


def step_and_traffic(facts: RunFacts) -> Answer:
    """For each logged interval: its mean step time, and the mean rate of the busiest network card
    (except loopback), of the host that sent most. Pearson's correlation r has Fisher's 95 %
    interval.
    """
    run, verdict = last_settings(facts.record), facts.verdict
    if is_alone(run) or (len(set(run.hosts)) == 1 and UNKNOWN_HOST not in run.hosts):
        return Answer(
            "Not at all: all ranks are on one host, and nothing crosses a network.",
            (f"{count(run.ranks, 'rank')} on {run.hosts[0]}.",),
        )
    found = between_hosts.rates(run)
    if len(found) < 4:
        seen = f"{count(len(found), 'interval')} with both" if run.telemetry else "no telemetry"
        return Answer(
            f"Not known: the record has {seen}. It needs at least 4 intervals with step time and "
            "samples of the network card of each host. hvd_nmt records both (telemetry, "
            "training.log_every); with other programs, record `sar -n DEV 1` with a clock.",
            known=False,
        )
    rates = [rate for _, rate in found]
    text = f"The host that sent most sent {min(rates):.1f} to {max(rates):.1f} MB/s"
    if related := machines.pearson([(rate, i.step_s or 0.0) for i, rate in found]):
        text += f"; correlation with step time {related.value:.2f} ({len(found)} intervals)"
    if other := _other_program(verdict, run):
        evidence = [other, "So the rates of the cards are not those of training alone."]
    else:
        sent = verdict.seen_bytes or verdict.predicted_bytes
        per_step = f"{data_size(sent)} a step" if sent else "the same bytes in each step"
        mean = " on average" * run.start_of(found[-1][0]).exchange.islands
        evidence = [
            f"Every host always sends {per_step}{mean}, so mean rate x step time is constant. Slow "
            "steps show a low rate, also where the network is not their cause. That part of the "
            "relation is arithmetic, not evidence."
        ]
    waits = [(i.communication_s, i.step_s or 0.0) for i, _ in found
             if i.communication_s is not None]  # fmt: skip
    if cause := machines.pearson(waits):
        said = "does not grow with the step time"
        if cause.low > 0:
            share = percent(cause.value**2)
            said = f"grows with the step time, and explains {share} of its variation"
        evidence.append(
            f"The exposed communication {said}: r = {cause.value:.2f} (95 %: {cause.low:.2f} to "
            f"{cause.high:.2f})."
        )
    return Answer(f"{text}. {facts.sentence}", tuple(evidence))

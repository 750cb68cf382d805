"""The questions about the network."""

from collections.abc import Iterable
from operator import attrgetter

from hvd_nmt.common.units import count, data_size, duration, link_speed, percent, step_duration
from hvd_nmt.explain import between_hosts, bottleneck, estimates
from hvd_nmt.explain.bottleneck import COMPUTE, NETWORK, PROCESSORS, Phase, Verdict
from hvd_nmt.explain.exchange_cost import PRICE_OF_TRAINING_ALONE, name_of, ring_bytes
from hvd_nmt.explain.intervals import last_settings
from hvd_nmt.records.openseq2seq_log import UNKNOWN_HOST
from hvd_nmt.records.record import Run
from hvd_nmt.reporting import phrases
from hvd_nmt.reporting.answer import Answer, Table
from hvd_nmt.reporting.run_facts import RunFacts

_ALONE = "No: one rank exchanges no gradients."
_MOST_STALLS = 5  # number of stalls in the list
_USUAL_OFF = 5.0  # percent of bytes beyond the predicted ones, which need no explanation


def _details(phase: Phase, verdict: Verdict) -> Iterable[str]:
    steps, lag = phrases.span(phase), phase.lag
    if len(verdict.phases) > 1:
        rest = "" if phase.kind == COMPUTE else f", computing {phrases.computing(phase)}"
        took = step_duration(phase.step.step_s or 0.0)
        yield f"{phrases.in_steps(phase)}{rest}; a step took {took}."
    if phase.kind == bottleneck.STRAGGLER:
        yield (
            f"In {steps} {lag.who} computes {step_duration(lag.compute_s)} in each step. "
            f"{lag.others.capitalize()} take {step_duration(lag.others_compute_s)}, and wait."
        )
    if phase.kind == NETWORK and (trip_s := phase.network.round_trip_s) is not None:
        yield (
            f"In {steps} a packet and its answer took {step_duration(trip_s)}: a faster link "
            "brings little, fewer and larger exchanges do."
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
    short = "Yes." if verdict.kind == NETWORK else _ALONE if phrases.is_alone(run) else "No."
    if verdict.kind == PROCESSORS:
        short = "Probably not."
    if NETWORK in kinds and len(kinds) > 1:
        short = "Partly."
        if len(verdict.phases) > phrases.MOST_PHASES and slow.kind != NETWORK:
            of_network = [phase for phase in verdict.phases if phase.kind == NETWORK]
            short += f" {phrases.in_steps(max(of_network, key=attrgetter('seconds')))}."
    elif verdict.kind == bottleneck.MIXED and slow.wait == NETWORK:
        short = "Perhaps."
    evidence = [text for phase in verdict.phases for text in _details(phase, verdict)]
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
        price = f"; {PRICE_OF_TRAINING_ALONE}" if now.exchange.trains_alone else ""
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
    where = f" ({phrases.span(slow)})" if len(verdict.phases) > 1 else ""
    title = (
        f"What would make a step of {step_duration(step_s)}{where} shorter, predicted for equal "
        "work"
    )
    advice = [Table(title, ("change", "step", "speed", "why"), rows)] if rows else []
    tables = (*advice, *phrases.each_setting(facts.record))
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
    """Which host sent most next to the training, in which steps, as a sentence; "": none."""
    predicted = verdict.network.predicted_bytes
    if not predicted or not verdict.network.others_send:
        return ""
    senders = []
    for phase in verdict.phases:
        part = [i for i in run.intervals if phase.first_step <= i.step <= phase.last_step]
        senders += [(sent, phase) for sent in between_hosts.traffic(run, part)]
    most, phase = max(senders, key=lambda sender: sender[0].bytes_per_step)
    return (
        f"Probably another program, which the record cannot name, also sends: {most.host} sent "
        f"{data_size(most.bytes_per_step)} a step in {phrases.span(phase)}, and training sends "
        f"{data_size(predicted)}."
    )


def _bytes(verdict: Verdict, other: str) -> Iterable[str]:
    """What a host sent in a step: predicted, seen, and what the rest is."""
    predicted, sent = verdict.network.predicted_bytes, verdict.network.sent
    if predicted:
        text = f"Predicted: {data_size(predicted)} sent by each host in a step"
        if sent:
            seen, off = sent.bytes_per_step, 100 * (sent.bytes_per_step / predicted - 1)
            text += f"; seen on {sent.interface}: {data_size(seen)} ({off:+.1f} %)"
            if off > _USUAL_OFF:
                rest = "headers of TCP and what Horovod's ranks ask each other each millisecond"
                if other:
                    rest = "more than TCP's headers and Horovod's talk"
                text += f"; the rest, {data_size(seen - predicted)}, is {rest}"
        yield f"{text}."
    if other:
        yield other
    slow = verdict.slow_phase
    if slow and slow.kind in (NETWORK, PROCESSORS):
        link, trip_s = slow.network.link_MB_per_s, slow.network.round_trip_s
        if link and trip_s is None:
            where = f" in {phrases.span(slow)}" if len(verdict.phases) > 1 else ""
            yield f"While they travelled{where}, the link carried about {link_speed(link)}."
    if sent and sent.link_MB_per_s:
        yield f"The network card reports a link of {link_speed(sent.link_MB_per_s)}."


def _unmeasured_network(facts: RunFacts) -> Answer:
    run, step_s = facts.record, facts.verdict.step_s
    if phrases.is_alone(run):
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
    if phrases.is_alone(run) or (len(set(run.hosts)) == 1 and UNKNOWN_HOST not in run.hosts):
        return Answer(
            "Not at all: all ranks are on one host, and nothing crosses a network.",
            (f"{count(run.ranks, 'rank')} on {run.hosts[0]}.",),
        )
    rates = between_hosts.rates(run)
    if len(rates) < 4:
        seen = f"{count(len(rates), 'interval')} with both" if run.telemetry else "no telemetry"
        return Answer(
            f"Not known: the record has {seen}. It needs at least 4 intervals with step time and "
            "samples of the network card of each host. hvd_nmt records both (telemetry, "
            "training.log_every); with other programs, record `sar -n DEV 1` with a clock.",
            known=False,
        )
    sent = [rate for _, rate in rates]
    text = f"The host that sent most sent {min(sent):.1f} to {max(sent):.1f} MB/s"
    if related := estimates.pearson([(rate, i.step_s or 0.0) for i, rate in rates]):
        text += f"; correlation with step time {related.value:.2f} ({len(rates)} intervals)"
    if other := _other_program(verdict, run):
        evidence = [other, "So the rates of the cards are not those of training alone."]
    else:
        n_bytes = verdict.network.seen_bytes or verdict.network.predicted_bytes
        per_step = f"{data_size(n_bytes)} a step" if n_bytes else "the same bytes in each step"
        mean = " on average" if run.start_of(rates[-1][0]).exchange.trains_alone else ""
        evidence = [
            f"Every host always sends {per_step}{mean}, so mean rate x step time is constant. Slow "
            "steps show a low rate, also where the network is not their cause. That part of the "
            "relation is arithmetic, not evidence."
        ]
    waits = [(i.communication_s, i.step_s or 0.0) for i, _ in rates
             if i.communication_s is not None]  # fmt: skip
    if cause := estimates.pearson(waits):
        growth = "does not grow with the step time"
        if cause.low > 0:
            share = percent(cause.value**2)
            growth = f"grows with the step time, and explains {share} of its variation"
        evidence.append(
            f"The exposed communication {growth}: r = {cause.value:.2f} (95 %: {cause.low:.2f} to "
            f"{cause.high:.2f})."
        )
    return Answer(f"{text}. {facts.sentence}", tuple(evidence))

"""What took the time of a run's steps, in words: the verdict as a sentence, and its phrases."""

from operator import itemgetter

from hvd_nmt.common.units import count, duration, percent, step_duration
from hvd_nmt.explain import bottleneck, durations
from hvd_nmt.explain.bottleneck import COMPUTE, NETWORK, PROCESSORS, Phase, Verdict
from hvd_nmt.explain.exchange_cost import name_of
from hvd_nmt.explain.goodput import aside_s
from hvd_nmt.explain.intervals import by_settings, last_settings
from hvd_nmt.records.record import Run
from hvd_nmt.reporting.answer import Table

MOST_PHASES = 2
"""number of phases up to which the sentence has them all"""
_MOST_SHARES = 4  # number of phases with one bottleneck, up to which the sentence has their shares
_WAITS = {
    NETWORK: "the network between the hosts",
    bottleneck.LOCAL: "sums between the ranks of one host",
    bottleneck.INPUT: "waiting for input",
}
"""kinds of bottleneck, as what takes a share of each step"""


def sentence(verdict: Verdict, run: Run) -> str:
    """The verdict in words: what took how much of each step; of two phases, of both."""
    slow, phases = verdict.slow_phase, verdict.phases
    if slow is None:
        if not run.intervals:
            return "Not known yet: no step was recorded."
        known = "no step times" if verdict.step_s is None else "step times, but not their parts"
        return (
            f"The record of {run.name} has {known}, so it is unknown what limited the steps. "
            "hvd_nmt measures that while it trains."
        )
    what, share = _what_took(slow)
    waits = slow.wait == bottleneck.INPUT or not is_alone(run)
    if len(phases) == MOST_PHASES:
        (before, first_share), (what, share) = map(_what_took, phases)
        what = "" if what == before else f"{what} "
        text = (
            f"{before} took {first_share} of each step to step {phases[0].last_step:,}, then "
            f"{what}{share}."
        )
    elif 1 < len(phases) <= _MOST_SHARES and {what} == {_what_took(of)[0] for of in phases}:
        *shares, last = (_what_took(of)[1] for of in phases)
        text = f"{what} took {', '.join(shares)} and {last} of each step, in {len(phases)} phases."
    elif len(phases) > 1:
        text = f"{in_steps(slow)}."
    else:
        text = f"{what} took {share} of each step"
        if slow.kind == bottleneck.MIXED:
            text += f", near the {percent(bottleneck.BINDING_SHARE)} from which on it is a limit"
        elif slow.kind == COMPUTE and round(slow.share, 3) and waits:
            text += f"; {_wait(slow)} took {percent(slow.share)}"
        text += "."
    if verdict.stalls:
        more_s = duration(sum(stall.seconds for stall in verdict.stalls))
        text += f" {count(len(verdict.stalls), 'stall').capitalize()} took {more_s} more."
    if len(by_settings(run)) > 1:
        text = f"{', '.join(_settings(last_settings(run)))}: {text}"
    return text[:1].upper() + text[1:]


def each_setting(run: Run) -> tuple[Table, ...]:
    """The steps under each of several settings; () where they never changed."""
    if len(parts := by_settings(run)) < 2:
        return ()
    rows = tuple(
        (*_settings(part), step_duration(of.step_s or 0.0), sentence(of, part))
        for part, of in zip(parts, map(bottleneck.verdict, parts), strict=True)
    )
    title = "Settings changed between starts; nothing above is a mean over several"
    head = ("steps", "settings", "mean step", "what took the time")
    return (Table(title, head, rows),)


def _what_took(phase: Phase) -> tuple[str, str]:
    """What took most of the time that a phase waited, or computing, and the share of a step."""
    if phase.kind == COMPUTE:
        return "computing", computing(phase)
    if phase.kind == bottleneck.SHARED:
        who = f"computing, with {phase.others_percent:.0f} % of the processors for other programs,"
        return who, computing(phase)
    if phase.kind == PROCESSORS:
        return "the exchange, probably for lack of free processors,", percent(phase.share)
    return _wait(phase), percent(phase.share)


def _wait(phase: Phase) -> str:
    if phase.network.round_trip_s is not None:
        return "round trips between the hosts"
    if phase.wait == bottleneck.PAUSED:
        return f"pauses of {phase.lag.who}"
    late = f"waiting for {phase.lag.who}"
    return late if phase.wait == bottleneck.STRAGGLER else _WAITS[phase.wait]


def in_steps(phase: Phase) -> str:
    """Its steps, and what took which share of each."""
    what, share = _what_took(phase)
    return f"In {span(phase)} {what} took {share} of each step"


def span(phase: Phase) -> str:
    """Its first and its last step."""
    return f"steps {phase.first_step:,} to {phase.last_step:,}"


def computing(phase: Phase) -> str:
    """The share of its mean step in which it computes."""
    return percent((phase.step.compute_s or 0.0) / (phase.step.step_s or 1.0))


def _settings(part: Run) -> tuple[str, str]:
    """The first and last of steps with equal settings; their exchange, ranks and hosts."""
    first, last = part.intervals[0], part.intervals[-1]
    where = f"{count(part.ranks, 'rank')} on {count(len(set(part.hosts)), 'host')}"
    name = name_of(part.start_of(last).exchange)
    return f"steps {first.step - first.steps + 1:,} to {last.step:,}", f"{name}, {where}"


def is_alone(run: Run) -> bool:
    """Whether it had one rank, without a sign of others: a log of Horovod may show one of many."""
    return len(run.hosts) == 1 and not run.config.get("openseq2seq", {}).get("use_horovod")


def longer_than_steps(run: Run) -> str:
    """What took longer than all steps, in a sentence; "" where nothing did."""
    steps_s = durations.training_s(run)
    if steps_s is None or run.source != "hvd_nmt":
        return ""
    name, seconds = max(aside_s(run).items(), key=itemgetter(1))
    if seconds <= steps_s:
        return ""
    return f"{name.capitalize()} took {duration(seconds)}, all steps {duration(steps_s)}. "

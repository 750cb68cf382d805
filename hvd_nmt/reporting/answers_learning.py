"""The questions about learning: fully trained, overfitting, the learning rate."""

from __future__ import annotations

from hvd_nmt.common.units import duration
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.explain import learning
from hvd_nmt.explain.learning import Estimate, FullyTrained, LearningRate, Overfitting
from hvd_nmt.records.record import Run
from hvd_nmt.reporting.answer import Answer, Facts, Table

CANNOT_TELL = "cannot tell"


def fully_trained(facts: Facts) -> Answer:
    """Question 2."""
    fit = learning.fully_trained(facts.run)
    answers = {
        "trained": "Yes, as far as this recipe goes: more steps bring no gain that counts.",
        "not trained": "No: more steps still bring a gain that counts.",
        CANNOT_TELL: _missing("evaluations", facts.run),
    }
    rows = tuple(
        (f"{more.steps:,}", "unknown" if more.seconds is None else duration(more.seconds),
         f"{more.gain.value:.3g}", _interval(more.gain))
        for more in fit.gains
    )  # fmt: skip
    unit = "points" if fit.measure == "BLEU" else "nats"
    head = ("more steps", "time", f"gain in {fit.measure}, {unit}", "90 % interval")
    tables = (Table("What more steps are expected to bring", head, rows),) if rows else ()
    evidence = [_reason(fit, facts.run)]
    if facts.run.config.get("training", {}).get("warmup_steps") is None:
        evidence.append(
            "The configuration is not known, and so not where the warm-up ends: values of the "
            "warm-up may be among those of the curve."
        )
    if fit.asymptote is not None:
        evidence.append(
            f"The curve ends at a {fit.measure} of {fit.asymptote.value:.3g} after endless steps "
            f"(90 % interval {_interval(fit.asymptote)})."
        )
    return Answer(answers[fit.verdict], tuple(evidence), tables, fit.verdict != CANNOT_TELL)


def _reason(fit: FullyTrained, run: Run) -> str:
    if fit.measure is None:
        return (
            f"The run is at step {run.steps_done:,} of a warm-up of "
            f"{learning.warmup_steps(run):,.0f} steps: its learning rate is still rising."
        )
    share, rate = fit.rate_share, ""
    if share is not None and share < learning.COOLED_DOWN:
        rate = (
            f" The learning rate has cooled down to {share:.1%} of its peak, so more steps bring "
            "something only with a longer schedule (a larger training.max_steps)."
        )
    elif share is not None:
        rate = f" The learning rate is still at {share:.0%} of its peak."
    if not fit.gains:
        needed = learning.FEWEST_EVALUATIONS - 1
        return f"A curve takes {needed} values after the warm-up, not {len(fit.points)}.{rate}"
    unit, places = ("BLEU", 1) if fit.measure == "BLEU" else ("nats", 3)
    more, points = fit.gains[-1], fit.points
    gain, enough = more.gain, learning.GAIN_THAT_COUNTS[fit.measure]
    time = "" if more.seconds is None else f" ({duration(more.seconds)})"
    side = {"trained": "surely less than", "not trained": "surely more than",
            CANNOT_TELL: "which may be less or more than"}[fit.verdict]  # fmt: skip
    return (
        f"A curve through {len(points)} values of the {fit.measure} from step {points[0][0]:,} to "
        f"{points[-1][0]:,} expects {more.steps:,} more steps{time} to bring "
        f"{gain.value:.{places}f} {unit} (90 % interval {gain.low:.{places}f} to "
        f"{gain.high:.{places}f}), {side} the {enough:g} {unit} that count.{rate}"
    )


def overfitting(facts: Facts) -> Answer:
    """Question 3."""
    found = learning.overfitting(facts.run)
    if found.best is None or found.last is None or found.verdict == CANNOT_TELL:
        answer = _missing("validation losses", facts.run)
    elif found.verdict == "overfitting":
        answer = (
            f"Yes. The best model is that of step {found.best[0]:,}; it is kept in best_models. "
            "More dropout or more data would help."
        )
    else:
        since = f" and is {found.last[1]:.4f} at step {found.last[0]:,}."
        answer = (
            f"No. The validation loss was lowest ({found.best[1]:.4f}) at step {found.best[0]:,}"
            + (", the last." if found.best == found.last else since)
        )
    return Answer(answer, (_trend_sentence(found),), known=found.verdict != CANNOT_TELL)


def _trend_sentence(found: Overfitting) -> str:
    best, last, tail, trend = found.best, found.last, found.tail, found.validation_trend
    if best is None or last is None or trend is None:
        return (
            f"It takes {learning.FEWEST_EVALUATIONS} validation losses to see a trend, not "
            f"{len(found.losses)}."
        )
    text = (
        f"From step {tail[0][0]:,} to {tail[-1][0]:,} the validation loss moves by "
        f"{_signed(trend)} per 1,000 steps over {len(tail)} evaluations"
    )
    if found.training_trend is not None:
        text += f", the training loss by {_signed(found.training_trend)}"
    end = "the last." if best == last else f"the last {last[1]:.4f} at step {last[0]:,}."
    return f"{text}. The lowest validation loss is {best[1]:.4f} at step {best[0]:,}, {end}"


def _signed(trend: Estimate) -> str:
    return f"{trend.value:+.4f} nats (90 % interval {trend.low:+.4f} to {trend.high:+.4f})"


def learning_rate(facts: Facts) -> Answer:
    """Question 6."""
    run = facts.run
    explained = learning.learning_rate(run)
    schedule = explained.schedule
    if schedule is None:
        seen = ""
        if explained.peak_seen:
            step, rate = explained.peak_seen
            seen = f" The highest rate recorded is {rate:.3g}, step {step:,}."
        return Answer(
            "The record does not hold the numbers of the schedule (factor, width, warm-up steps), "
            f"so the plot cannot be explained: keep config.yaml in the run directory.{seen}",
            known=False,
        )
    step, rate = schedule.peak()
    last = max(1, run.max_steps or run.steps_done)
    answer = (
        f"The rate rises in a straight line to its peak of {rate:.3g} at step {step:,} (warm-up: "
        "Adam's moments are not yet reliable, so the first steps must be small) and then "
        f"{schedule.words()}"
    )
    training = run.config.get("training", {})
    if run.max_steps and run.max_steps < training.get("warmup_steps", 0):
        answer = (
            f"The rate rises in a straight line to {rate:.3g} at step {step:,}: the warm-up of "
            f"{training['warmup_steps']:,} steps is longer than the run"
        )
    if schedule.cools_down:
        answer += f"; {schedule.cool_down()}"
    where = (
        ("first step", 1, schedule.rate(0)),
        ("peak", step, rate),
        ("end of the run", last, schedule.rate(last - 1)),
    )
    rows = tuple((name, f"{at:,}", f"{value:.3g}") for name, at, value in where)
    table = Table("The rate by the formula", ("where", "step", "rate"), rows)
    return Answer(f"{answer}.", rate_sentences(explained, schedule), (table,))


def rate_sentences(explained: LearningRate, schedule: Schedule) -> tuple[str, str, str]:
    """The formula, its peak, and what was recorded."""
    words = (
        f"Rate of the update after s updates: {schedule.formula()}. It rises in a straight line "
        f"over {schedule.warmup_steps:,.0f} steps and then {schedule.words()}"
    )
    if schedule.cools_down:
        words += f"; {schedule.cool_down()}"
    step, rate = schedule.peak()
    seen, largest = explained.peak_seen, explained.largest_deviation
    compared = "No learning rate was recorded to compare with."
    if seen is not None and largest is not None:
        compared = (
            f"The highest recorded rate is {seen[1]:.3e}, in step {seen[0]:,}. The "
            f"{len(explained.seen)} recorded rates deviate from the formula by "
            f"{abs(largest[1]):.1e} of it at most (step {largest[0]:,})."
        )
    return f"{words}.", f"By it the rate peaks at {rate:.3e} in step {step:,}.", compared


def _missing(what: str, run: Run) -> str:
    """That nothing can be told, and what would help."""
    onward = "raise training.max-steps and go on" if run.finished else "let the run go on"
    return (
        f"The record cannot tell. Missing are more {what}: {onward}, or evaluate more often "
        "(evaluation.every-steps)."
    )


def _interval(estimate: Estimate) -> str:
    return f"{estimate.low:.3g} to {estimate.high:.3g}"

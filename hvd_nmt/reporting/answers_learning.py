"""The questions about learning: fully trained, overfitting, the learning rate."""

import dataclasses
import math

from hvd_nmt.common.units import duration, percent
from hvd_nmt.config.schedule import FALLS
from hvd_nmt.explain import learning
from hvd_nmt.explain.estimates import Estimate
from hvd_nmt.explain.learning import CANNOT_TELL, FullyTrained
from hvd_nmt.records.record import Run
from hvd_nmt.reporting.answer import Answer, Table
from hvd_nmt.reporting.run_facts import RunFacts


def fully_trained(facts: RunFacts) -> Answer:
    """A curve a + b x step^-c is fitted to the best measure with enough values after the warm-up:
    BLEU, else validation loss, else training loss. Draws of all curves that fit the points give the
    gain from more steps, with 90 % intervals. A run is trained if twice the steps surely bring less
    than 0.5 BLEU, or 0.02 nats of a loss. The curve holds for this schedule only.
    """
    run = facts.record
    fit = learning.fully_trained(run)
    answer = {
        "trained": "Yes, as far as this recipe goes: more steps bring no gain that counts.",
        "not trained": "No: more steps still bring a gain that counts.",
        CANNOT_TELL: _missing("evaluations", run),
    }[fit.verdict]
    evidence = [_reason(fit, run)]
    if fit.rate_share is not None:
        text = f"The last learning rate is {percent(fit.rate_share)} of the highest"
        if fit.rate_share < learning.COOLED_DOWN:
            text += ": more steps bring something only with a larger training.max_steps"
        evidence.append(f"{text}.")
    if (end := fit.asymptote) is not None and end.high > 0:  # else the end is unknown
        higher = fit.measure == "BLEU"
        best = (max if higher else min)(value for _, value in fit.points)
        passed = ""
        if (best > end.value) is higher:
            passed = f"; single values lie beyond it, the best at {best:.3g}"
        evidence.append(
            f"The curve ends at a {fit.measure} of {end.value:.3g} after endless steps "
            f"(90 % interval {_interval(end)}){passed}."
        )
    rows = tuple(
        (f"{more.steps:,}", "unknown" if more.seconds is None else duration(more.seconds),
         f"{more.gain.value:.3g}", _interval(more.gain))
        for more in fit.gains
    )  # fmt: skip
    head = ("more steps", "time", f"gain in {fit.measure}, {_unit(fit)}", "90 % interval")
    tables = (Table("What more steps are expected to bring", head, rows),) if rows else ()
    return Answer(answer, tuple(evidence), tables, fit.verdict != CANNOT_TELL)


def _reason(fit: FullyTrained, run: Run) -> str:
    if fit.measure is None:
        return (
            f"The run is at step {run.steps_done:,} of a warm-up of "
            f"{learning.warmup_steps(run):,.0f} steps: its learning rate is still rising."
        )
    if not fit.gains:
        needed = learning.FEWEST_EVALUATIONS - 1
        return f"A curve takes {needed} values after the warm-up, not {len(fit.points)}."
    side = {"trained": "surely less than", "not trained": "surely more than",
            CANNOT_TELL: "perhaps more than"}[fit.verdict]  # fmt: skip
    counts = f"{learning.GAIN_THAT_COUNTS[fit.measure]:g} {_unit(fit)}"
    return (
        f"A curve through {len(fit.points)} values of the {fit.measure} from step "
        f"{fit.points[0][0]:,} to {fit.points[-1][0]:,} expects that {fit.gains[-1].steps:,} more "
        f"steps bring {side} the {counts} that count."
    )


def _unit(fit: FullyTrained) -> str:
    return "points" if fit.measure == "BLEU" else "nats"


def overfitting(facts: RunFacts) -> Answer:
    """Straight lines with Student's 90 % intervals are fitted to both losses of the last third of
    the run (at least four evaluations). The run overfits if the validation loss surely rises and
    the training loss does not. It also overfits if the validation loss is far above an earlier
    minimum. A difference between the two losses is no sign: training is measured with dropout.
    """
    judged = learning.overfitting(facts.record)
    best, tail, trend = judged.best, judged.tail, judged.validation_trend
    if best is None or trend is None:
        return Answer(
            _missing("validation losses", facts.record),
            (f"It takes {learning.FEWEST_EVALUATIONS} of them to see a trend, not "
             f"{len(judged.losses)}.",), known=False,
        )  # fmt: skip
    answer = {
        "overfitting": "Yes: more dropout or more data would help; best_models keeps the best.",
        "not overfitting": "No.",
        CANNOT_TELL: _missing("validation losses", facts.record),
    }[judged.verdict]
    last = judged.losses[-1]
    end = "the last" if best == last else f"and is {last[1]:.4f} at step {last[0]:,}"
    text = (
        f"From step {tail[0][0]:,} to {tail[-1][0]:,} the validation loss moves by "
        f"{_signed(trend)} per 1,000 steps over {len(tail)} evaluations"
    )
    if judged.training_trend is not None:
        text += f", the training loss by {_signed(judged.training_trend)}"
    return Answer(
        f"{answer} The validation loss was lowest ({best[1]:.4f}) at step {best[0]:,}, {end}.",
        (f"{text}.",), known=judged.verdict != CANNOT_TELL,
    )  # fmt: skip


def _signed(trend: Estimate) -> str:
    return f"{trend.value:+.4f} nats (90 % interval {trend.low:+.4f} to {trend.high:+.4f})"


def learning_rate(facts: RunFacts) -> Answer:
    """The formula of `training.decay` with the numbers of the configuration. transformer_policy is
    equation 3 of Vaswani et al. 2017 times a factor. The points are the recorded rates.
    """
    run = facts.record
    schedule, seen = learning.schedule(run), learning.series(run.intervals, "learning_rate")
    recorded = "No learning rate was recorded to compare with."
    if seen:
        step, rate = max(seen, key=lambda point: point[1])
        recorded = f"The highest recorded rate is {rate:.3e}, in step {step:,}."
    if schedule is None:
        return Answer(
            "The record does not hold the numbers of the schedule (factor, width, warm-up steps), "
            "so the plot cannot be explained: keep config.yaml in the run directory.",
            (recorded,), known=False,
        )  # fmt: skip
    largest = learning.largest_deviation(schedule, seen)
    newest = [interval for interval in run.intervals if interval.start == len(run.starts) - 1]
    if largest and abs(largest[1]) > 1e-3 and 0 < len(newest) < len(run.intervals):
        first = newest[0].step - newest[0].steps + 1
        recorded += f" Rates before step {first:,}, of earlier starts, follow other settings."
        seen = learning.series(newest, "learning_rate")
        largest = learning.largest_deviation(schedule, seen)
    if largest:
        recorded += (
            f" The {len(seen)} recorded rates deviate from the formula by "
            f"{abs(largest[1]):.1e} of it at most (step {largest[0]:,})."
        )
    step, rate = schedule.peak()
    places: dict[str, tuple[int, float]] = {}
    rises = f"The rate rises in a straight line to {rate:.3g} at step {step:,}"
    answer = f"{rises}, its peak, and then {FALLS[schedule.decay]}"
    recorded += " The rate warms up because Adam's moments are not yet reliable in the first steps."
    if (training := run.config.get("training", {})).get("optimizer") == "muon":
        recorded += (
            " Muon moves the matrices inside the layers in orthogonal steps, at "
            f"{training['muon_rate_factor']:g} times this rate; Adam moves the rest."
        )
    if run.max_steps and run.max_steps < schedule.warmup_steps:
        whole = dataclasses.replace(schedule, max_steps=math.inf).peak()
        answer = (
            f"{rises}, {percent(rate / whole[1])} of its peak: the warm-up of "
            f"{schedule.warmup_steps:,.0f} steps is longer than the run"
        )
        places = {"end of the warm-up": whole}
    if schedule.cools_down:
        answer += f"; {schedule.cool_down()}"
    last = max(1, run.max_steps or run.steps_done)
    places = {
        "first step": (1, schedule.rate(0)), "highest of the run": (step, rate),
        "end of the run": (last, schedule.rate(last - 1)), **places,
    }  # fmt: skip
    rows = tuple((name, f"{at:,}", f"{value:.4g}") for name, (at, value) in places.items())
    return Answer(
        f"{answer}.",
        (f"Rate of the update after s updates: {schedule.formula()}.", recorded),
        (Table("The rate by the formula", ("where", "step", "rate"), rows),),
    )


def _missing(what: str, run: Run) -> str:
    """A sentence on what the record lacks for an answer, and what would help."""
    onward = "raise training.max-steps" if run.finished else "let the run continue"
    return (
        f"The record cannot tell. Missing are more {what}: {onward}, or evaluate more often "
        "(evaluation.every-steps)."
    )


def _interval(estimate: Estimate) -> str:
    return f"{estimate.low:.3g} to {estimate.high:.3g}"

"""Curves with known answers: intervals must hold the truth, and noise alone must tell nothing."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvd_nmt.config import EvaluationConfig
from hvd_nmt.explain import learning
from hvd_nmt.records.record import Evaluation, Interval, Run
from hvd_nmt.reporting.run_summary import RunSummary

TRAINING = {
    "learning_rate": 2.0, "warmup_steps": 1000, "cooldown_steps": 0, "max_steps": 40_000
}  # fmt: skip
CONFIG = {"model": {"width": 512}, "training": TRAINING}
Curve = Callable[[np.ndarray], np.ndarray]


def run_of(
    *, bleu: Curve | None = None, loss: Curve | None = None, training: Curve | None = None,
    rate: Curve | None = None, evaluations: int = 12, intervals: int = 80, last: int = 20_000,
    step_s: float | None = 0.5, **fields: Any,
) -> Run:  # fmt: skip
    """A run with these curves over its steps; other fields of it are as given."""

    def rows(number: int, *curves: Curve | None) -> Iterator[tuple[Any, ...]]:
        steps = np.linspace(0, last, number + 1)[1:].astype(int)
        columns = [curve(steps).tolist() if curve else [None] * number for curve in curves]
        return zip(steps.tolist(), *columns, strict=True)

    made = Run(
        "made", Path("made"), "hvd_nmt", config=CONFIG,
        evaluations=tuple(Evaluation(s, x, bleu=b) for s, x, b in rows(evaluations, loss, bleu)),
        intervals=tuple(
            Interval(s, last // intervals, step_s=step_s, loss=x, learning_rate=r)
            for s, x, r in rows(intervals, training, rate)
        ),
    )  # fmt: skip
    return dataclasses.replace(made, **fields)


def trained(**curves: Any) -> learning.FullyTrained:
    return learning.fully_trained(run_of(**curves))


def saturating(a: float, b: float, c: float, noise: float = 0.0, seed: int = 0) -> Curve:
    """a + b (step / 20,000)^-c, with noise."""

    def curve(steps: np.ndarray) -> np.ndarray:
        random = np.random.default_rng(seed)
        return a + b * (steps / 20_000) ** -c + noise * random.standard_normal(len(steps))

    return curve


@pytest.mark.parametrize("c", [0.5, 1.0, 2.0])
def test_an_exact_curve_gives_its_asymptote_and_gain(c):
    found = trained(bleu=saturating(28.0, -4.0, c))
    assert found.measure == "BLEU"
    assert found.asymptote.value == pytest.approx(28.0, abs=0.05)
    tenth, double = found.gains
    assert (tenth.steps, double.steps) == (2000, 20_000)
    assert double.gain.value == pytest.approx(4 - 4 * 2**-c, abs=0.02)
    assert tenth.gain.value == pytest.approx(4 - 4 * 1.1**-c, abs=0.03)
    assert double.seconds == pytest.approx(20_000 * 0.5)
    assert found.curve[-1][0] == 40_000
    assert found.curve[-1][1].value == pytest.approx(28 - 4 * 2**-c, abs=0.1)


@pytest.mark.parametrize(("b", "c", "evaluations"), [(-4.0, 0.7, 12), (-0.2, 2.0, 6)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(b, c, evaluations):
    noisy = [
        trained(bleu=saturating(28.0, b, c, noise=0.3, seed=seed), evaluations=evaluations)
        for seed in range(40)
    ]
    for true, estimates in ((-b + b * 2**-c, [found.gains[1].gain for found in noisy]),
                            (28.0, [found.asymptote for found in noisy])):  # fmt: skip
        assert sum(each.low <= true <= each.high for each in estimates) >= 32  # 36 are meant


@pytest.mark.parametrize(
    ("curve", "gain", "noise", "verdict"),
    [
        ("bleu", 2.5, 0.05, "not trained"),
        ("bleu", 0.52, 0.002, "not trained"),
        ("bleu", 0.48, 0.002, "trained"),
        ("bleu", 0.0, 0.05, "trained"),
        ("bleu", -2.5, 0.05, "trained"),  # it falls
        ("loss", -0.021, 0.0001, "not trained"),
        ("loss", -0.019, 0.0001, "trained"),
    ],
)
def test_half_a_bleu_or_a_fiftieth_of_a_nat_from_twice_the_steps_counts(
    curve, gain, noise, verdict
):
    values = saturating(30.0, -gain / (1 - 2**-0.8), 0.8, noise=noise)
    assert trained(**{curve: values}).verdict == verdict


def test_noise_alone_cannot_tell():
    verdicts = [
        trained(bleu=saturating(30.0, 0.0, 1.0, noise=5.0, seed=seed), evaluations=8).verdict
        for seed in range(25)
    ]
    assert verdicts.count("cannot tell") >= 22
    assert "not trained" not in verdicts


def test_an_outlier_does_not_bend_the_curve():
    def with_outlier(steps: np.ndarray) -> np.ndarray:
        return saturating(28.0, -4.0, 1.0, noise=0.02)(steps) - 15.0 * (steps == steps[-2])

    found = trained(bleu=with_outlier, evaluations=20)
    assert found.gains[1].gain.value == pytest.approx(2.0, abs=0.3)


def test_the_measure_is_the_best_that_has_enough_values():
    bleu, loss = saturating(28.0, -4.0, 1.0), saturating(1.5, 0.4, 0.5)
    few = {"bleu": bleu, "loss": loss, "training": loss, "evaluations": 4}
    found = trained(**few)
    assert (found.measure, found.verdict) == ("training loss", "not trained")
    assert found.gains[1].gain.value == pytest.approx(0.4 - 0.4 * 2**-0.5, abs=0.02)
    some = dataclasses.replace(run_of(**few), evaluations=run_of(loss=loss).evaluations)
    assert learning.fully_trained(some).measure == "validation loss"
    assert learning.fully_trained(some).asymptote.value == pytest.approx(1.5, abs=0.05)
    assert trained(bleu=lambda x: bleu(x) * np.nan, loss=loss).measure == "validation loss"


@pytest.mark.parametrize(("level", "gain"), [(99.5, -3.0), (99.0, 0.0), (0.4, 0.0), (97.0, -60.0)])
def test_no_curve_leaves_what_its_measure_can_be(level, gain):
    def bounded(steps: np.ndarray) -> np.ndarray:
        return saturating(level, gain, 1.0, noise=1.5)(steps).clip(0, 100)

    assert trained(loss=saturating(0.0, 0.2, 1.0, noise=0.01)).asymptote.low >= 0
    found = trained(bleu=bounded, evaluations=6)
    for estimate in (found.asymptote, *(estimate for _, estimate in found.curve)):
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 100
    assert found.gains[1].gain.high <= 100 - found.curve[0][1].low


@pytest.mark.parametrize("evaluations", [0, 1, 3])
def test_few_values_cannot_tell(evaluations):
    run = run_of(loss=saturating(1.5, 0.4, 0.5), evaluations=max(1, evaluations), intervals=3)
    few = dataclasses.replace(run, evaluations=run.evaluations[:evaluations])
    for each in (few, Run("empty", Path("empty"), "hvd_nmt")):
        assert learning.fully_trained(each).verdict == "cannot tell"
        assert learning.overfitting(each).verdict == "cannot tell"


def test_a_run_in_its_warm_up_is_not_trained():
    found = trained(bleu=saturating(28.0, 0.0, 1.0), last=900)
    assert (found.verdict, found.measure) == ("not trained", None)


def test_the_time_counts_evaluations_and_is_unknown_without_times():
    curve = saturating(28.0, -4.0, 1.0)
    assert trained(bleu=curve, step_s=None).gains[1].seconds is None
    run = run_of(bleu=curve)
    slow = tuple(dataclasses.replace(each, seconds=1000.0) for each in run.evaluations)
    found = learning.fully_trained(dataclasses.replace(run, evaluations=slow))
    assert found.gains[1].seconds == pytest.approx(20_000 * 0.5 + 12 * 1000)


def line(*points: tuple[float, float], noise: float = 0.0, seed: int = 0) -> Curve:
    """Straight lines between (step, value), with noise."""

    def curve(steps: np.ndarray) -> np.ndarray:
        off = noise * np.random.default_rng(seed).standard_normal(len(steps))
        return np.interp(steps, *zip(*points, strict=True)) + off

    return curve


FALLING = line((0, 6.0), (10_000, 2.0), (20_000, 1.0), noise=0.02)


def test_a_rising_validation_loss_is_overfitting():
    loss = line((0, 6.0), (10_000, 2.0), (20_000, 2.5), noise=0.01)
    found = learning.overfitting(run_of(loss=loss, training=FALLING, evaluations=20))
    assert (found.verdict, found.best[0]) == ("overfitting", 10_000)
    assert found.losses[-1] == (20_000, pytest.approx(2.5, abs=0.05))
    # 0.5 nats over 10,000 steps
    assert found.validation_trend.value == pytest.approx(0.05, abs=0.005)
    assert found.training_trend.value == pytest.approx(-0.1, abs=0.02)
    assert found.validation_trend.low > 0


TINY = line((0, 6.0), (8000, 2.0), (20_000, 2.01), noise=0.0001)


@pytest.mark.parametrize(
    ("loss", "training", "verdict"),
    [
        # A rise that has come to rest.
        (line((0, 6.0), (8000, 2.0), (11_000, 2.6), (20_000, 2.6), noise=0.01), FALLING,
         "overfitting"),
        (FALLING, FALLING, "not overfitting"),
        (line((0, 6.0), (8000, 2.0), (20_000, 2.0), noise=0.002), FALLING, "not overfitting"),
        (TINY, FALLING, "not overfitting"),
        # The training loss rises as well.
        (line((0, 2.0), (20_000, 4.0), noise=0.01), line((0, 2.0), (20_000, 6.0), noise=0.01),
         "cannot tell"),
    ],
)  # fmt: skip
def test_what_is_overfitting_and_what_is_not(loss, training, verdict):
    found = learning.overfitting(run_of(loss=loss, training=training, evaluations=25))
    assert found.verdict == verdict
    assert loss is not TINY or found.validation_trend.low > 0  # it rises for sure


def test_noise_alone_is_seldom_taken_for_overfitting():
    verdicts = [
        learning.overfitting(
            run_of(loss=line((0, 2.0), (20_000, 2.0), noise=0.3, seed=seed), training=FALLING)
        ).verdict
        for seed in range(60)
    ]
    assert verdicts.count("overfitting") <= 6  # one in twenty is meant
    assert verdicts.count("cannot tell") >= 45


def recipe_rate(steps: Sequence[int] | np.ndarray, warm: int = 1000):
    """transformer_policy at the N-th update, width 512."""
    steps = np.asarray(steps, float)
    return 2.0 * 512**-0.5 * np.minimum(steps * warm**-1.5, steps**-0.5)


def deviation(training: dict[str, Any], rate: Curve) -> tuple[int, float]:
    """Step and size of the largest deviation of recorded rates from those of a schedule."""
    run = run_of(rate=rate, intervals=200, config={**CONFIG, "training": training})
    recorded = learning.series(run.intervals, "learning_rate")
    return learning.largest_deviation(learning.schedule(run), recorded)


LINEAR = {"learning_rate": 5e-4, "warmup_steps": 100, "max_steps": 400, "cooldown_steps": 0}
SCHEDULES = {
    "the recipe's": TRAINING,
    **{decay: LINEAR | {"decay": decay}
       for decay in ("cosine", "linear", "inverse_sqrt", "constant")},
    "stable": LINEAR | {"decay": "warmup_stable_decay", "cooldown_steps": 60},
    "transformer-base": TRAINING | {"warmup_steps": 8000, "max_steps": 300_000},
    "a cool-down": TRAINING | {"cooldown_steps": 5000, "max_steps": 20_000},
    "a cool-down from within the warm-up": TRAINING | {"cooldown_steps": 1000, "max_steps": 1000},
    "shorter than its warm-up": TRAINING | {"max_steps": 300},
    "a cap and another width": TRAINING | {"max_learning_rate": 1e-3, "schedule_width": 128},
    "of a later version": LINEAR | {"decay": "rex"},
}  # fmt: skip


def test_what_is_said_of_schedules(golden_page):
    said = []
    for name, training in SCHEDULES.items():
        run = run_of(config={**CONFIG, "training": training}, last=training["max_steps"])
        answer = RunSummary(run).answers[5]
        rows = [" | ".join(row) for table in answer.tables for row in table.rows]
        said.append("\n".join((f"# {name}", answer.answer, *answer.evidence, *rows, "")))
    golden_page("learning-rates.txt", "\n".join(said))


def test_recorded_rates_are_compared_with_the_formula():
    def doubled_once(steps: np.ndarray) -> np.ndarray:
        return recipe_rate(steps) * np.where(steps == 10_000, 2, 1)

    def cooled(steps: np.ndarray) -> np.ndarray:
        return recipe_rate(steps) * np.minimum(1, (20_000 - steps + 1) / 5000)

    assert learning.schedule(run_of()).peak() == pytest.approx((1000, 2 * 512**-0.5 * 1000**-0.5))
    assert abs(deviation(TRAINING, recipe_rate)[1]) < 1e-12
    assert deviation(TRAINING, doubled_once) == (10_000, pytest.approx(1))
    assert abs(deviation(SCHEDULES["a cool-down"], cooled)[1]) < 1e-9
    assert learning.schedule(run_of(config={**CONFIG, "training": {}})) is None


def scored(name, values, margin=None):
    margins = {} if margin is None else {f"{name}_margin": margin}
    evaluations = [Evaluation(10 * i, **{name: v}, **margins) for i, v in enumerate(values, 1)]
    return Run("run", Path("run"), "hvd_nmt", evaluations=tuple(evaluations))


def without_gain(run, best_by):
    """How many of the newest evaluations in a row brought no gain."""
    options = [EvaluationConfig(best_by=best_by, stop_after=number) for number in range(1, 5)]
    return sum(learning.ends_early(run, config) is not None for config in options)


@pytest.mark.parametrize(
    ("losses", "fruitless"),
    [
        ([], 0),
        ([3.0, 2.0, 1.0], 0),
        ([3.0, 2.0, 2.0, 2.5], 2),
        ([2.0, 1.99985], 1),  # by less than 0.01 %
        ([2.0, 1.9997], 0),
        ([2.0, 1.99985, 1.9997], 0),  # two small steps are one
        ([2.0, math.nan, 2.1, None], 3),
        ([math.nan, 2.0], 0),
    ],
)
def test_a_lower_validation_loss_is_a_gain(losses, fruitless):
    assert without_gain(scored("loss", losses), "val_loss") == fruitless


@pytest.mark.parametrize("name", ["bleu", "chrf"])
@pytest.mark.parametrize(
    ("values", "margin", "fruitless"),
    [
        ([0.0, 0.0], 0.0, 1),
        ([20.0, 21.0, 21.4], 1.5, 2),
        ([20.0, 21.0, 21.6], 1.5, 0),  # not more than chance in one evaluation, but in two
        ([20.0, 18.0, 21.0], 0.5, 0),
        ([20.0, 21.0], None, 0),
    ],
)
def test_a_score_must_rise_by_more_than_chance(name, values, margin, fruitless):
    assert without_gain(scored(name, values, margin), name) == fruitless


FLAT = [30.0 + 0.01 * (-1) ** i for i in range(12)]


@pytest.mark.parametrize(
    ("name", "values"),
    [("bleu", [3.0 * i for i in range(1, 13)]), ("bleu", FLAT[:3]), ("loss", [1.0] * 12)],
)
def test_the_forecast_ends_a_run_only_where_it_is_sure(name, values):
    config = EvaluationConfig(stop_when_trained=True)
    assert (
        learning.ends_early(scored(name, values, 1.0 if name == "bleu" else None), config) is None
    )
    assert learning.ends_early(scored("bleu", FLAT, 1.0), config) == (
        "evaluation.stop_when_trained", "twice the steps would surely bring less than 0.5 BLEU",
    )  # fmt: skip

"""When a run has learned enough: decided from evaluations made by hand."""

import math
from pathlib import Path

import pytest

from hvd_nmt.config import EvaluationConfig
from hvd_nmt.explain import stopping
from hvd_nmt.records.record import Evaluation, Run


def run_of(name, values, margin=None):
    margins = {} if margin is None else {f"{name}_margin": margin}
    evaluations = [
        Evaluation(10 * i, None, **{name: v}, **margins) for i, v in enumerate(values, 1)
    ]
    return Run("run", Path("run"), "hvd_nmt", evaluations=tuple(evaluations))


def without_gain(run, best_by):
    """How many of the newest evaluations in a row brought no gain."""
    options = [EvaluationConfig(best_by=best_by, stop_after=number) for number in range(1, 5)]
    return sum(stopping.enough(run, config) is not None for config in options)


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
    assert without_gain(run_of("loss", losses), "val_loss") == fruitless


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
    assert without_gain(run_of(name, values, margin), name) == fruitless


def test_the_option_that_ends_a_run_is_named():
    run = run_of("bleu", [20.0, 20.1, 20.2], 1.0)
    assert stopping.enough(run, EvaluationConfig()) is None
    assert stopping.enough(run, EvaluationConfig(best_by="bleu", stop_after=2)) == (
        "evaluation.stop_after", "2 evaluations in a row brought no gain in BLEU",
    )  # fmt: skip


FLAT = [30.0 + 0.01 * (-1) ** i for i in range(12)]


@pytest.mark.parametrize(
    ("name", "values"),
    [("bleu", [3.0 * i for i in range(1, 13)]), ("bleu", FLAT[:3]), ("loss", [1.0] * 12)],
)
def test_the_forecast_ends_a_run_only_where_it_is_sure(name, values):
    config = EvaluationConfig(stop_when_trained=True)
    assert stopping.enough(run_of(name, values, 1.0 if name == "bleu" else None), config) is None
    assert stopping.enough(run_of("bleu", FLAT, 1.0), config) == (
        "evaluation.stop_when_trained", "twice the steps would surely bring less than 0.5 BLEU",
    )  # fmt: skip

"""The formula of the learning rate, against OpenSeq2Seq's own and the recipe's known values."""

import dataclasses

import numpy as np
import pytest

from hvd_nmt.config import presets
from hvd_nmt.config.schedule import Schedule

BASE = presets()["base"][1]
SCHEDULE = Schedule.of(BASE)


def test_the_rate_of_the_recipe():
    """OpenSeq2Seq's transformer_policy, from its own formula, and values that are known of it."""
    for step in (0, 1, 7998, 7999, 8000, 8001, 299_999):
        wanted = 2.0 * 512**-0.5 * min((step + 1) * 8000**-1.5, (step + 1) ** -0.5)
        assert SCHEDULE.rate(step) == pytest.approx(wanted, rel=1e-12)
    for step, rate in (7999, 9.88e-4), (50_000, 3.95e-4), (100_000, 2.80e-4), (300_000, 1.614e-4):
        assert SCHEDULE.rate(step) == pytest.approx(rate, rel=2e-3)


@pytest.mark.parametrize("max_steps", [1, 60, 600])
@pytest.mark.parametrize("cooldown_steps", [0, 1, 80, 900])
@pytest.mark.parametrize("cap", [np.inf, 5e-4])
def test_the_peak_is_the_highest_rate_of_the_run(max_steps, cooldown_steps, cap):
    schedule = Schedule(2.0, 512, 300, cooldown_steps, max_steps, cap)
    rates = [schedule.rate(step) for step in range(max_steps)]
    update, rate = schedule.peak()
    assert rates[update - 1] == rate == max(rates) <= cap
    if cooldown_steps:
        uncooled = dataclasses.replace(schedule, cooldown_steps=0)
        assert rates[-1] == pytest.approx(uncooled.rate(max_steps - 1) / cooldown_steps)
        assert schedule.rate(max_steps) == schedule.rate(max_steps + 5) == 0


OTHERS = ("inverse_sqrt", "constant", "linear", "cosine")


def other(decay, **more):
    return Schedule(**{"factor": 5e-4, "width": 512, "warmup_steps": 40, "max_steps": 200,
                       "decay": decay} | more)  # fmt: skip


@pytest.mark.parametrize("decay", OTHERS)
def test_other_decays_rise_in_a_line_to_the_rate_asked_for_and_never_rise_again(decay):
    schedule = other(decay)
    rates = np.array([schedule.rate(step) for step in range(200)])
    np.testing.assert_allclose(rates[:40], 5e-4 * np.arange(1, 41) / 40, rtol=1e-12)
    assert schedule.peak() == (40, pytest.approx(5e-4))
    assert other(decay, max_steps=20).peak() == (20, pytest.approx(2.5e-4))  # within the warm-up
    assert np.all(np.diff(rates[39:]) <= 0)
    assert rates.min() > 0  # the last step is not wasted


@pytest.mark.parametrize("decay", ["transformer_policy", *OTHERS, "warmup_stable_decay"])
@pytest.mark.parametrize("cap", [np.inf, 2e-4])
def test_the_formula_that_is_shown_gives_the_rate(decay, cap):
    """Computed from its words: pi, cos, min, powers."""
    cooldown = 30 if decay == "warmup_stable_decay" else 0
    schedule = other(decay, cooldown_steps=cooldown, cap=cap)
    text = schedule.formula().replace("^", "**").replace(" x ", " * ")
    for step in (0, 20, 39, 40, 100, 185, 199):
        names = {"s": step, "pi": np.pi, "cos": np.cos, "min": min}
        assert eval(text, names) == pytest.approx(schedule.rate(step), rel=1e-5)

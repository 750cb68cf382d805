"""The formula of the learning rate, against OpenSeq2Seq's own and the recipe's known values."""

import dataclasses

import numpy as np
import pytest

from hvd_nmt.config import presets
from hvd_nmt.config.schedule import Schedule

BASE = presets()["base"][1]
SCHEDULE = Schedule.of(BASE)


@pytest.mark.parametrize("step", [0, 1, 3999, 7998, 7999, 8000, 8001, 31_999, 299_999])
def test_the_rate_of_the_recipe(step):
    """OpenSeq2Seq's transformer_policy, from its own formula, around the end of the warm-up."""
    wanted = 2.0 * 512**-0.5 * min((step + 1) * 8000**-1.5, (step + 1) ** -0.5)
    assert SCHEDULE.rate(step) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "rate"), [(7999, 9.88e-4), (50_000, 3.95e-4), (100_000, 2.80e-4), (300_000, 1.614e-4)]
)
def test_the_schedule_has_the_recipes_values(step, rate):
    digits = len(f"{rate:.10e}".partition("e")[0].rstrip("0")) - 2
    assert f"{SCHEDULE.rate(step):.{digits}e}" == f"{rate:.{digits}e}"


@pytest.mark.parametrize("warmup_steps", [100, 8000])
def test_the_rate_rises_in_a_line_peaks_and_falls_with_the_root(warmup_steps):
    schedule = dataclasses.replace(SCHEDULE, warmup_steps=warmup_steps)
    rates = np.array([schedule.rate(step) for step in range(4 * warmup_steps)])
    assert rates[0] > 0  # the first step is not wasted
    assert schedule.peak() == (rates.argmax() + 1, rates.max())
    assert rates.argmax() == warmup_steps - 1
    assert rates.max() == pytest.approx(2.0 * 512**-0.5 * warmup_steps**-0.5, rel=1e-12)
    np.testing.assert_allclose(np.diff(rates[:warmup_steps]), rates[0], rtol=1e-6)
    assert np.all(np.diff(rates[warmup_steps - 1 :]) < 0)
    for step in (warmup_steps // 2 - 1, 4 * warmup_steps - 1):
        assert rates[step] == pytest.approx(rates.max() / 2, rel=1e-12)


@pytest.mark.parametrize("max_steps", [1, 60, 300, 600])
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

"""The plan's numbers, against the ring law and the recipe's own figures."""

import dataclasses
import types

import pytest

from hvd_nmt import config as configuration
from hvd_nmt.config.exchange import PLAIN
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.training.plan import Plan

BASE_PARAMETERS = 60_880_896
V100, T4, CPU = "Tesla V100-SXM2-16GB", "Tesla T4", "CPU, 1 thread"


def make(config, *, parameters=BASE_PARAMETERS, hosts=("v100a", "v100a", "v100b", "v100b"),
         steps_per_epoch=4000, devices=None):  # fmt: skip
    side = types.SimpleNamespace
    train = side(pairs=4_500_000, source=side(tokens=123_456_789), target=side(tokens=130_000_000))
    manifest = side(
        parts={"train": train},
        vocabulary_size=32_768,
        source_vocabulary_size=0,
        corpora=[],
        copies=0,
    )
    setup = side(
        config=config,
        data=side(path="data/wmt16-en-de", manifest=manifest),
        batch_plan=side(
            steps_per_epoch=steps_per_epoch,
            mixture=None,
            epochs_after=lambda step: step / steps_per_epoch,
        ),
        hosts=list(hosts),
        devices=devices or ["CPU, 1 thread"] * len(hosts),
        precision="float16",
        exchange=PLAIN,
    )
    return Plan(
        setup=setup,
        parameters=parameters,
        reduced_by="Gloo",
        start_step=1234,
        all_reduce_s=1.827,
    )


@pytest.fixture
def base():
    return configuration.presets()["base"][1]


def test_the_recipe_on_two_hosts(base):
    """DESIGN.md section 1: 243.5 MB of gradients, 365 MB per host and direction and step."""
    plan = make(base)

    assert plan.gradient_bytes == 243_523_584
    assert plan.sent_bytes_per_step == 365_285_376


def test_one_rank_sends_nothing(base):
    assert make(base, hosts=["laptop"]).sent_bytes_per_step == 0


def test_frozen_weights_have_no_gradient(base):
    plan = dataclasses.replace(make(base), frozen=20_880_896)
    assert plan.gradient_bytes == 160_000_000
    assert plan.sent_bytes_per_step == 240_000_000


def test_the_plan_as_it_is_printed(base, golden_page):
    """That of the recipe, and of others what is not as there."""
    recipe, training = make(base, devices=[V100] * 4), base.training
    other = dataclasses.replace(training, warmup_steps=2000, learning_rate=1.5, ema_decay=0.999)
    others = {
        "on two processors, with another schedule and an average": make(
            dataclasses.replace(base, training=other), hosts=["a", "b"], steps_per_epoch=1000
        ),
        "on unlike devices": make(base, devices=[V100, V100, T4, CPU]),
        "in one slice": dataclasses.replace(recipe, slices=1),
        "with frozen weights, in slices": dataclasses.replace(recipe, frozen=20_880_896, slices=4),
    }
    text = "".join(f"{line}\n" for line in recipe.lines())
    for name, plan in others.items():
        text += f"\n{name}:\n"
        text += "".join(f"{line}\n" for line in plan.lines() if line not in recipe.lines())
    golden_page("plan.txt", text)


def test_the_peak_is_that_of_the_runs_own_schedule(base, golden_page):
    text = ""
    for max_steps, warmup_steps, cooldown_steps in (
        (600, 300, 0), (600, 300, 80), (600, 300, 900), (300, 300, 0), (60, 300, 0),
        (320, 300, 80), (60, 300, 50), (60, 300, 500), (60, 300, 1), (1, 300, 0),
    ):  # fmt: skip
        numbers = {
            "max_steps": max_steps, "warmup_steps": warmup_steps, "cooldown_steps": cooldown_steps,
        }  # fmt: skip
        config = dataclasses.replace(base, training=dataclasses.replace(base.training, **numbers))
        rates = [Schedule.of(config).rate(step) for step in range(max_steps)]
        (line,) = (line for line in make(config).lines() if line.startswith("rate"))
        assert line.startswith(f"rate        rises to {max(rates):.2e} ")
        if " at step " in line:  # counted from 1
            assert f" at step {rates.index(max(rates)) + 1}," in line
        text += f"{max_steps} steps, {warmup_steps} + {cooldown_steps}: {line}\n"
    golden_page("plan-rates.txt", text)

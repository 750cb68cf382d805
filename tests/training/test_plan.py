"""The numbers of a plan, by the ring law and the recipe."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from hvd_nmt import config as configuration
from hvd_nmt.config.exchange import PLAIN
from hvd_nmt.training import horovod
from hvd_nmt.training.plan import Plan

BASE_PARAMETERS = 60_880_896
V100, T4, CPU = "Tesla V100-SXM2-16GB", "Tesla T4", "CPU, 1 thread"


def make(config, *, parameters=BASE_PARAMETERS, hosts=("v100a", "v100a", "v100b", "v100b"),
         steps_per_epoch=4000, devices=None, longest=9):  # fmt: skip
    side = SimpleNamespace
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
        data=side(
            path="data/wmt16-en-de",
            manifest=manifest,
            train=side(
                source=side(lengths=np.array([9])), target=side(lengths=np.array([longest]))
            ),
        ),
        batch_plan=side(
            steps_per_epoch=steps_per_epoch,
            mixture=None,
            epochs_after=lambda step: step / steps_per_epoch,
        ),
        hosts=list(hosts),
        devices=devices or ["CPU, 1 thread"] * len(hosts),
        precision="float16",
        exchange=PLAIN,
        tokenizers={"": "13a"},
    )
    return Plan(setup=setup, parameters=parameters, start_step=1234, all_reduce_s=1.827)


@pytest.fixture
def base(monkeypatch):
    monkeypatch.setattr(horovod, "reduced_by", lambda: "Gloo")
    return configuration.presets()["base"][1]


def test_the_plan_as_it_is_printed(base, golden_page):
    """That of the recipe, and of others what is not as there."""
    recipe, training = make(base, devices=[V100] * 4), base.training
    other = dataclasses.replace(training, warmup_steps=2000, learning_rate=1.5, ema_decay=0.999)
    short = {"max_steps": 300, "warmup_steps": 300, "cooldown_steps": 80}
    others = {
        "on two processors, with another schedule and an average": make(
            dataclasses.replace(base, training=other), hosts=["a", "b"], steps_per_epoch=1000
        ),
        "shorter than its warm-up, with a cool-down": make(
            dataclasses.replace(base, training=dataclasses.replace(training, **short)),
            devices=[V100] * 4,
        ),
        "on unlike devices": make(base, devices=[V100, V100, T4, CPU]),
        "with a long sentence": make(base, devices=[V100] * 4, longest=300),
        "in one slice": dataclasses.replace(recipe, slices=1),
        "with frozen weights, in slices": dataclasses.replace(recipe, frozen=20_880_896, slices=4),
    }
    text = "".join(f"{line}\n" for line in recipe.lines())
    for name, plan in others.items():
        text += f"\n{name}:\n"
        text += "".join(f"{line}\n" for line in plan.lines() if line not in recipe.lines())
    golden_page("plan.txt", text)

"""The numbers of a plan, by the ring law and the recipe; the input of a run as `fit` gets it."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from hvd_nmt import config as configuration
from hvd_nmt.config.exchange import PLAIN
from hvd_nmt.training import horovod, setup
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.setup import Plan

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
    return Plan(
        setup=setup,
        parameters=parameters,
        start_step=1234,
        all_reduce_s=1.827,
    )


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


@pytest.fixture
def dataset(monkeypatch):
    """A function of a number of steps, and the number of batches that were made so far."""
    made = []

    def batches(data, plan, start, *_, **__):
        while True:
            made.append(start)
            ids = np.full([2, 3], len(made), np.int32)
            yield SimpleNamespace(source_BxS=ids, target_BxT=ids, source_tokens=6, target_tokens=6,
                                  rank_target_tokens=(6,), sentences=np.arange(2))  # fmt: skip

    monkeypatch.setattr(setup, "batches", batches)
    plan = SimpleNamespace(position=lambda step: step)
    data = SimpleNamespace(epochs=None, manifest=SimpleNamespace(by_corpus=lambda part: {}))
    run_setup = setup.RunSetup(
        None, Rank(0, 1, 0, 1, "host"), ["host"], ["CPU"], data, plan, "float32"
    )
    return lambda steps: setup.dataset(run_setup, 7, steps), made


def test_the_input_ends_with_the_last_step_and_its_iterator_at_once(dataset):
    """No thread is inside of the generator when the iterator is destroyed.

    With tf.data's autotuning one in ten took as long again as it had lived, up to a minute.
    """
    make, made = dataset
    batches = make(5)
    assert [int(batch["source"][0, 0]) for batch in batches] == [1, 2, 3, 4, 5]
    assert made == [7] * 5
    assert batches.options().autotune.enabled is False

"""The plan's numbers, against the ring law and the recipe's own figures."""

import dataclasses
import types

import pytest

from hvd_nmt import config as configuration
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.training.memory import Slices
from hvd_nmt.training.plan import Plan

BASE_PARAMETERS = 60_880_896
WITHIN_THE_WARMUP = "within the warm-up of 300 steps: from there the cool-down takes it to 0"


def make(config, *, parameters=BASE_PARAMETERS, hosts=("v100a", "v100a", "v100b", "v100b"),
         steps_per_epoch=4000, devices=None):  # fmt: skip
    side = types.SimpleNamespace
    train = side(pairs=4_500_000, source=side(tokens=123_456_789), target=side(tokens=130_000_000))
    manifest = side(
        parts={"train": train}, vocabulary_size=32_768, source_vocabulary_size=0, corpora=[]
    )
    return Plan(
        config=config,
        data=side(path="data/wmt16-en-de", manifest=manifest),
        batch_plan=side(
            steps_per_epoch=steps_per_epoch,
            mixture=None,
            epochs_after=lambda step: step / steps_per_epoch,
        ),
        parameters=parameters,
        hosts=list(hosts),
        devices=devices or ["CPU, 1 thread"] * len(hosts),
        reduced_by="Gloo",
        precision="float16",
        start_step=1234,
        all_reduce_s=1.827,
    )


@pytest.fixture
def base():
    return configuration.presets()["base"][1]


def test_the_recipe_on_two_hosts(base):
    """DESIGN.md section 1: 243.5 MB of gradients, 365 MB per host and direction and step."""
    plan = make(base)

    assert plan.ranks == 4
    assert plan.gradient_bytes == 243_523_584
    assert plan.sent_bytes_per_step == 365_285_376


@pytest.mark.parametrize(("asked", "said"), [(None, False), (4, False), (2, True)])
def test_more_ranks_than_asked_for_are_said_in_one_line(base, asked, said):
    plan = dataclasses.replace(make(base), asked_ranks=asked)
    lines = [line for line in plan.lines() if "2 asked for, 4 started" in line]
    assert len(lines) == int(said)


V100, T4, CPU = "Tesla V100-SXM2-16GB", "Tesla T4", "CPU, 1 thread"


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([V100] * 4, f"2 x {V100} on each host"),
        ([CPU] * 4, f"2 x {CPU} on each host"),
        ([V100, V100, T4, CPU], f"v100a: 2 x {V100}; v100b: 1 x {T4}, 1 x {CPU}"),
    ],
)
def test_what_the_ranks_compute_with_is_said(base, devices, said):
    lines = make(base, devices=devices).lines()
    assert f"devices     {said}; gradients are summed by Gloo" in lines


def test_one_rank_sends_nothing(base):
    assert make(base, hosts=["laptop"]).sent_bytes_per_step == 0


@pytest.mark.parametrize(
    "words",
    [
        "4 on v100a:2, v100b:2",
        "60,880,896 parameters, 6+6 layers, 512 wide, vocabulary 32,768, float16",
        "data/wmt16-en-de: 4,500,000 pairs, 123,456,789 + 130,000,000 tokens",
        "31,200 target tokens a step, 7,800 a rank; 4,000 steps an epoch",
        "steps 1,234 to 300,000 (75.0 epochs)",
        # 2.0 x 512^-0.5 x 8000^-0.5 = 9.88e-4; 8,000 steps of 4,000 are 2 epochs
        "rises to 9.88e-04 over 8,000 steps (2.0 epochs)",
        "243.5 MB of gradients, 365.3 MB sent by each rank a step; just measured: 1.83 s",
    ],
)
def test_the_plan_says_every_number(base, words):
    assert words in "\n".join(make(base).lines())


def test_frozen_weights_have_no_gradient(base):
    plan = dataclasses.replace(make(base), frozen=20_880_896)
    assert plan.gradient_bytes == 160_000_000
    assert plan.sent_bytes_per_step == 240_000_000
    text = "\n".join(plan.lines())
    assert "60,880,896 parameters (40,000,000 trained), 6+6 layers" in text
    assert "160.0 MB of gradients, 240.0 MB sent" in text
    assert "trained)" not in "\n".join(make(base).lines())


def test_slices_are_announced_with_what_they_save(base):
    slices = Slices(4, need_bytes=14_200_000_000, whole_bytes=40_100_000_000)
    (line,) = (
        line for line in dataclasses.replace(make(base), slices=slices).lines()
        if line.startswith("slices")
    )  # fmt: skip
    assert line == (
        "slices      4 of 1,950 target tokens a rank, one after another: a step needs about "
        "14.2 GB instead of 40.1 GB"
    )
    for one in (None, Slices(1, 10**9, 10**9)):
        assert "slices" not in "\n".join(dataclasses.replace(make(base), slices=one).lines())


def test_an_average_is_announced(base):
    training = dataclasses.replace(base.training, ema_decay=0.999)
    text = "\n".join(make(dataclasses.replace(base, training=training)).lines())
    assert "decay 0.999: what validation, BLEU and the best models are of" in text
    assert "average" not in "\n".join(make(base).lines())


@pytest.mark.parametrize(
    ("max_steps", "warmup_steps", "cooldown_steps", "words"),
    [
        (600, 300, 0, "over 300 steps (0.1 epochs)"),
        (600, 300, 80, "over 300 steps (0.1 epochs), falls to 0 over the last 80 steps"),
        (600, 300, 900, "over 300 steps (0.1 epochs), falls to 0 over the last 300 steps"),
        (300, 300, 0, "over 300 steps (0.1 epochs)"),
        (60, 300, 0, "at the last step: the warm-up of 300 steps is longer than the run"),
        (320, 300, 80, f"at step 241, {WITHIN_THE_WARMUP}"),
        (60, 300, 50, f"at step 30, {WITHIN_THE_WARMUP}"),
        (60, 300, 500, f"at step 30, {WITHIN_THE_WARMUP}"),
        (60, 300, 1, "at the last step: the warm-up of 300 steps is longer than the run"),
        (1, 300, 0, "at the last step: the warm-up of 300 steps is longer than the run"),
    ],
)  # fmt: skip
def test_the_peak_is_that_of_the_runs_own_schedule(
    base, max_steps, warmup_steps, cooldown_steps, words
):
    training = dataclasses.replace(
        base.training, max_steps=max_steps, warmup_steps=warmup_steps, cooldown_steps=cooldown_steps
    )
    config = dataclasses.replace(base, training=training)
    rate = Schedule.of(config).rate
    peak = max(rate(step) for step in range(max_steps))

    (line,) = (line for line in make(config).lines() if line.startswith("rate"))

    assert line == f"rate        rises to {peak:.2e} {words}"


def test_the_plan_follows_the_configuration(base):
    """A number that is printed but does not depend on its source would pass the test above."""
    other = dataclasses.replace(
        base, training=dataclasses.replace(base.training, warmup_steps=2000, learning_rate=1.0)
    )
    text = "\n".join(make(other, hosts=["a", "b"], steps_per_epoch=1000).lines())

    assert "2 on a:1, b:1" in text
    assert "15,600 a rank; 1,000 steps an epoch" in text
    assert f"rises to {512**-0.5 * 2000**-0.5:.2e} over 2,000 steps (2.0 epochs)" in text
    assert "243.5 MB sent by each rank" in text

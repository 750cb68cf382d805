"""Adam, and how Horovod and the loss scale wrap it (one rank, in this process)."""

import dataclasses
import inspect

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from hvd_nmt.checkpoints.state import keyed_variables
from hvd_nmt.config import TrainingConfig
from hvd_nmt.training import horovod
from hvd_nmt.training.adam import Adam
from hvd_nmt.training.exchange.all_reduce import AllReduce
from hvd_nmt.training.optimizer import build, loss_scale, state, update

CONFIG = TrainingConfig(adam_beta1=0.8, adam_beta2=0.997, adam_epsilon=1e-7)


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    assert horovod.init().size == 1
    # No leave(): tests of other modules in this process may use Horovod too.


def weights():
    rng = np.random.default_rng(1)
    shapes = [(4, 3), (3,), (5, 2)]
    return [tf.Variable(rng.normal(size=shape).astype(np.float32)) for shape in shapes]


def gradients(step):
    rng = np.random.default_rng(100 + step)
    return [tf.constant(rng.normal(size=v.shape).astype(np.float32)) for v in weights()]


def run(optimizer, variables, steps=20, clip_norm=0.0):
    optimizer.build(variables)

    @tf.function
    def apply(*values):
        update(optimizer, values, variables, tf.linalg.global_norm(values), clip_norm)

    for step in range(steps):
        optimizer.learning_rate = 0.01 * (step + 1)
        apply(*gradients(step))
    return [variable.numpy() for variable in variables]


# Adam


@pytest.mark.parametrize(("clip", "decay"), [(0.0, 0.0), (0.5, 0.0), (1e6, 0.0), (0.0, 0.3)])
def test_the_fused_adam_equals_kerass(clip, decay, on):
    """With weight decay it is AdamW, which spares vectors."""
    constants = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3, "jit_compile": False}
    theirs = weights()
    found = run(Adam(decoupled_decay=decay, **constants), weights(), clip_norm=clip)
    kerass = keras.optimizers.AdamW(weight_decay=decay, global_clipnorm=clip or None, **constants)
    kerass.exclude_from_weight_decay([v for v in theirs if v.shape.rank == 1])
    kerass.build(theirs)
    for step in range(20):
        kerass.learning_rate = 0.01 * (step + 1)
        kerass.apply_gradients(zip(gradients(step), theirs, strict=True))
    for value, reference, start in zip(found, theirs, weights(), strict=True):
        np.testing.assert_allclose(value, reference.numpy(), rtol=1e-5, atol=1e-6)
        assert np.abs(value - start.numpy()).max() > 0.1


# Horovod around Adam, the loss scale around Horovod


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_at_one_rank_horovod_changes_nothing(precision, on):
    optimizer = build(CONFIG, precision, variables := weights(), AllReduce())
    assert not isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)
    assert optimizer.jit_compile is False
    assert type(optimizer) is not Adam
    alone = Adam(beta_1=0.8, beta_2=0.997, epsilon=1e-7, jit_compile=False)
    for value, wanted in zip(run(optimizer, variables), run(alone, weights()), strict=True):
        np.testing.assert_array_equal(value, wanted)


def step_of(optimizer, variables):
    """A graph that makes a step: its loss is the sum of squares times a factor."""

    @tf.function
    def step(factor):
        scale = loss_scale(optimizer)
        scale = 1.0 if scale is None else scale
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(variable**2) for variable in variables]) * factor * scale
        found = tape.gradient(loss, variables)
        update(optimizer, found, variables, tf.linalg.global_norm(found) / scale, 0.0)

    return lambda factor: step(tf.constant(factor))


def everything(optimizer, variables):
    adam = state(optimizer, ["a", "b", "c"])
    saved = tf.train.Checkpoint(w=variables, n=adam.iterations, **adam.slots)
    if adam.loss_scale is not None:
        saved = tf.train.Checkpoint(saved=saved, scale=adam.loss_scale)
    return {key: variable.numpy() for key, variable in keyed_variables(saved)}


def test_float16_skips_a_step_that_overflows_and_lowers_the_scale(on):
    optimizer = build(CONFIG, "float16", variables := weights(), AllReduce())
    optimizer.learning_rate = 0.1
    step, scale = step_of(optimizer, variables), float(optimizer.loss_scale)
    step(1.0)
    before = everything(optimizer, variables)
    step(np.inf)
    after = everything(optimizer, variables)
    for key, value in before.items():
        if "current_loss_scale" in key:
            value = value / 2
        elif "good_steps" in key:
            value = 0
        np.testing.assert_array_equal(after[key], value, key)
    assert float(optimizer.loss_scale) == scale / 2
    start = [variable.numpy() for variable in variables]
    step(1.0)
    for variable, old in zip(variables, start, strict=True):
        assert np.all((variable.numpy() < old) == (old > 0))
    assert float(optimizer.loss_scale) == scale / 2
    assert int(optimizer.iterations) == 2


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_a_step_that_is_not_finite_touches_nothing(factor, on):
    """No weight decays either."""
    config = dataclasses.replace(CONFIG, weight_decay=0.5)
    optimizer = build(config, "float32", variables := weights(), AllReduce())
    optimizer.learning_rate = 0.1
    step = step_of(optimizer, variables)
    step(1.0)
    before = everything(optimizer, variables)
    assert len(before) == 3 * len(variables) + 1
    step(factor)
    for key, value in everything(optimizer, variables).items():
        np.testing.assert_array_equal(value, before[key], key)


def test_another_optimizer_skips_a_step_too(on):
    """The one of Adam's docstring."""
    lines = inspect.cleandoc(Adam.__doc__).splitlines()
    made = {"Adam": Adam}
    exec("\n".join(line[4:] for line in lines if line.startswith("    ")), made)
    optimizer = made["Momentum"](beta_1=0.5, decoupled_decay=0.5, jit_compile=False)
    optimizer.build(variables := weights())
    optimizer.learning_rate = 0.1
    step, start = step_of(optimizer, variables), [variable.numpy() for variable in variables]
    step(1.0)
    before = everything(optimizer, variables)
    step(np.nan)
    for key, value in everything(optimizer, variables).items():
        np.testing.assert_array_equal(value, before[key], key)
    assert all(np.all(abs(v) < abs(old)) for v, old in zip(variables, start, strict=True))


def test_the_loss_scale_moves_as_kerass_does(on):
    """It doubles after 2,000 good steps, halves at each bad one, and never falls below 1."""
    ours, kerass = (build(CONFIG, "float16", variables := weights(), AllReduce()) for _ in range(2))
    step = step_of(kerass, variables)  # of the last ones made
    ours, kerass = kerass, ours
    theirs = tf.function(lambda factor: kerass._loss_scale.update([factor])[0])
    rng, scales = np.random.default_rng(1), []
    for start, good_steps in ((2.0**15, 1990), (2.0, 1997), (2.0**127, 1995), (8.0, 0)):
        for optimizer in (ours, kerass):
            optimizer._loss_scale.current_loss_scale.assign(start)
            optimizer._loss_scale.counter.assign(good_steps)
        for number in range(40):  # first good ones, past the doubling
            factor = np.inf if number > 12 and rng.random() < 0.15 else 0.0
            step(factor)
            theirs(tf.constant(factor))
            scales.append(float(ours.loss_scale))
            assert scales[-1] == float(kerass.loss_scale)
            assert int(ours.dynamic_counter) == int(kerass.dynamic_counter)
    assert scales[8:10] == [2.0**15, 2.0**16]  # the 2,000th good step in a row
    assert scales[41:43] == [2.0, 4.0]
    assert scales[84] == 2.0**127  # which cannot double
    assert 1.0 in scales[120:]

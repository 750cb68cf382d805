"""Muon against a reference in NumPy (one rank, in this process)."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.config import TrainingConfig
from hvd_nmt.telemetry.host import cpu_flags
from hvd_nmt.training import horovod, optimizer
from hvd_nmt.training.adam import Adam
from hvd_nmt.training.exchange.all_reduce import AllReduce
from hvd_nmt.training.muon import Muon, orthogonal
from hvd_nmt.training.setup import require_equal_devices

BETA, DECAY, FACTOR, RATE = 0.8, 0.3, 3.0, 0.01
POLYNOMIALS = (8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526)
SHAPES = {"qkv": (6, 18), "outer": (12, 6), "inner": (6, 12), "embedding": (9, 6), "scale": (6,)}


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    horovod.init()


def values(seed):
    chance = np.random.default_rng(seed)
    return {name: chance.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def weights():
    return {name: tf.Variable(value, name=name) for name, value in values(1).items()}


def moved(made, variables=None, steps=3, finite=True):
    """The weights after some steps of `made`, and its momenta; `variables`: it is built of them."""
    if variables is None:
        made.build([*(variables := weights()).values()])

    @tf.function
    def apply(*gradients):
        norm = tf.linalg.global_norm(gradients) if finite else tf.constant(np.nan)
        optimizer.update(made, gradients, [*variables.values()], norm)

    for step in range(steps):
        made.learning_rate = RATE * (step + 1)
        apply(*map(tf.constant, values(100 + step).values()))
    momenta = optimizer.state(made, list(variables)).slots["m"]
    return variables, momenta


def reference(name, steps=3):
    """What Muon makes of a matrix, by singular values in float64."""
    weight, momentum = values(1)[name].astype(np.float64), 0.0
    parts = 3 if name == "qkv" else 1
    for step in range(steps):
        gradient = values(100 + step)[name]
        momentum = BETA * momentum + (1 - BETA) * gradient
        ahead = BETA * momentum + (1 - BETA) * gradient
        moves = []
        for part in np.split(ahead, parts, axis=1):
            u, s, v = np.linalg.svd(part, full_matrices=False)
            s /= 1.02 * np.linalg.norm(s)
            for a, b, c in POLYNOMIALS:
                s = a * s + b * s**3 + c * s**5
            moves.append((u * s) @ v)
        rows, columns = moves[0].shape
        rate = RATE * (step + 1) * FACTOR
        weight *= 1 - rate * DECAY
        weight -= rate * max(1, columns / rows) ** 0.5 * np.concatenate(moves, axis=1)
    return weight


def muon(**options):
    options |= {"beta_1": BETA, "decoupled_decay": DECAY, "jit_compile": False}
    return Muon(rate_factor=FACTOR, **options)


def test_matrices_move_as_the_reference_and_the_rest_by_adam(on):
    found, _ = moved(muon())
    adam, _ = moved(Adam(beta_1=BETA, decoupled_decay=DECAY, jit_compile=False))
    for name in ("qkv", "outer", "inner"):
        np.testing.assert_allclose(found[name], reference(name), atol=1e-4)
        assert np.abs(found[name] - values(1)[name]).max() > 0.05
    for name in ("embedding", "scale"):
        np.testing.assert_array_equal(found[name], adam[name])


@pytest.mark.parametrize("shape", [(5, 5), (4, 9), (9, 4), (3, 6, 6)])
def test_all_singular_values_come_near_one(shape):
    matrix = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    for dtype, slack in (("float32", 0.0), ("bfloat16", 0.05)):
        sizes = np.linalg.svd(orthogonal(tf.constant(matrix), dtype).numpy(), compute_uv=False)
        assert sizes.min() > 0.7 - slack
        assert sizes.max() < 1.28 + slack
    np.testing.assert_array_equal(orthogonal(tf.zeros([3, 4])), np.zeros([3, 4]))
    rank_one = np.outer(matrix.ravel()[:4], np.ones(5, np.float32))  # all in one singular value
    assert 0.7 < np.linalg.norm(orthogonal(tf.constant(rank_one), "bfloat16")) < 1.35


def test_a_step_that_is_not_finite_changes_nothing(on):
    found, momenta = moved(muon(), finite=False)
    for name, value in values(1).items():
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(momenta[name], np.zeros_like(value))


def test_horovod_wraps_it_with_its_own_options():
    config = TrainingConfig(
        optimizer="muon", muon_rate_factor=FACTOR, weight_decay=DECAY, adam_beta1=BETA
    )
    variables = weights()
    made = optimizer.build(config, "float32", [*variables.values()], AllReduce())
    found, _ = moved(made, variables)
    alone, _ = moved(muon(beta_2=config.adam_beta2, epsilon=config.adam_epsilon))
    for name, value in alone.items():
        np.testing.assert_array_equal(found[name], value)


def test_float16_goes_through_with_its_loss_scale():
    config = TrainingConfig(optimizer="muon")
    variables = weights()
    made = optimizer.build(config, "float16", [*variables.values()], AllReduce())
    found, _ = moved(made, variables)
    assert all(np.abs(found[name] - value).max() > 0 for name, value in values(1).items())


def test_ranks_with_other_processors_are_refused(monkeypatch):
    require_equal_devices("CPU, 1 thread")
    for other in ("CPU, 1 thread ['avx2']", f"CPU, 2 threads {sorted(cpu_flags())}"):
        monkeypatch.setattr(horovod, "gather", lambda kind, other=other: [kind, other])
        with pytest.raises(ClusterError, match=r"use training\.optimizer adam"):
            require_equal_devices("CPU, 1 thread")

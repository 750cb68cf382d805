"""Slices of a step: the same curve and weights, in less memory; how many a rank takes."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import toy
from hvd_nmt.config import ModelConfig, TrainingConfig
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.data.corpus import Sentences
from hvd_nmt.model import device
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import horovod, micro_batches, optimizer
from hvd_nmt.training.step import TrainingModel

STEPS, ROWS, LENGTH, VOCABULARY = 20, 7, 9, 40
TINY = {"encoder_layers": 1, "decoder_layers": 1, "width": 16, "heads": 2,
        "feed_forward_width": 32, "max_length": 32}  # fmt: skip
PEAK = Path(__file__).with_name("peak_of_steps.py")


def build(slices=1, precision="float32", dropout=0.0, **model):
    config = ModelConfig(**TINY, **dict.fromkeys(
        ("dropout", "attention_dropout", "feed_forward_dropout"), dropout), **model)  # fmt: skip
    training = TrainingConfig(micro_batches=slices, precision=precision)
    transformer = Transformer(config, VOCABULARY, precision, seed=1)
    model = TrainingModel(transformer, training, horovod.init())
    parts = model.trained, model.exchange
    model.compile(optimizer=optimizer.build(training, precision, *parts))
    model.optimizer.learning_rate.assign(1e-2)
    return model


def stream():
    """Batches of sentences of 2 to 9 tokens, another each time; the last row is of pad alone."""
    chance = np.random.default_rng(5)
    while True:
        sides = {}
        for name in ("source", "target"):
            ids = chance.integers(4, VOCABULARY, [ROWS, LENGTH])
            ids[np.arange(LENGTH) >= chance.integers(2, LENGTH + 1, [ROWS, 1])] = 0
            ids[-1] = 0
            sides[name] = tf.constant(ids, tf.int32)
        counts = [np.count_nonzero(ids) for ids in sides.values()]
        none = tf.zeros([1])
        yield {**sides, "tokens": tf.constant(counts, tf.float32), "sentences": none}


def train(**options):
    """What each step gave, and the weights after them."""
    model = build(**options)
    step, batches = model.make_train_function(), stream()
    results = [step(batches)["result"] for _ in range(STEPS)]
    return results, [weight.numpy() for weight in model.trained]


def column(results, name):
    return np.array([getattr(result, name) for result in results])


@pytest.fixture(scope="module")
def whole():
    """Without slices, with dropout."""
    return train(dropout=0.1)


@pytest.mark.parametrize(
    "slices", [pytest.param(4, marks=pytest.mark.both_tensorflows), 16]
)  # 16 are more than the 7 rows
def test_the_number_of_slices_changes_nothing(whole, slices):
    """The dropout masks neither: a run may be resumed with another number."""
    results, weights = train(slices=slices, dropout=0.1)
    expected, expected_weights = whole
    for name in ("loss", "nll", "gradient_norm"):
        np.testing.assert_allclose(column(results, name), column(expected, name), rtol=1e-5)
    assert column(expected, "loss")[-3:].mean() < 0.95 * column(expected, "loss")[0]
    for weight, wanted in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(weight, wanted, atol=1e-4)


def test_one_slice_is_the_whole_batch_without_a_loop(monkeypatch):
    """Not the same operations by luck: there are no others in the graph."""
    model, batch, computed = build(), next(stream()), []
    monkeypatch.setattr(model, "_of_rows", lambda *rows, scale: computed.append(rows))
    model.own_gradients(batch, 1)
    ((rows, drop),) = computed
    assert rows is batch
    assert drop._rows is None


def test_the_graph_does_not_grow_with_the_slices():
    def operations(slices):
        model, batch = build(slices), next(stream())
        graph = tf.function(model.own_gradients, autograph=False).get_concrete_function(
            batch, slices
        )
        definition = graph.graph.as_graph_def()
        return len(definition.node) + sum(len(f.node_def) for f in definition.library.function)

    two, many = operations(2), operations(64)
    assert many == pytest.approx(two, rel=0.01)  # some node or other may be there twice
    assert many < 3 * operations(1)


@pytest.mark.parametrize("slices", [1, 3])
def test_the_norm_in_float16_is_that_without_the_loss_scale(slices):
    """By which gradients are clipped, and what is logged."""
    norms = []
    for precision in ("float32", "float16"):
        model = build(slices, precision)
        values = model.train_step(next(stream()), tf.zeros([2], tf.float64))
        norms.append(model._result(values.numpy().tolist(), 0.0).gradient_norm)
    assert norms[1] == pytest.approx(norms[0], rel=0.01)


@pytest.mark.parametrize("row", [0, ROWS - 2])
def test_a_loss_that_is_not_finite_in_any_slice_is_noticed(monkeypatch, row):
    model, batch = build(slices=3), next(stream())
    ids = batch["target"].numpy()
    ids[ids == VOCABULARY - 1] = 4
    ids[row, 0] = VOCABULARY - 1
    real = model._loss

    def loss(rows, drop):
        found = tf.reduce_any(rows["target"] == VOCABULARY - 1)
        loss = real(rows, drop)
        return loss._replace(smoothed=loss.smoothed * tf.where(found, np.nan, 1.0))

    monkeypatch.setattr(model, "_loss", loss)
    values = model.train_step(batch | {"target": tf.constant(ids)}, tf.zeros([2], tf.float64))
    assert model._result(values.numpy().tolist(), 0.0).rank_not_finite == [1]


@pytest.mark.long
def test_memory_falls(tmp_path):
    """In a process of its own, whose activations are most of what it needs."""
    done = toy.python(PEAK, env=toy.environment(tmp_path))
    before, sliced, whole = json.loads(done.stdout)
    assert sliced - before < 0.6 * (whole - before)


SENTENCES = Sentences(np.full(8000, 5, np.int32), np.arange(401) * 20)
PLAN = BatchPlan(SENTENCES.lengths, SENTENCES.lengths, 2000, 1)


@pytest.fixture
def choose(monkeypatch):
    """A function: what is chosen where so many slices fit; and how many were tried."""

    def choose(fitting=1, asked="auto", others=True, on_gpu=True):
        training, tried = TrainingConfig(tokens_per_step=2000, micro_batches=asked), []
        monkeypatch.setattr(horovod, "gather", lambda mine: [mine, others])
        monkeypatch.setattr(device, "is_gpu", lambda: on_gpu)
        monkeypatch.setattr(
            micro_batches,
            "fits",
            lambda own, batch, slices: tried.append(slices) or slices >= fitting,
        )
        return micro_batches.choose(training, PLAN, 1, None), tried

    return choose


def test_out_of_memory_doubles_the_slices(choose):
    assert choose() == (1, [1])
    assert choose(fitting=3) == (4, [1, 2, 4])
    most, _ = choose(fitting=10**6)
    rows, _, _ = PLAN.padded_shapes(PLAN.epoch(0), 1)
    assert most >= max(rows) > most / 2


def test_another_ranks_memory_counts_as_well(choose):
    _, tried = choose(others=False)
    assert tried[:3] == [1, 2, 4]


def test_what_is_configured_and_processors_are_not_tried(choose):
    assert choose(fitting=2, asked=1) == (1, [])
    assert choose(asked=3) == (3, [])
    assert choose(fitting=2, on_gpu=False, others=False) == (1, [])
    assert build(3).micro_batches == 3
    assert build("auto").micro_batches == 1  # until it is chosen


def test_a_trial_computes_and_changes_nothing():
    tried = build(precision="float16")
    before = [weight.numpy().tolist() for weight in tried.trained]
    assert micro_batches.fits(tried.own_gradients, PaddedBatch(5, 6, 7), 2)
    assert [weight.numpy().tolist() for weight in tried.trained] == before
    assert int(tried.step) == int(tried.optimizer.iterations) == 0


def test_a_trial_that_lacks_memory_says_so_and_no_other_error_is_taken_for_that():
    too_little = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    errors = [too_little, MemoryError(), tf.errors.InternalError(None, None, "a bug")]

    def fail(*of):
        raise errors.pop(0)

    assert not micro_batches.fits(fail, PaddedBatch(5, 6, 7), 1)
    assert not micro_batches.fits(fail, PaddedBatch(5, 6, 7), 1)
    with pytest.raises(tf.errors.InternalError, match="a bug"):
        micro_batches.fits(fail, PaddedBatch(5, 6, 7), 1)

"""How many slices a rank takes by itself, and that all ranks take as many."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.config import ModelConfig, TrainingConfig
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.data.parallel_corpus import ParallelCorpus, Sentences
from hvd_nmt.model import device
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import horovod, micro_batches, optimizer
from hvd_nmt.training.step import TrainingModel

VOCABULARY = 64
MODEL = ModelConfig(
    encoder_layers=1, decoder_layers=1, width=16, heads=2, feed_forward_width=32, max_length=32
)  # fmt: skip
TOO_LITTLE = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


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
            lambda gradients, batch, slices: tried.append(slices) or slices >= fitting,
        )
        return micro_batches.choose(training, PLAN, 1, model().own_gradients), tried

    return choose


def corpus(sentences=400, length=20):
    ids = np.full(sentences * length, 5, np.int32)
    offsets = np.arange(sentences + 1) * length
    return ParallelCorpus(Sentences(ids, offsets), Sentences(ids, offsets))


def model(precision="float32", micro_batches="auto"):
    config = TrainingConfig(micro_batches=micro_batches)
    made = TrainingModel(Transformer(MODEL, VOCABULARY, precision, 1), config, horovod.init())
    made.compile(optimizer=optimizer.build(config, precision, made.trained))
    return made


PLAN = BatchPlan.of(corpus(), 2000, 1)


def test_out_of_memory_doubles_the_slices(choose):
    assert choose() == (1, [1])
    assert choose(fitting=3) == (4, [1, 2, 4])
    most, _ = choose(fitting=10**6)
    rows, _, _ = PLAN.padded_shapes(PLAN.epoch(0), 1)
    assert most >= max(rows) > most / 2


def test_another_ranks_memory_counts_as_well(choose):
    _, tried = choose(others=False)
    assert tried[:3] == [1, 2, 4]


def test_what_is_configured_and_processors_are_not_tried(choose, monkeypatch):
    assert choose(fitting=2, asked=1) == (1, [])
    assert choose(asked=3) == (3, [])
    monkeypatch.setattr(horovod, "gather", lambda mine: [mine])
    assert choose(fitting=2, on_gpu=False, others=False) == (1, [])
    assert model(micro_batches=3).micro_batches == 3
    assert model().micro_batches == 1  # until it is chosen


def test_a_trial_computes_and_changes_nothing():
    tried = model("float16")
    before = [weight.numpy().tolist() for weight in tried.trained]
    assert micro_batches.fits(tried.own_gradients, PaddedBatch(5, 6, 7), 2)
    assert [weight.numpy().tolist() for weight in tried.trained] == before
    assert int(tried.step) == int(tried.optimizer.iterations) == 0


def test_a_trial_that_lacks_memory_says_so_and_no_other_error_is_taken_for_that(monkeypatch):
    errors = [TOO_LITTLE, MemoryError(), tf.errors.InternalError(None, None, "a bug")]

    def fail(*of):
        raise errors.pop(0)

    tried = model()
    monkeypatch.setattr(tried, "own_gradients", fail)
    assert not micro_batches.fits(tried.own_gradients, PaddedBatch(5, 6, 7), 1)
    assert not micro_batches.fits(tried.own_gradients, PaddedBatch(5, 6, 7), 1)
    with pytest.raises(tf.errors.InternalError, match="a bug"):
        micro_batches.fits(tried.own_gradients, PaddedBatch(5, 6, 7), 1)

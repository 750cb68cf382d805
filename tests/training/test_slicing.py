"""How many slices a rank takes by itself, and that all ranks take as many."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.config import Config, ModelConfig, TrainingConfig
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.data.corpus import ParallelCorpus, Sentences
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import devices, horovod, memory, optimizer, slicing
from hvd_nmt.training.step import TrainingModel

VOCABULARY = 64
MODEL = ModelConfig(
    encoder_layers=1, decoder_layers=1, width=16, heads=2, feed_forward_width=32, max_length=32
)  # fmt: skip
TOO_LITTLE = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


@pytest.fixture
def choose(monkeypatch):
    """A function: what is chosen with some memory, for some `micro_batches`."""

    def choose(available, asked="auto", others=(), on_gpu=False):
        training = TrainingConfig(tokens_per_step=2000, micro_batches=asked)
        monkeypatch.setattr(devices, "available_memory_bytes", lambda rank: available)
        monkeypatch.setattr(horovod, "gather", lambda mine: [mine, *others])
        if on_gpu:
            monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["GPU:0"])
        made = model(micro_batches=asked)
        return slicing.choose(Config(model=MODEL, training=training), PLAN, "float32", made)

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


def enough_for(slices):
    """Memory of which the usable share is what some slices need."""
    batch = memory.worst_batch(MODEL, PLAN, 1)
    need = memory.need(
        MODEL, VOCABULARY, "float32", batch, False, snapshot=True, micro_batches=slices
    )
    return int(need.total_bytes / memory.USABLE_SHARE) + 100


@pytest.mark.parametrize("slices", [1, 2, 8])
def test_little_memory_cuts_a_step(choose, slices):
    chosen = choose(enough_for(slices))
    assert chosen.micro_batches == slices
    assert (chosen.need_bytes < chosen.whole_bytes) == (slices > 1)


def test_the_rank_with_least_memory_decides(choose):
    assert choose(enough_for(1), others=[8, 2]).micro_batches == 8


def test_what_is_configured_is_not_asked_of_the_memory(choose):
    assert choose(enough_for(8), asked=1) is None
    assert choose(enough_for(1), asked=3).micro_batches == 3
    assert model(micro_batches=3).micro_batches == 3
    assert model().micro_batches == 1  # until it is chosen


@pytest.mark.parametrize(("fits", "slices"), [(True, 2), (False, 4)])
def test_a_gpu_near_its_limit_is_tried_once(choose, monkeypatch, fits, slices):
    tried = []
    monkeypatch.setattr(
        slicing, "computes", lambda model, batch, slices: tried.append(slices) or fits
    )
    gpu_need = memory.GPU_BASE_BYTES - memory.CPU_BASE_BYTES
    available = enough_for(2) + int(gpu_need / memory.USABLE_SHARE)
    assert choose(available, on_gpu=True).micro_batches == slices
    assert tried == [2]


def test_a_gpu_with_room_is_not_tried_and_one_that_does_not_tell_is(choose, monkeypatch):
    tried = []
    monkeypatch.setattr(slicing, "computes", lambda *of: tried.append(of) or True)
    assert choose(10 * enough_for(1), on_gpu=True).micro_batches == 1
    assert tried == []
    assert choose(None, on_gpu=True).micro_batches == 1
    assert len(tried) == 1


def test_a_trial_computes_and_changes_nothing():
    tried = model("float16")
    before = [weight.numpy().tolist() for weight in tried.trained]
    assert slicing.computes(tried, PaddedBatch(5, 6, 7), 2)
    assert [weight.numpy().tolist() for weight in tried.trained] == before
    assert int(tried.step) == int(tried.optimizer.iterations) == 0


def test_a_trial_that_lacks_memory_says_so_and_no_other_error_is_taken_for_that(monkeypatch):
    errors = [TOO_LITTLE, MemoryError(), tf.errors.InternalError(None, None, "a bug")]

    def fail(*of):
        raise errors.pop(0)

    tried = model()
    monkeypatch.setattr(tried, "own_gradients", fail)
    assert not slicing.computes(tried, PaddedBatch(5, 6, 7), 1)
    assert not slicing.computes(tried, PaddedBatch(5, 6, 7), 1)
    with pytest.raises(tf.errors.InternalError, match="a bug"):
        slicing.computes(tried, PaddedBatch(5, 6, 7), 1)

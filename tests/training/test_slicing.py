"""How many slices a rank takes by itself, and that all ranks take as many."""

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
    import numpy as np

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


def test_enough_memory_leaves_a_step_whole(choose):
    chosen = choose(enough_for(1))
    assert chosen.micro_batches == 1
    assert chosen.need_bytes == chosen.whole_bytes


@pytest.mark.parametrize("slices", [2, 4, 8])
def test_little_memory_cuts_it(choose, slices):
    chosen = choose(enough_for(slices))
    assert chosen.micro_batches == slices
    assert chosen.need_bytes < chosen.whole_bytes


def test_the_rank_with_least_memory_decides(choose):
    assert choose(enough_for(1), others=[8, 2]).micro_batches == 8


def test_what_is_configured_is_not_asked_of_the_memory(choose):
    assert choose(enough_for(8), asked=1) is None
    assert choose(enough_for(1), asked=3).micro_batches == 3


def test_a_model_takes_what_is_configured_and_on_auto_one_until_it_is_chosen():
    assert model().micro_batches == 1
    assert model(micro_batches=3).micro_batches == 3


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


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_trial_computes_and_changes_nothing(precision):
    tried = model(precision)
    before = [weight.numpy().tolist() for weight in tried.trained]
    assert slicing.computes(tried, PaddedBatch(5, 6, 7), 2)
    assert [weight.numpy().tolist() for weight in tried.trained] == before
    assert int(tried.step) == int(tried.optimizer.iterations) == 0


@pytest.mark.parametrize("error", [TOO_LITTLE, MemoryError()])
def test_a_trial_that_lacks_memory_says_so(monkeypatch, error):
    def fail(*of):
        raise error

    tried = model()
    monkeypatch.setattr(tried, "own_gradients", fail)
    assert not slicing.computes(tried, PaddedBatch(5, 6, 7), 1)


def test_another_error_of_a_trial_is_not_taken_for_that(monkeypatch):
    def fail(*of):
        raise tf.errors.InternalError(None, None, "a bug")

    tried = model()
    monkeypatch.setattr(tried, "own_gradients", fail)
    with pytest.raises(tf.errors.InternalError, match="a bug"):
        slicing.computes(tried, PaddedBatch(5, 6, 7), 1)

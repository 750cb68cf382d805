"""XLA's programs give what the graph gives, and are taken only where they save time."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.config import Config, ModelConfig, TrainingConfig
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.data import shapes
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.data.corpus import ParallelCorpus, Sentences
from hvd_nmt.data.shapes import FewShapes
from hvd_nmt.model import device, dropout, loss
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import compilation, horovod, optimizer, slicing
from hvd_nmt.training.compilation import Measured
from hvd_nmt.training.step import TrainingModel

VOCABULARY = 64
MODEL = ModelConfig(
    encoder_layers=1, decoder_layers=1, width=16, heads=2, feed_forward_width=32, max_length=32,
    attention_dropout=0.1, feed_forward_dropout=0.1,
)  # fmt: skip
FEW = FewShapes(np.array([[6, 9, 8]]), 0.1, 0.8, 0.04)


def model(precision="float32", **training):
    config = TrainingConfig(**training)
    made = TrainingModel(Transformer(MODEL, VOCABULARY, precision, 1), config, horovod.init())
    made.compile(optimizer=optimizer.build(config, precision, made.trained))
    return made


def batch(shape, seed=0):
    rng = np.random.default_rng(seed)
    rows, source, target = shape
    ids = {
        name: rng.integers(4, VOCABULARY, (rows, length)).astype(np.int32)
        for name, length in (("source", source), ("target", target))
    }
    ids["source"][0, 4:] = 0
    ids["target"][1, 3:] = 0
    tokens = [float((ids[name] > 0).sum()) for name in ("source", "target", "target")]
    return {name: tf.constant(v) for name, v in ids.items()} | {"tokens": tf.constant(tokens)}


@pytest.mark.long
@pytest.mark.parametrize(("precision", "pieces"), [("float32", "pieces"), ("float16", "one piece")])
def test_a_program_gives_the_gradients_of_the_graph(precision, pieces, monkeypatch):
    """With the dropout masks of the graph, to the bit the same."""
    if pieces == "pieces":  # 49 target positions in pieces of 20
        monkeypatch.setattr(loss, "_elements_at_once", lambda: 20 * VOCABULARY)
    made, ids = model(precision), batch((7, 6, 7))
    seed_2 = dropout.step_seed(1, made.step, 0)
    graph = tf.function(lambda ids: made.own_gradients(ids, 1), autograph=False)(ids)
    program = tf.function(lambda ids: made.compiled_gradients(ids, seed_2)[1], autograph=False)(ids)
    for one, other, weight in zip(graph, program, made.trained, strict=True):
        scale = float(tf.reduce_max(abs(one)))
        largest = float(tf.reduce_max(abs(one - other)))
        assert scale > 0, weight.name
        assert largest <= {"float32": 1e-5, "float16": 1e-2}[precision] * scale, weight.name


def plan():
    rng = np.random.default_rng(0)
    sides = []
    for _ in range(2):
        offsets = np.concatenate(([0], np.cumsum(rng.integers(3, 9, 400))))
        sides.append(Sentences(np.full(offsets[-1], 5, np.int32), offsets))
    return BatchPlan.of(ParallelCorpus(*sides), 60, 1)


def chosen(made=None, **training):
    config = Config(model=MODEL, training=TrainingConfig(tokens_per_step=60, **training))
    return compilation.choose(config, plan(), made or model(), 0, all_reduce_s=0.08)


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(device, "is_gpu", lambda: True)


def test_what_is_asked_for_decides_without_a_measurement(monkeypatch):
    monkeypatch.setattr(compilation, "_measured", pytest.fail)
    assert chosen() is None  # on a processor
    assert chosen(jit_compile="off") is None
    few = chosen(jit_compile="on").few
    assert few.shapes_Nx3.tolist() == shapes.choose(plan(), 1).shapes_Nx3.tolist()
    most = slicing.largest_batch(plan(), 1)
    need = [rows * (source + target) for rows, source, target in (most, *few)]
    assert max(need) == need[0]  # no program needs more than the step that needs most
    sliced = chosen(model(micro_batches=2), jit_compile="on")  # slices have shapes of their own
    assert sliced.few is None
    assert "slices" in sliced.words
    monkeypatch.setattr(device, "is_gpu", lambda: True)
    assert "not deterministic" in chosen(max_steps=10_000, deterministic=True).words
    # Ranks without a GPU keep the others from compiling.
    monkeypatch.setattr(horovod, "gather", lambda mine: [mine, False])
    assert chosen(max_steps=10_000) is None


@pytest.mark.long
def test_auto_measures_both_on_a_gpu(on_gpu):
    """A real measurement, whose times are those of the device that is here."""
    found = chosen(max_steps=10)
    assert found.few is None, "ten steps do not pay for a compilation"
    times = re.search(r"([\d.]+) (m?s) as a program, ([\d.]+) (m?s) as a graph", found.words)
    assert times
    assert re.search(r"[1-9]\d* s to compile one", found.words), found.words


@pytest.mark.parametrize(
    ("left", "takes"),
    [
        ({"max_steps": 100}, False),
        ({"max_steps": 10_000}, True),
        ({"max_steps": 10_000, "max_hours": 0.01}, False),  # of which 120 steps take 36 s
    ],
)
def test_auto_weighs_the_steps_that_are_left(on_gpu, monkeypatch, left, takes):
    """0.1 s are saved in most steps, and a program costs 3 s."""
    monkeypatch.setattr(compilation, "_measured", lambda *of: Measured(0.3, 0.2, 3.0))
    assert (chosen(**left).few is not None) == takes


@pytest.mark.parametrize(
    "other",
    [
        ["", dataclasses.astuple(Measured(0.3, 0.4, 3.0))],
        ["a program did not fit into the memory", None],
    ],
)
def test_the_slowest_rank_decides(on_gpu, monkeypatch, other):
    monkeypatch.setattr(compilation, "_measured", lambda *of: Measured(0.3, 0.2, 3.0))
    monkeypatch.setattr(horovod, "gather", lambda mine: [mine, mine if mine is True else other])
    found = chosen(max_steps=10_000)
    assert found.few is None
    assert other[0] in found.words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (tf.errors.InternalError(None, None, "libdevice not found at ./libdevice.10.bc\nmore"),
         "XLA failed: libdevice not found at ./libdevice.10.bc"),
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), "memory"),
    ],
)  # fmt: skip
def test_a_run_goes_on_as_a_graph_where_xla_fails(on_gpu, monkeypatch, error, words):
    def fails(*of):
        raise error

    monkeypatch.setattr(compilation, "_measured", fails)
    found = chosen(max_steps=10_000)
    assert found.few is None
    assert found.words.endswith(words)


def test_a_change_of_the_exchange_keeps_the_programs_unless_islands_begin():
    made = model()
    made._program = made.programs = kept = {(1, 2, 3)}
    config = Config(model=MODEL)
    made.use(Exchange(), None, None, config)
    assert made._program is kept
    made.use(Exchange(islands=True), object(), None, config)
    assert made._program is None
    assert not made.programs


def test_what_programs_gain():
    """Steps with a program, 5 % more padding in them, and what it takes to make it."""
    gain_s = 0.8 * 1000 * (0.3 - 0.2 * 1.05) - 3.0
    assert Measured(0.3, 0.2, 3.0).gain_s(FEW, 1000, 0) == pytest.approx(gain_s)
    # An all-reduce of 10 ms would have been hidden by a graph; of a long one 20 % of computing.
    for all_reduce_s, hidden_s in ((0.01, 0.01), (5.0, 0.06)):
        found = Measured(0.3, 0.2, 3.0).gain_s(FEW, 1000, all_reduce_s)
        assert found == pytest.approx(gain_s - 800 * hidden_s)


def test_only_shapes_of_programs_are_compiled():
    made = model()
    made.compiled = FEW
    assert PaddedBatch(6, 9, 8) in made.compiled
    steps = []
    made._traced_step = lambda compiled: lambda *batch: steps.append(compiled)
    train = made.make_train_function()
    for shape in [(6, 9, 8), (6, 8, 8)]:
        with pytest.raises(AttributeError):  # there are no values to log
            train(iter([batch(shape)]))
    assert steps == [True, False]

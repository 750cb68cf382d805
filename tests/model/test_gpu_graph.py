"""What a GPU would have to do for a training step and for a search; none is needed.

The counts are golden: a change that adds a wait, an operation without a kernel or a launch says
why. Of another size, for docs/results.md:

    HVD_NMT_GRAPH_OF=base pytest -s tests/model/test_gpu_graph.py -k counts
"""

import collections
import os

import pytest

import gpu_graph
from hvd_nmt.config import ModelConfig, TrainingConfig
from hvd_nmt.config.presets import presets
from hvd_nmt.model import device
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.transformer import OpenSeq2SeqTransformer, Transformer
from hvd_nmt.model.translator import Translator
from hvd_nmt.training import horovod, optimizer
from hvd_nmt.training.step import TrainingModel

PRESET = os.environ.get("HVD_NMT_GRAPH_OF", "")
MODEL = ModelConfig(1, 1, 64, 4, 128, attention_dropout=0.1, feed_forward_dropout=0.1)
CONFIG = presets()[PRESET][1].model if PRESET else MODEL
VOCABULARY = 32_768 if PRESET in ("base", "big") else 4096  # its best are found block by block
SHORT = ("float16", False)
"""the step that is counted before each commit; the others run through the same code"""


@pytest.fixture(autouse=True)
def _for_a_gpu(monkeypatch):
    monkeypatch.setattr(device, "is_gpu", lambda: True)


def of_step(precision, **training):
    """Of a training step, on one rank."""
    config = TrainingConfig(**training)
    transformer = Transformer(CONFIG, VOCABULARY, precision)
    average = Transformer(CONFIG, VOCABULARY, precision) if config.ema_decay else None
    model = TrainingModel(transformer, config, horovod.init(), average=average)
    model.compile(optimizer=optimizer.build(config, precision, model.trained, model.exchange))
    step = model._traced_step().get_concrete_function()
    return gpu_graph.count(step, [model.step, model._clock._reached])


def of_search(precision, decoding, models=1, kind=Transformer):
    """Of a search for translations, with its loops."""
    translator = Translator([kind(CONFIG, VOCABULARY, precision)] * models, decoding)
    return gpu_graph.count(translator.search.get_concrete_function())


def said(name, counts):
    """Whether this is the size of the golden counts; else they are printed."""
    if PRESET:
        print(f"\n{PRESET}, {name}: {counts.launches:,} launches, {len(counts.to_host)} waits")
        print(" ", dict(collections.Counter(counts.to_host).most_common()))
        print(" ", counts.without_kernel, counts.operations)
    return not PRESET


STEPS = {"float32": {}, "float16": {}, "bfloat16": {"ema_decay": 0.999, "clip_norm": 1.0}}
LAUNCHES = {"float32": (614, 130), "float16": (718, 148), "bfloat16": (765, 196)}
"""of a step, and of what is left of it where XLA compiles forward and backward pass"""


@pytest.mark.parametrize(
    ("precision", "compiled"),
    [
        pytest.param(dtype, compiled, marks=() if (dtype, compiled) == SHORT else pytest.mark.long)
        for dtype in STEPS for compiled in (False, True)
    ],
)  # fmt: skip
def test_counts_of_a_training_step(precision, compiled):
    counts = of_step(precision, jit_compile=compiled, **STEPS[precision])
    if said(f"{precision}, around a program" if compiled else precision, counts):
        assert counts.programs == compiled
        # When the gradients are ready is awaited, and nothing else.
        assert counts.to_host == ["StridedSlice -> AssignVariableOp"]
        assert counts.without_kernel == []
        assert counts.launches == LAUNCHES[precision][compiled]


SEARCHES = {"float32": (Decoding(), 303), "float16": (Decoding(), 339),
            "bfloat16": (Decoding(beam_size=1), 329)}  # fmt: skip


@pytest.mark.parametrize(
    "precision",
    [
        "float32",
        *(pytest.param(dtype, marks=pytest.mark.long) for dtype in ("float16", "bfloat16")),
    ],
)
def test_counts_of_a_search(precision):
    decoding, launches = SEARCHES[precision]
    counts = of_search(precision, decoding)
    if said(f"search in {precision}", counts):
        assert counts.to_host.count("LogicalAnd -> LoopCond") == 1  # for each position
        assert len(counts.to_host) == 8
        assert counts.without_kernel == []
        assert counts.launches == launches


@pytest.mark.long
@pytest.mark.skipif(bool(PRESET), reason="only the counts are asked for")
def test_slices_of_a_step_are_cut_without_waiting():
    counts = of_step("float16", micro_batches=3)
    assert counts.to_host == ["StridedSlice -> AssignVariableOp"]
    assert counts.without_kernel == []


OTHER_SEARCHES = {
    "sampling": {"decoding": Decoding(sample=True, top_k=8, top_p=0.9, n_best=2)},
    "coverage": {"decoding": Decoding(coverage_penalty=0.2)},
    "n-grams": {"decoding": Decoding(no_repeat_ngram=3, min_length=4)},
    "marian": {"decoding": Decoding(normalization="marian")},
    "ensemble": {"decoding": Decoding(), "models": 2},
    "OpenSeq2Seq": {"decoding": Decoding(), "kind": OpenSeq2SeqTransformer},
}


@pytest.mark.both_tensorflows
@pytest.mark.long
@pytest.mark.skipif(bool(PRESET), reason="only the counts are asked for")
@pytest.mark.parametrize("name", OTHER_SEARCHES)
def test_every_search_has_kernels_and_waits_little(name):
    counts = of_search("float16", **OTHER_SEARCHES[name])
    assert counts.without_kernel == []
    assert counts.to_host.count("LogicalAnd -> LoopCond") == 1
    assert len(counts.to_host) <= 12

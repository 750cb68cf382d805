"""What a CPU does for a training step, for scores and for a search, counted and not timed."""

import os

import pytest
import tensorflow as tf

import cpu_graph
from hvd_nmt.config import ModelConfig, TrainingConfig
from hvd_nmt.explain import flops
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.scorer import Scorer
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.model.translator import Translator
from hvd_nmt.training import horovod, optimizer
from hvd_nmt.training.step import TrainingModel
from toy import python

TINY = ModelConfig(1, 1, 64, 4, 128, dropout=0.1)
SMALL = ModelConfig()
"""that of the preset `small`, but for rotary positions, which write a tenth more"""
B, S, T, VOCABULARY = 16, 60, 64, 8000
HALF = [pytest.param(dtype, marks=pytest.mark.long) for dtype in ("bfloat16", "float16")]
ELEMENT_AS_MULTIPLY_ADDS = 50
"""a thread with AVX-512 makes about 50 of them while it reads and writes one number"""


def model_under_training(config, precision="float32", vocabulary=512):
    transformer = Transformer(config, vocabulary, precision)
    model = TrainingModel(transformer, TrainingConfig(), horovod.init())
    parts = model.trained, model.exchange
    model.compile(optimizer=optimizer.build(model.config, precision, *parts))
    return model


def of_step(precision):
    return model_under_training(TINY, precision)._traced_step()


def of_evaluation(precision):
    model = model_under_training(TINY, precision)
    ids = tf.TensorSpec([None, None], tf.int32)

    def loss(source, target):
        return model._loss({"source": source, "target": target}, lambda x, rate: x)

    return tf.function(loss, input_signature=[ids, ids], autograph=False)


def of_scores(precision):
    return Scorer(Transformer(TINY, 512, precision))._graph


def of_search(precision):
    return Translator(Transformer(TINY, 512, precision), Decoding()).search


@pytest.mark.both_tensorflows
@pytest.mark.parametrize("precision", ["float32", *HALF])
@pytest.mark.parametrize("graph", [of_step, of_evaluation, of_scores, of_search])
def test_no_product_of_attention_is_fused_with_its_bias(graph, precision):
    """oneDNN would take hundreds of times as long for it, if the bias is [1, 1, T, T]."""
    found = cpu_graph.operations(cpu_graph.optimised(graph(precision).get_concrete_function()))
    assert found["BatchMatMulV2"] >= 6  # two for each of three attentions
    assert [kind for kind in found if "Fused" in kind and "BatchMatMul" in kind] == []


_FUSED = """
import cpu_graph, tensorflow as tf
def scaled_then_biased(x):
    return tf.nn.softmax(tf.matmul(x, x, transpose_b=True) * 0.5 + tf.ones([1, 1, 7, 7]))
x = tf.TensorSpec([None, 2, 7, 8], tf.float32)
traced = tf.function(scaled_then_biased, input_signature=[x]).get_concrete_function()
print(cpu_graph.operations(cpu_graph.optimised(traced))["_MklFusedBatchMatMulV2"])
"""


@pytest.mark.both_tensorflows
def test_the_fusion_is_seen():
    """With oneDNN, which TensorFlow leaves off on processors without AVX-512 or AMX."""
    wanted = {"TF_ENABLE_ONEDNN_OPTS": "1", "PYTHONPATH": os.path.dirname(cpu_graph.__file__)}
    assert python("-c", _FUSED, env=os.environ | wanted).stdout == "1\n"


@pytest.fixture(scope="module")
def step():
    """A training step of known shapes."""
    model = model_under_training(SMALL, vocabulary=VOCABULARY)
    batch = {
        "source": tf.TensorSpec([B, S], tf.int32), "target": tf.TensorSpec([B, T], tf.int32),
        "tokens": tf.TensorSpec([3]), "sentences": tf.TensorSpec([1]),
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf, "cond", lambda _, usual, otherwise: usual())
        traced = tf.function(
            model.train_step, input_signature=[batch, tf.TensorSpec([2], tf.float64)],
            autograph=False,
        )  # fmt: skip
        yield traced.get_concrete_function()


def test_a_step_multiplies_no_more_than_the_model_needs(step):
    needed = flops.flops_of_step(SMALL, VOCABULARY, B * S, B * T, B) / 2
    assert 1.0 <= cpu_graph.multiply_adds(step) / needed < 1.01


def test_no_operation_writes_more_than_the_products_of_a_step_justify(step):
    products = cpu_graph.multiply_adds(step)
    share = {
        kind: numbers * ELEMENT_AS_MULTIPLY_ADDS / products
        for kind, numbers in cpu_graph.elements(step).items()
    }
    assert max(share.values()) < 0.12  # Mul, of dropout most of all
    assert sum(share.values()) < 0.46

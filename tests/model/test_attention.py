"""Attention against plain NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.config import ModelConfig
from hvd_nmt.model.attention import (
    CrossAttention,
    SelfAttention,
    causal_bias,
    cross_keys_values,
    padding_bias,
)
from hvd_nmt.model.dropout import no_dropout
from hvd_nmt.model.layers import seeds

BATCH, LENGTH, WIDTH, HEADS = 3, 5, 12, 3
UNITS = WIDTH // HEADS
CONFIG = ModelConfig(width=WIDTH, heads=HEADS, attention_dropout=0.25)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def heads_of(x_BxTxD):
    """[B, T, D] to [B, H, T, K], by loops."""
    return np.stack(
        [x_BxTxD[:, :, h * UNITS : (h + 1) * UNITS] for h in range(HEADS)], axis=1
    ).astype(np.float64)


def reference(q_BxQxD, k_BxTxD, v_BxTxD, allowed_BxQxT, output_kernel_DxD):
    """Multi-head attention with the mask as a set of allowed positions, in float64."""
    q, k, v = map(heads_of, (q_BxQxD, k_BxTxD, v_BxTxD))
    logits = np.einsum("bhqk,bhtk->bhqt", q, k) / np.sqrt(UNITS)
    logits = np.where(allowed_BxQxT[:, None], logits, -np.inf)
    y_BxHxQxK = np.einsum("bhqt,bhtk->bhqk", softmax(logits), v)
    return np.concatenate(list(y_BxHxQxK.transpose(1, 0, 2, 3)), axis=-1) @ output_kernel_DxD


def is_pad():
    return np.arange(LENGTH)[None] >= np.array([5, 3, 1])[:, None]


def masks(kind):
    """A mask as a bias, and as allowed positions [B, T, T]."""
    if kind == "padding":
        return padding_bias(tf.constant(is_pad())), ~is_pad()[:, None].repeat(LENGTH, 1)
    allowed = np.tril(np.ones([LENGTH, LENGTH], bool))[None].repeat(BATCH, 0)
    return causal_bias(tf.constant(LENGTH)), allowed


@pytest.mark.parametrize("mask", ["padding", "causal"])
def test_self_attention_equals_the_reference(mask):
    block = SelfAttention(CONFIG, seeds(1), "attention")
    x = normal(BATCH, LENGTH, WIDTH)

    def drop(weights, rate):
        assert rate == 0.25
        assert weights.shape == (BATCH, HEADS, LENGTH, LENGTH)
        return weights

    q, k, v = np.split(x @ block.qkv.numpy(), 3, axis=-1)
    bias, allowed = masks(mask)
    wanted = reference(q, k, v, allowed, block.output_kernel.numpy())
    np.testing.assert_allclose(block(x, bias, drop), wanted, rtol=1e-4, atol=1e-5)


def test_cross_attention_equals_the_reference():
    """Of each layer, though keys and values of all come from one product."""
    blocks = [CrossAttention(CONFIG, seeds(seed), "attention") for seed in (1, 2)]
    x, memory = normal(BATCH, 4, WIDTH), normal(BATCH, LENGTH, WIDTH, seed=1)
    allowed = ~is_pad()[:, None].repeat(4, 1)
    bias = padding_bias(tf.constant(is_pad()))
    for block, keys_values in zip(blocks, cross_keys_values(memory, blocks), strict=True):
        k, v = np.split(memory @ block.key_value.numpy(), 2, axis=-1)
        q = x @ block.query.numpy()
        wanted = reference(q, k, v, allowed, block.output_kernel.numpy())
        found, weights = block(x, keys_values, bias, no_dropout)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            tf.reduce_sum(weights, -1), np.ones([BATCH, HEADS, 4]), rtol=1e-5
        )

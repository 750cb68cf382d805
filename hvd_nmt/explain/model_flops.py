"""Floating-point operations that a training step of a Transformer needs, whatever computes it.

A product with a matrix of W weights costs 6 W a token: 2 W forward and 4 W backward. Attention of a
query over T keys costs 12 D T: 4 D T forward, for two products. Causal attention counts in full, as
it is computed; padding does not count, nor what is no product (norms, softmax, the optimizer).

Source: Chowdhery et al. 2022 (PaLM, arXiv 2204.02311), appendix B, for the model with an encoder.
"""

from __future__ import annotations

from hvd_nmt.config import ModelConfig


def of_step(
    model: ModelConfig, vocabulary_size: int, source_tokens: float, target_tokens: float,
    sentences: float,
) -> float:  # fmt: skip
    """Operations of a training step with so many real tokens, forward and backward.

    Its sentences are taken to be of one length, as batches nearly are.
    """
    source_weights, target_weights = product_weights(model, vocabulary_size)
    products = source_weights * source_tokens + target_weights * target_tokens
    pairs = max(1.0, sentences)
    encoder, decoder = model.encoder_layers, model.decoder_layers
    looked_at = encoder * source_tokens**2 + decoder * target_tokens * (
        target_tokens + source_tokens
    )
    return 6 * products + 12 * model.width * looked_at / pairs


def product_weights(model: ModelConfig, vocabulary_size: int) -> tuple[int, int]:
    """Weights of the matrices that a source token and a target token are multiplied with.

    The vocabulary counts as rows of the softmax matrix; looking an embedding up is no product.
    """
    square, feed_forward = model.width**2, 2 * model.width * model.feed_forward_width
    # Keys and values of the source are made of source tokens, one pair for each decoder layer.
    source = model.encoder_layers * (4 * square + feed_forward) + model.decoder_layers * 2 * square
    target = model.decoder_layers * (6 * square + feed_forward) + model.width * vocabulary_size
    return source, target

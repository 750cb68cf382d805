"""The floating-point operations of a training step."""

from hvd_nmt.config import ModelConfig


def flops_of_step(
    model: ModelConfig, vocabulary_size: int, source_tokens: float, target_tokens: float,
    sentences: float,
) -> float:  # fmt: skip
    """Operations that a training step with so many real tokens needs on any device.

    A product with a matrix of W weights costs 6 W a token: 2 W forward and 4 W backward. Attention
    of a query over T keys costs 12 D T: 4 D T forward, for two products; causal attention counts in
    full, as it is computed, and sentences as of one length. Not counted are padding and what is no
    product: norms, softmax, looking up embeddings, the optimizer.

    Source: Chowdhery et al. 2022 (PaLM, arXiv 2204.02311), appendix B.
    """
    encoder, decoder, width = model.encoder_layers, model.decoder_layers, model.width
    square, feed_forward = width**2, 2 * width * model.feed_forward_width
    # Keys and values of the source are made of source tokens, one pair for each decoder layer.
    source_weights = encoder * (4 * square + feed_forward) + decoder * 2 * square
    target_weights = decoder * (6 * square + feed_forward) + width * vocabulary_size
    products = source_weights * source_tokens + target_weights * target_tokens
    both_tokens = source_tokens + target_tokens
    looked_at = encoder * source_tokens**2 + decoder * target_tokens * both_tokens
    return 6 * products + 12 * width * looked_at / max(1.0, sentences)

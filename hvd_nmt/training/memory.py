"""How much memory a configuration will need: known before anything is built.

Of one rank, with P parameters, of which Q are not frozen, and `a` bytes per value of the
computation (4 in float32, else 2):

    weights                  4 P   float32
    average                  4 P   float32, with `training.ema_decay`
    Adam                     8 Q   two moments
    islands                  4 Q   the weights of all hosts; as much again with outer momentum
    snapshot                       weights, average and Adam once more where a checkpoint is written
                                   in the background; on a GPU that is in main memory
    narrow weights           2 P   their bfloat16 or float16 copies, none in float32
    gradients                8 Q   this rank's own, and the sums that Horovod returns
    added gradients          4 Q   of slices that are done, with `training.micro_batches`
    fusion buffer            one gradient, at most 128 MB: where Horovod packs gradients
    activations                    what the forward pass keeps for the backward pass, see below
    softmax                        logits and probabilities of the pieces that the loss takes
    base                           TensorFlow's code and pools, or the context of CUDA and NCCL

Activations per target token, with width D, hidden width F, H heads (source tokens likewise):

    layer normalisation   4 D + a D     the normalised values in float32, and the output
    self-attention        4 a D         queries, keys, values, merged heads
    cross-attention       2 a D         queries and merged heads; keys and values: 2 a D per source
                                        token and decoder layer
    feed-forward          a F           the hidden units after the ReLU
    a dropout site        a x its units the scaled mask, and where its output is multiplied again
                                        (hidden units, attention weights) the output too
    attention weights     a H T         per token and attended position, in B x H x T x T

The backward pass adds the gradients of one layer's largest parts while it goes through them.

With micro-batches, activations and softmax are those of one slice.

Measured on the CPU in float32, peak of a rank against `need`, Multi30k: 0.81 GB of 0.85 (preset
demo, 256 tokens a step), 1.65 of 1.88 (small, 4,096 tokens), 3.23 of 3.32 (small, 12,288 tokens).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_nmt.checkpoints import size
from hvd_nmt.common.gradient import bytes_of_gradients
from hvd_nmt.config import ModelConfig
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import PaddedBatch

FUSION_BUFFER_BYTES = 128 << 20
"""Horovod's default HOROVOD_FUSION_THRESHOLD"""
PIECE_ELEMENTS = 1 << 24, 1 << 26
"""logits that the loss holds at a time, `model.loss.ON_CPU` and `ON_GPU`"""
CPU_BASE_BYTES = 750_000_000
"""resident memory of a rank on the CPU before it holds a model: TensorFlow and its libraries"""
GPU_BASE_BYTES = 900_000_000
"""on a GPU: CUDA context, cuBLAS workspace, NCCL buffers"""
SLACK = 1.15
"""an allocator cannot use every byte: blocks are rounded up and lie between others"""
USABLE_SHARE = 0.9
"""of the free memory: a need up to that is taken to fit"""
_WORTH = 0.9
"""doubling the slices makes a difference when they then need less than this share"""


@dataclass(frozen=True)
class Need:
    """Memory of one rank at its peak, bytes."""

    state_bytes: int
    """weights, their average and other copies, and Adam's moments"""
    gradient_bytes: int
    """own, added and summed gradients, and the fusion buffer"""
    activation_bytes: int
    """kept from the forward to the backward pass; grows with the tokens of a step"""
    softmax_bytes: int
    """logits and probabilities; grows with the tokens up to a limit"""
    base_bytes: int
    """what a rank takes before it holds a model"""

    @property
    def total_bytes(self) -> int:
        """All of it, with the allocator's slack on what TensorFlow allocates."""
        batch = self.activation_bytes + self.softmax_bytes
        return int((self.state_bytes + self.gradient_bytes + batch) * SLACK) + self.base_bytes


@dataclass(frozen=True)
class Slices:
    """In how many slices each rank computes its share of a step."""

    micro_batches: int
    """their number; 1: all at once"""
    need_bytes: int
    """memory of one rank at its peak with them, predicted"""
    whole_bytes: int
    """the same with one"""


def need(
    model: ModelConfig,
    vocabulary_size: int,
    precision: str,
    batch: PaddedBatch,
    on_gpu: bool,
    *,
    freeze: str = "",
    averaged: bool = False,
    copies: int = 0,
    snapshot: bool = False,
    micro_batches: int = 1,
    source_vocabulary_size: int = 0,
) -> Need:
    """Memory of one rank at its peak.

    Args:
        model: sizes and dropout.
        vocabulary_size: rows of the softmax matrix.
        precision: float32, bfloat16 or float16.
        batch: of the step that needs most.
        on_gpu: the rank computes on a GPU.
        freeze: `training.freeze`.
        averaged: whether there is a moving average (`training.ema_decay`).
        copies: of the trained weights, see `config.exchange.copies_of_weights`.
        snapshot: whether this rank writes checkpoints in the background.
        micro_batches: slices in which the batch is computed.
        source_vocabulary_size: rows of the source's own matrix; 0: it has none.

    Raises:
        ConfigError: `freeze` names no weight.
    """
    saved = size.predict(
        model, vocabulary_size, freeze=freeze, averaged=averaged,
        source_vocabulary_size=source_vocabulary_size,
    )  # fmt: skip
    gradient_bytes = bytes_of_gradients(saved.trained)
    rows, source, target = batch
    rows = -(-rows // micro_batches)
    value = 4 if precision == "float32" else 2  # bytes
    narrow_bytes = 0 if value == 4 else value * saved.parameters
    logits = min(rows * target * vocabulary_size, max(PIECE_ELEMENTS[on_gpu], vocabulary_size))
    # float16 probabilities are made in float32 and cast, see `model.loss`.
    per_logit = 12 if precision == "float16" else 2 * value
    saved_bytes = saved.weight_bytes + saved.average_bytes + saved.adam_bytes
    snapshot_bytes = saved_bytes if snapshot and not on_gpu else 0
    return Need(
        state_bytes=saved_bytes + snapshot_bytes + narrow_bytes + copies * gradient_bytes,
        gradient_bytes=(2 if micro_batches == 1 else 3) * gradient_bytes
        + min(gradient_bytes, FUSION_BUFFER_BYTES),
        activation_bytes=int(activation_bytes(model, value, rows, source, target)),
        softmax_bytes=logits * per_logit + 2 * 4 * vocabulary_size * model.width,
        base_bytes=GPU_BASE_BYTES if on_gpu else CPU_BASE_BYTES,
    )


def slices_that_fit(need_of: Callable[[int], Need], rows: int, available_bytes: int) -> int:
    """In how many slices a batch fits into some memory: the least power of two.

    Args:
        need_of: number of slices -> need of one rank in the step that needs most.
        rows: of that batch; more slices than these do not exist.
        available_bytes: of one rank.

    Returns:
        The number; 0 if one row at a time is too much.
    """
    for slices in powers_of_two(rows):
        if need_of(slices).total_bytes <= available_bytes:
            return slices
    return 0


def slices_to_take(need_of: Callable[[int], Need], rows: int, available_bytes: int) -> int:
    """What `training.micro_batches` auto takes for a rank.

    Args:
        need_of, rows, available_bytes: see `slices_that_fit`.

    Returns:
        That number; where nothing fits, as many as make a difference: more would only be slower.
    """
    slices = slices_that_fit(need_of, rows, available_bytes)
    if slices:
        return slices
    *fewer, most = powers_of_two(rows)
    for slices in fewer:
        if need_of(2 * slices).total_bytes > _WORTH * need_of(slices).total_bytes:
            return slices
    return most


def powers_of_two(rows: int) -> list[int]:
    """1, 2, 4, ... up to the first that leaves one row to a slice."""
    return [1 << power for power in range((rows - 1).bit_length() + 1)]


def most_tokens(need_of: Callable[[int], Need], tokens_per_step: int, available_bytes: int) -> int:
    """The most tokens per step, in hundreds below a given number, that some memory is enough for.

    Args:
        need_of: tokens per step -> need of one rank in the step that needs most.
        tokens_per_step: more than fit.
        available_bytes: of one rank.

    Returns:
        The number; 0 if not even a hundred fit.
    """
    hundreds = range(1, tokens_per_step // 100)
    return 100 * bisect.bisect_right(
        hundreds, available_bytes, key=lambda number: need_of(100 * number).total_bytes
    )


def activation_bytes(model: ModelConfig, value: int, rows: Any, source: Any, target: Any) -> Any:
    """Bytes that the forward pass keeps, and the largest transient ones of the backward pass.

    Args:
        model: sizes and dropout.
        value: bytes per value of the computation.
        rows: sentences of one rank; this and the next may be NumPy arrays of equal shape.
        source: padded source length, tokens.
        target: padded target length, tokens.
    """
    width, hidden, heads = model.width, model.feed_forward_width, model.heads
    sites = bool(model.dropout)
    norm = (4 + value) * width
    stream = value * width * sites  # the mask of a sub-layer's output
    inner = value * hidden * (3 if model.feed_forward_dropout else 1)
    scores = value * heads * (3 if model.attention_dropout else 1)
    encoder_token = 2 * (norm + stream) + 4 * value * width + inner
    decoder_token = 3 * (norm + stream) + 6 * value * width + inner
    source_tokens, target_tokens = rows * source, rows * target
    kept = (
        model.encoder_layers * (source_tokens * encoder_token + source_tokens * source * scores)
        + model.decoder_layers * (
            target_tokens * (decoder_token + (target + source) * scores)
            + source_tokens * 2 * value * width
        )
        + (source_tokens + target_tokens) * (norm + stream)
    )  # fmt: skip
    layer = 2 * value * (hidden + 4 * width)
    transient = (source_tokens + target_tokens) * layer + rows * heads * 2 * value * (
        source * source + target * target
    )
    return kept + transient


def worst_batch(model: ModelConfig, plan: BatchPlan, ranks: int) -> PaddedBatch:
    """The batch of the first epochs of all stages that keeps most activations.

    Args:
        model: sizes and dropout.
        plan: of the training corpus.
        ranks: number of ranks.
    """
    shapes = [plan.padded_shapes(plan.epoch(epoch), ranks) for epoch in plan.first_epochs]
    rows, source, target = (np.concatenate(values) for values in zip(*shapes, strict=True))
    worst = int(np.argmax(activation_bytes(model, 4, rows, source, target)))
    return PaddedBatch(int(rows[worst]), int(source[worst]), int(target[worst]))


def widest_batch(tokens_per_step: int, ranks: int, max_length: int) -> PaddedBatch:
    """A bound for a corpus that is not there to be looked at: every sentence of the longest kind.

    Args:
        tokens_per_step: target tokens of a step over all ranks.
        ranks: number of ranks.
        max_length: longest sentence, tokens.
    """
    rows = -(-tokens_per_step // max_length) + 1
    return PaddedBatch(-(-rows // ranks), max_length, max_length)

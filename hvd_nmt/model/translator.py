"""Source ids in, target ids out: a model, its beam search and the batches they work best in.

B sentences, S source and T target positions, K beams, N = B*K rows, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_nmt.config import EOS, PAD
from hvd_nmt.model.beam_search import BeamResult, beam_search

if TYPE_CHECKING:
    from hvd_nmt.model.transformer import Transformer

# A translation may be this much longer than its source (Vaswani et al. 2017, section 6.1).
EXTRA_TOKENS = 50


class Translation(NamedTuple):
    """What became of one sentence."""

    ids: np.ndarray  # int32, ends with eos unless cut at the maximum length; empty if none
    score: float  # log-probability / length penalty; -inf where the model gave no translation


class Translator:
    """Translates with the weights the model has at the moment of the call.

    Args:
        model: a Transformer, or anything with its `encode`, `initial_cache`, `decode_step`,
            `vocabulary_size` and `max_length`.
        beam_size: hypotheses kept per sentence; 1 is greedy and fastest.
        length_penalty: alpha of ((5 + length) / 6) ** alpha.
    """

    def __init__(
        self, model: "Transformer", *, beam_size: int = 4, length_penalty: float = 0.6
    ) -> None:
        self._model = model
        self._beam_size = beam_size
        self._length_penalty = length_penalty
        # One graph for batches of every shape: a new shape must not cost a new trace.
        any_batch = tf.TensorSpec([None, None], tf.int32)
        self.search = tf.function(self._search, input_signature=[any_batch])

    @property
    def max_length(self) -> int:
        """Longest source and longest translation, tokens with eos."""
        return self._model.max_length

    def translate(
        self, sources: Sequence[np.ndarray], batch_tokens: int = 4096
    ) -> Iterator[tuple[int, Translation]]:
        """Translate sentences of any number and length.

        Args:
            sources: ids of each sentence, ending with eos. More than `max_length` are cut to it.
            batch_tokens: source tokens, padding included, that are translated at once. A longer
                sentence makes a batch of its own.

        Yields:
            (index into `sources`, Translation), longest sources first, so that memory peaks in the
            first batch. A source of eos alone is an empty translation with score 0.
        """
        limit = self.max_length
        cut = [ids if len(ids) <= limit else np.append(ids[: limit - 1], EOS) for ids in sources]
        for index, ids in enumerate(cut):
            if len(ids) <= 1:
                yield index, Translation(ids[:0], 0.0)
        for batch in batches([len(ids) for ids in cut], batch_tokens):
            found = self.search(tf.constant(padded([cut[index] for index in batch])))
            best = (tensor[:, 0].numpy() for tensor in found)
            for index, ids_T, length, score in zip(batch, *best, strict=True):
                yield index, Translation(ids_T[:length], float(score))

    def translate_ids(self, source_BxS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The best translation of each source of a padded batch.

        Args:
            source_BxS: int32 ids, each row ending with eos, then padded with 0.

        Returns:
            ids_BxT int32, padded with 0, and scores_B float32.
        """
        found = self.search(tf.constant(source_BxS, tf.int32))
        return found.ids_BxKxT[:, 0].numpy(), found.scores_BxK[:, 0].numpy()

    def _search(self, source_BxS: tf.Tensor) -> BeamResult:
        model = self._model
        memory = model.encode(source_BxS)
        length_B = tf.math.count_nonzero(source_BxS != PAD, axis=1, dtype=tf.int32)
        max_length_B = tf.minimum(length_B + EXTRA_TOKENS, model.max_length)
        max_length_B = tf.where(length_B > 0, max_length_B, 0)
        rows = tf.shape(source_BxS)[0] * self._beam_size
        cache = model.initial_cache(rows)
        return beam_search(
            lambda ids_N, position, cache: model.decode_step(ids_N, position, memory, cache),
            cache,
            max_length_B,
            vocabulary_size=model.vocabulary_size,
            beam_size=self._beam_size,
            length_penalty_alpha=self._length_penalty,
        )


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of sentences of similar length, longest first; those of up to 1 token are left out.

    Args:
        lengths: tokens of each sentence, eos included.
        batch_tokens: most tokens of a batch, padding included, unless one sentence is longer.
    """
    order = [int(i) for i in np.argsort(-np.asarray(lengths), kind="stable") if lengths[i] > 1]
    while order:
        rows = max(1, batch_tokens // lengths[order[0]])
        yield order[:rows]
        order = order[rows:]


def padded(sources: Sequence[np.ndarray]) -> np.ndarray:
    """A batch source_BxS, int32, padded with 0."""
    source_BxS = np.full((len(sources), max(map(len, sources))), PAD, np.int32)
    for row_S, ids in zip(source_BxS, sources, strict=True):
        row_S[: len(ids)] = ids
    return source_BxS

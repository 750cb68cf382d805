"""Source ids in, target ids out: models, their search and the batches they work best in."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_nmt.config import PAD
from hvd_nmt.model import device
from hvd_nmt.model.batching import batches, cut, padded
from hvd_nmt.model.beam_search import BeamResult, Given, beam_search
from hvd_nmt.model.decoding import EXTRA_TOKENS, Decoding
from hvd_nmt.model.layers import converted_once
from hvd_nmt.model.scorer import Scorer, TokenScores, mean_attention, mean_probability, members
from hvd_nmt.model.transformer import Transformer

DEFAULT = Decoding()
NO_TOKENS = TokenScores(np.zeros(0, np.float32), np.zeros(0, np.int32))


class Translation(NamedTuple):
    """One of the translations of a sentence."""

    ids: np.ndarray  # int32, ends with eos unless cut at the maximum length; empty if none
    score: float  # see `beam_search`; -inf where the model gave no translation
    token_scores: np.ndarray | None = None  # float32 [T], log-probability of each token
    alignment: np.ndarray | None = None  # int32 [T], the source position each token looked at most


class Translator:
    """Translates with the weights the models have at the moment of the call.

    The probabilities of several are averaged. `search` is the graph, from source_BxS (int32, padded
    with 0; for sampling draws_BxKxT too, see `beam_search.Given`) to a `BeamResult`.
    """

    def __init__(
        self, models: Transformer | Sequence[Transformer], decoding: Decoding = DEFAULT
    ) -> None:
        self._models, self._decoding = members(models), decoding
        self._scorer = Scorer(self._models)
        self.max_length = self._scorer.max_length
        """longest source and longest translation, tokens with eos"""
        signature = [tf.TensorSpec([None, None], tf.int32)]
        if decoding.sample:
            signature.append(tf.TensorSpec([None, decoding.hypotheses, None], tf.float32))
        # One graph for batches of every shape: a new one must cost no trace.
        self.search = tf.function(self._search, input_signature=signature, autograph=False)

    def translate(
        self, sources: Sequence[np.ndarray], batch_tokens: int = 4096, details: bool = False,
        numbers: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, list[Translation]]]:  # fmt: skip
        """Translate sentences of any number and length.

        Args:
            sources: ids of each sentence, ending with eos. More than `max_length` are cut to it.
            batch_tokens: source tokens, padding included, that are translated at once. A longer
                sentence is a batch alone.
            details: give `token_scores` and `alignment` too, by a second pass of the decoder.
            numbers: of each sentence, from 0, for its random draws; by default its index.

        Yields:
            (index into `sources`, translations, best first), longest sources first, so that memory
            peaks in the first batch. There are at most `decoding.n_best` translations, or one with
            score -inf. A source of eos alone has an empty one with score 0.
        """
        read = [cut(ids, self.max_length) for ids in sources]
        for index, ids in enumerate(read):
            if len(ids) <= 1:
                known = NO_TOKENS if details else ()
                yield index, [Translation(np.zeros(0, np.int32), 0.0, *known)]
        at_once = device.searches()
        tokens = max(1, batch_tokens // at_once)

        def searched(batch: list[int]) -> list[tuple[int, list[Translation]]]:
            texts = [read[index] for index in batch]
            tensors = [padded(texts)]
            if self._decoding.sample:
                tensors.append(self._draws([(numbers or range(len(read)))[i] for i in batch]))
            best = _best_of(self.search(*map(tf.constant, tensors)), self._decoding.n_best)
            if details:
                self._add_details(texts, best, tokens)
            return [*zip(batch, best, strict=True)]

        with ThreadPoolExecutor(at_once) as pool:
            results = pool.map if at_once > 1 else map
            for translated in results(searched, batches([len(ids) for ids in read], tokens)):
                yield from translated

    def _search(self, source_BxS: tf.Tensor, draws_BxKxT: tf.Tensor = ()) -> BeamResult:
        decoding, B = self._decoding, tf.shape(source_BxS)[0]
        is_pad_BxS = source_BxS == PAD
        length_B = tf.math.count_nonzero(~is_pad_BxS, axis=1, dtype=tf.int32)
        least_B, most_B = lengths(length_B, decoding, self.max_length)
        given = Given(most_B, least_B if decoding.min_length else (), draws_BxKxT)
        with converted_once(self._models):
            start = tuple((of.encode(source_BxS), of.initial_cache(B)) for of in self._models)
            uncovered = is_pad_BxS if decoding.coverage_penalty else None
            return beam_search(self._step, start, given, decoding, is_pad_BxS=uncovered)

    def _step(
        self, ids_BxK: tf.Tensor, position: tf.Tensor, origins_BxKxT: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, tf.Tensor | None, Any]:
        """One step of all models; its state are the memory and the cache of each."""
        scores, attentions, after = [], [], []
        for model, (memory, cache) in zip(self._models, state, strict=True):
            logits_BxKxV, attention, cache = model.decode_step(
                ids_BxK, position, origins_BxKxT, memory, cache
            )
            is_alone = len(self._models) == 1
            scores.append(logits_BxKxV if is_alone else tf.nn.log_softmax(logits_BxKxV))
            attentions.append(attention)
            after.append((memory, cache))
        attention_BxKxS = mean_attention(attentions) if self._decoding.coverage_penalty else None
        return mean_probability(scores), attention_BxKxS, tuple(after)

    def _draws(self, numbers: Sequence[int]) -> np.ndarray:
        """Random numbers draws_BxKxT, a pure function of the seed and each sentence's number."""
        shape = self._decoding.hypotheses, self.max_length
        keys = (np.array([self._decoding.seed, number], np.uint64) for number in numbers)
        draws = (np.random.Generator(np.random.Philox(key=key)) for key in keys)
        return np.stack([generator.random(shape, np.float32) for generator in draws])

    def _add_details(
        self, sources: list[np.ndarray], translations: list[list[Translation]], batch_tokens: int
    ) -> None:
        places = [(row, rank) for row, best in enumerate(translations) for rank in range(len(best))]
        targets = [translations[row][rank].ids for row, rank in places]
        pair_sources = [sources[row] for row, _ in places]
        for index, scores in self._scorer.score(pair_sources, targets, batch_tokens):
            row, rank = places[index]
            translations[row][rank] = Translation(*translations[row][rank][:2], *scores)


def lengths(
    source_B: tf.Tensor, decoding: Decoding, model_length: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Fewest and most tokens, int32, with eos; no sentence has 0, 0; the maximum is stronger."""
    most = decoding.max_length or source_B + EXTRA_TOKENS
    most_B = tf.where(source_B > 0, tf.minimum(most, model_length), 0)
    return tf.minimum(decoding.min_length, most_B), most_B


def _best_of(result: BeamResult, n_best: int) -> list[list[Translation]]:
    """The n best hypotheses of each sentence; an empty one if it has none."""
    rows = zip(*(tensor[:, :n_best].numpy() for tensor in result), strict=True)
    return [
        [
            Translation(ids_T[:length], float(score))
            for rank, (ids_T, length, score) in enumerate(zip(*row, strict=True))
            if length or rank == 0
        ]
        for row in rows
    ]

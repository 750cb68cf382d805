"""Sentences of any number and length as padded batches."""

from collections.abc import Iterator, Sequence

import numpy as np

from hvd_nmt.config import EOS, PAD


def batches(lengths: Sequence[int], batch_tokens: int, least: int = 2) -> Iterator[list[int]]:
    """Indices of sentences of similar length, longest first; lengths are in tokens with eos.

    A batch has at most `batch_tokens`, padding included, unless one sentence is longer. Sentences
    shorter than `least` are left out: by default those of eos alone.
    """
    order = [int(i) for i in np.argsort(-np.asarray(lengths), kind="stable") if lengths[i] >= least]
    while order:
        rows = max(1, batch_tokens // lengths[order[0]])
        yield order[:rows]
        order = order[rows:]


def padded(sentences: Sequence[np.ndarray]) -> np.ndarray:
    """A batch ids_BxT, int32; T is at least 1."""
    ids_BxT = np.full((len(sentences), max(1, *map(len, sentences))), PAD, np.int32)
    for row_T, ids in zip(ids_BxT, sentences, strict=True):
        row_T[: len(ids)] = ids
    return ids_BxT


def cut(ids: np.ndarray, limit: int) -> np.ndarray:
    """A sentence of at most `limit` tokens, the last of which is eos."""
    return ids if len(ids) <= limit else np.append(ids[: limit - 1], EOS).astype(ids.dtype)

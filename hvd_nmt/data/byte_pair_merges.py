"""Characters merged into pieces, as byte-pair encoding does it: compiled by Numba.

The import of Numba takes 0.2 s and the first `segment` of a process 1.5 s: import this only where
sentences are segmented. Numba could keep the machine code on disk, but raises where neither the
package nor the home can be written.

Shapes: C characters of all sentences, S sentences.
"""

from __future__ import annotations

import numba
import numpy as np

from hvd_nmt.data.mixing import STRIDE, mixed

_NEVER, _FREE = np.int64(2**63 - 1), np.uint64(2**64 - 1)
_STRIDES = STRIDE, np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_HALF, _LOW = np.uint64(32), np.int64(2**32 - 1)
_mixed = numba.njit(mixed)


def table(merges: dict[tuple[int, int], int], rank: np.ndarray) -> np.ndarray:
    """All merges as a hash table with open addressing.

    Args:
        merges: (left piece, right piece) and the piece that they give.
        rank: int64 [pieces], when a piece is made, before all of higher ranks.

    Returns:
        uint64 [slots, 2]: left << 32 | right, and rank << 32 | merged; 2^64 - 1 in a free slot. The
        number of slots is a power of 2.
    """
    left, right = np.array([*merges], np.uint64).reshape(-1, 2).T
    merged = np.fromiter(merges.values(), np.int64)
    pairs, orders = left << _HALF | right, rank[merged] << 32 | merged
    slots = np.full((2 ** (2 * len(merges)).bit_length(), 2), _FREE)
    wanted = mixed(pairs) % np.uint64(len(slots))
    for pair, order, slot in zip(pairs.tolist(), orders.tolist(), wanted.tolist(), strict=True):
        while slots[slot, 0] != _FREE:
            slot = (slot + 1) % len(slots)
        slots[slot] = pair, order
    return slots


@numba.njit(nogil=True)
def segment(
    characters: np.ndarray, ends: np.ndarray, keys: np.ndarray, space: int, merges: np.ndarray,
    refused_below: np.uint64,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Merges the characters of each sentence, word by word.

    Args:
        characters: int32 [C], as pieces, sentence after sentence.
        ends: int64 [S], where each sentence ends.
        keys: uint64 [S], the chance of each sentence.
        space: the piece that begins a word, if no merge reaches over it; -1: there is none.
        merges: a `table`.
        refused_below: share of merges that are refused, times 2^64.

    Returns:
        int32 pieces, sentence after sentence, and int64 [S], how many each sentence has.
    """
    pieces, lengths = np.empty_like(characters), np.empty_like(ends)
    starts = np.empty(len(characters) + 1, np.int64)
    orders = np.empty(len(characters), np.int64)
    n_pieces = first = at = 0
    for sentence in range(len(ends)):
        n_before = n_pieces
        while at < ends[sentence]:
            n = 0
            while n == 0 or (at < ends[sentence] and characters[at] != space):
                pieces[n_pieces + n], starts[n] = characters[at], at - first
                n, at = n + 1, at + 1
            starts[n] = at - first
            word = pieces[n_pieces : n_pieces + n]
            n_pieces += _merge(word, starts, orders, merges, keys[sentence], refused_below)
        lengths[sentence] = n_pieces - n_before
        first = at
    return pieces[:n_pieces], lengths


@numba.njit
def _merge(
    word: np.ndarray, starts: np.ndarray, orders: np.ndarray, merges: np.ndarray, key: np.uint64,
    refused_below: np.uint64,
) -> int:  # fmt: skip
    """Merges neighbours in a word until nothing is left to merge; returns how many pieces it has.

    Args:
        word: int32, its characters; then, from the left, its pieces.
        starts: int64, where each of them starts and the last one ends, in characters of the
            sentence; overwritten.
        orders: int64, room for one number for each.
        merges: a `table`.
        key: the chance of the sentence.
        refused_below: as in `segment`.
    """
    n = len(word)
    for i in range(n - 1):
        orders[i] = _order(word, starts, i, merges, key, refused_below)
    while n > 1:
        best = 0
        for i in range(1, n - 1):
            if orders[i] >> 32 < orders[best] >> 32:  # equal ranks: the left one
                best = i
        if orders[best] == _NEVER:
            break
        word[best] = orders[best] & _LOW
        n -= 1
        for i in range(best + 1, n):
            word[i], starts[i], orders[i] = word[i + 1], starts[i + 1], orders[i + 1]
        starts[n] = starts[n + 1]
        for i in range(max(best - 1, 0), min(best + 1, n - 1)):
            orders[i] = _order(word, starts, i, merges, key, refused_below)
    return n


@numba.njit
def _order(
    word: np.ndarray, starts: np.ndarray, i: int, merges: np.ndarray, key: np.uint64,
    refused_below: np.uint64,
) -> np.int64:  # fmt: skip
    """Of a piece and its right neighbour: rank << 32 | merged, or _NEVER.

    A merge is refused by a hash of the sentence's key and of where the left and the right piece
    start, and where that ends, in characters of the sentence.
    """
    pair = np.uint64(word[i]) << _HALF | np.uint64(word[i + 1])
    last = np.uint64(len(merges) - 1)
    slot = _mixed(pair) & last
    while merges[slot, 0] != pair:
        if merges[slot, 0] == _FREE:
            return _NEVER
        slot = (slot + np.uint64(1)) & last
    place = (
        np.uint64(starts[i]) * _STRIDES[0]
        ^ np.uint64(starts[i + 1]) * _STRIDES[1]
        ^ np.uint64(starts[i + 2]) * _STRIDES[2]
    )
    return _NEVER if _mixed(key ^ place) < refused_below else np.int64(merges[slot, 1])

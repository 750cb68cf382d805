"""Noise in sentences of characters: capitals, typing errors, spaces, marks that are missing.

A sentence is a row of pieces, most of them single characters, as `hvd_nmt.data.augmentation` cuts
it. What happens to it is a pure function of its key. Words are what stands between spaces; only
words of letters are changed, with marks at their end left alone, so that addresses and numbers
stay. What a vocabulary has no piece for (the capital of a letter, an emoji) does not happen.

Doubled spaces are no noise here: SentencePiece's normalisation makes them one before a model could
see them.

Source of the kinds and of their application to one side or both: OpusTrainer (Burchell et al.
2023), https://github.com/hplt-project/OpusTrainer.

Shapes: C characters of all sentences, S sentences, P pieces of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numba
import numpy as np

from hvd_nmt.config.noise_rates import NoiseConfig
from hvd_nmt.data.mixing import STRIDE, mixed
from hvd_nmt.data.sentencepiece_model import SPACE

_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_FINAL = ".!?…。！？"
_EMOJI = "😀😂😊😍😢😎👍🙏🎉🔥💡⭐"
_ADDRESSES = (
    "https://www.example.com/", "http://example.org/news", "www.example.net",
    "https://example.com/a?id=42", "info@example.org", "https://example.net/2024/report.html",
)  # fmt: skip
_FRACTION, _SHARE, _TOP = np.uint64(11), 2.0**-53, np.uint64(63)
_ODD = np.uint64(0xC2B2AE3D27D4EB4F)
_FEWEST_LETTERS = 3
_mixed = numba.njit(mixed)
_CASE, _COPY, _FINAL_MARK, _WHICH, _WHERE, _TYPO, _SPACING = range(7)
"""kinds of draws"""
_CAPITALS, _TITLED = 1, 2


@final
class Noise:
    """Adds noise to sentences that are cut into characters.

    Args:
        config: how much of what.
        pieces: all pieces of the vocabulary, by id.
        ids: of the pieces that are cut into characters, or are characters or bytes.
        copies: emoji and addresses that may be added, see `spelled_copies`.
    """

    def __init__(
        self,
        config: NoiseConfig,
        pieces: Sequence[str],
        ids: Mapping[str, int],
        copies: Sequence[str],
    ) -> None:
        self._alphabet = alphabet(pieces, ids, copies)
        self._config = config
        self._rates = [_rates(config, side) for side in (0, 1)]

    def __call__(
        self, characters: np.ndarray, ends: np.ndarray, keys: np.ndarray, side: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What `noised` gives, of source (0) or target (1)."""
        keys = np.broadcast_to(keys, ends.shape)
        return noised(characters, ends, keys, self._rates[side], self._alphabet)


class Alphabet(NamedTuple):
    """What the pieces of a vocabulary are as characters."""

    space: int
    """the piece before each word"""
    is_letter: np.ndarray
    """bool [P]"""
    is_final: np.ndarray
    """bool [P], a mark that ends sentences"""
    is_address: np.ndarray
    """bool [P], a mark that words do not hold, but addresses do"""
    upper: np.ndarray
    """int32 [P], the capital of a letter; the piece itself where there is none"""
    beside: np.ndarray
    """int32 [P, 2], letters of the keys beside it; the piece itself where there are none"""
    copies: np.ndarray
    """int32, emoji and addresses one after the other, each begins with the space"""
    copy_ends: np.ndarray
    """int64, where each of them ends"""


def spelled_copies(ids: Mapping[str, int]) -> list[str]:
    """The emoji and addresses that a vocabulary can write.

    Args:
        ids: of its pieces, bytes among them.
    """
    return [text for text in (*_EMOJI, *_ADDRESSES) if _spelled(SPACE + text, ids)]


def alphabet(pieces: Sequence[str], ids: Mapping[str, int], copies: Sequence[str]) -> Alphabet:
    """The characters of a vocabulary.

    Args:
        pieces: all of it, by id.
        ids: of the pieces that are cut into characters, or are characters.
        copies: texts that it can write.
    """
    same = np.arange(len(pieces), dtype=np.int32)
    upper, beside = same.copy(), np.stack([same, same], 1)
    is_letter, is_final, is_address = np.zeros((3, len(pieces)), bool)
    for piece, number in ids.items():
        if len(piece) != 1:
            continue
        is_letter[number], is_final[number] = piece.isalpha(), piece in _FINAL
        is_address[number] = piece in "@/_"
        upper[number] = ids.get(piece.upper(), number)
        for row in _KEYS:
            if (at := row.find(piece)) >= 0:
                keys = row[max(at - 1, 0)] if at else row[1], row[min(at + 1, len(row) - 1)]
                beside[number] = [ids.get(key, number) for key in keys]
    spelled = [_spelled(SPACE + text, ids) for text in copies]
    flat = np.array([number for copy in spelled for number in copy], np.int32)
    ends = np.cumsum([len(copy) for copy in spelled]).astype(np.int64)
    space = ids.get(SPACE, -1)
    return Alphabet(space, is_letter, is_final, is_address, upper, beside, flat, ends)


def _spelled(text: str, ids: Mapping[str, int]) -> list[int]:
    """The pieces of a text, bytes where there is no other; [] if it cannot be written."""
    found: list[int] = []
    for character in text:
        pieces = [character]
        if character not in ids:
            pieces = [f"<0x{byte:02X}>" for byte in character.encode()]
        if not all(piece in ids for piece in pieces):
            return []
        found += (ids[piece] for piece in pieces)
    return found


def _rates(noise: NoiseConfig, side: int) -> np.ndarray:
    """What `noised` takes, float64 [6], of source (0) or target (1).

    On targets only that happens which happens on both sides.
    """
    both = [noise.upper_case, noise.title_case, noise.no_punctuation, noise.copies]
    of_source = [noise.typos, noise.spaces] if side == 0 else [0.0, 0.0]
    return np.array([*both, *of_source])


@numba.njit(nogil=True)
def noised(
    characters: np.ndarray, ends: np.ndarray, keys: np.ndarray, rates: np.ndarray,
    alphabet: Alphabet,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Adds noise to sentences.

    Args:
        characters: int32 [C], sentence after sentence.
        ends: int64 [S], where each sentence ends; its last piece, eos, stays.
        keys: uint64 [S], the chance of each, the same for both sides of a pair.
        rates: float64 [6]: capitals, a capital at each word, marks missing, copies; typing errors
            and spaces, by word.
        alphabet: of the vocabulary.

    Returns:
        Characters, ends and bool [S], which sentences are not what they were.
    """
    upper_case, title_case, no_mark, copies = rates[:4]
    longest_copy, copy_begin = 0, 0
    for end in alphabet.copy_ends:
        longest_copy, copy_begin = max(longest_copy, end - copy_begin), end
    room = 3 * len(characters) + longest_copy * len(ends)
    found, n = np.empty(room, np.int32), 0
    found_ends, changed = np.empty_like(ends), np.zeros(len(ends), np.bool_)
    begin = 0
    for sentence in range(len(ends)):
        key, end, first = keys[sentence], ends[sentence], n
        copy = -1
        if len(alphabet.copy_ends) and _chance(key, _COPY, 0) < copies:
            copy = int(_chance(key, _WHICH, 0) * len(alphabet.copy_ends))
        in_front = _chance(key, _WHERE, 0) < 0.5
        case = 0
        share = _chance(key, _CASE, 0)
        if share < upper_case + title_case:
            case = _CAPITALS if share < upper_case else _TITLED
        last = end - 1
        if last - begin > 2 and alphabet.is_final[characters[last - 1]]:
            last -= _chance(key, _FINAL_MARK, 0) < no_mark
        at, word = begin, 0
        while at < last:
            stop = at + 1
            while stop < last and characters[stop] != alphabet.space:
                stop += 1
            if in_front and copy >= 0 and characters[at] == alphabet.space:  # after a tag
                n, copy = _copied(found, n, alphabet, copy), -1
            n = _word(found, n, characters[at:stop], (key, word, case), rates, alphabet)
            at, word = stop, word + 1
        if copy >= 0:
            n = _copied(found, n, alphabet, copy)
        found[n], n = characters[end - 1], n + 1
        found_ends[sentence] = n
        changed[sentence] = n - first != end - begin
        for i in range(begin, end):
            if changed[sentence]:
                break
            changed[sentence] = found[first + i - begin] != characters[i]
        begin = end
    return found[:n], found_ends, changed


@numba.njit
def _word(
    found: np.ndarray, n: int, word: np.ndarray, draw: tuple[np.uint64, int, int],
    rates: np.ndarray, alphabet: Alphabet,
) -> int:  # fmt: skip
    """Appends a word, a space before it perhaps, to `found`, of which n are filled; returns n.

    What happens to it is drawn by the key of the sentence and the number of the word in it; the
    case is that of all words.
    """
    key, number, case = draw
    typos, spaces = rates[4], rates[5]
    begin = 1 if word[0] == alphabet.space else 0
    stop = begin
    while stop < len(word) and alphabet.is_letter[word[stop]]:
        stop += 1
    is_address, is_plain = False, True
    for i in range(begin, len(word)):
        inside = i > begin and i + 1 < len(word) and alphabet.is_letter[word[i + 1]]
        is_address |= alphabet.is_address[word[i]] or (inside and alphabet.is_final[word[i]])
        is_plain &= i < stop or not alphabet.is_letter[word[i]]
    letters = stop - begin if is_plain and not is_address else 0
    kind, at = -1, -1
    if letters >= _FEWEST_LETTERS and _chance(key, _TYPO, number) < typos:
        kind = int(_chance(key, _WHICH, number) * 4)
        at = begin + int(_chance(key, _WHERE, number) * (letters - 1))
    split = -1
    if letters >= _FEWEST_LETTERS and _chance(key, _SPACING, number) < spaces:
        if begin == 1 and n and alphabet.is_letter[found[n - 1]] and key >> _TOP:
            word = word[1:]
            at, stop, begin = at - 1, stop - 1, 0
        else:
            split = begin + 1 + int(_chance(key, _WHERE, number + 1) * (letters - 1))
    is_first = True
    for i in range(len(word)):
        if i == split:
            found[n], n = alphabet.space, n + 1
        c = word[i]
        if i == at and kind == 1:
            continue
        if i == at and kind == 0:
            c = word[i + 1]
        elif i == at + 1 and kind == 0 and at >= 0:
            c = word[i - 1]
        elif i == at and kind == 3:
            c = alphabet.beside[c, int(_chance(key, _WHERE, number + 2) * 2)]
        if not is_address and (case == _CAPITALS or (case == _TITLED and is_first)):
            c = alphabet.upper[c]
        is_first &= i < begin
        found[n], n = c, n + 1
        if i == at and kind == 2:
            found[n], n = c, n + 1
    return n


@numba.njit
def _copied(found: np.ndarray, n: int, alphabet: Alphabet, copy: int) -> int:
    """Appends an emoji or address to `found`, of which n are filled; returns n."""
    begin = alphabet.copy_ends[copy - 1] if copy else 0
    for i in range(begin, alphabet.copy_ends[copy]):
        found[n], n = alphabet.copies[i], n + 1
    return n


@numba.njit
def _chance(key: np.uint64, kind: int, number: int) -> float:
    """In [0, 1): one draw of a sentence for each kind and word."""
    place = np.uint64(kind) * STRIDE ^ np.uint64(number + 1) * _ODD
    return float(_mixed(key ^ place) >> _FRACTION) * _SHARE

"""New pieces for a SentencePiece vocabulary that a model was trained with.

Byte-pair encoding merges neighbours, the pair of the highest score first. New pieces get scores
below all others: whatever the old vocabulary would merge is merged before, and a text that holds no
new piece has the ids that it always had. To be found at all, a new piece must be the sum of two
others, so that a new word of five old pieces needs new pieces between.

Like `subwords`, this never shares a process with TensorFlow.

Source of the algorithm that is continued here: Sennrich et al. 2016, "Neural Machine Translation of
Rare Words with Subword Units".
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hvd_nmt.common.errors import DataError
from hvd_nmt.config import UNK
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.sentencepiece_model import SPACE
from hvd_nmt.data.text import read_lines
from hvd_nmt.preparation import subwords

_LONGEST_LEARNED = 16
"""characters of the longest piece that is learned from text, as in SentencePiece's own training"""

Word = tuple[str, ...]


class Extension(NamedTuple):
    """A vocabulary that has grown."""

    model: bytes
    """the serialised SentencePiece model"""
    old_pieces: int
    """pieces before; the first new one has this id"""
    rows: int
    """rows of the embedding that it needs: all pieces rounded up to a multiple of 8"""
    pieces: list[str]
    """the new ones, by id"""
    parts: list[list[int]]
    """for each new piece the old ids that were written in its place"""


def with_words(model: bytes, path: Path) -> Extension:
    """Makes every word of a text file a single piece, as in a sentence, with a space before.

    Raises:
        DataError: the file cannot be read, holds no word that is not a piece already, or the model
            is not one of byte-pair encoding.
    """
    growing = _Growing(model)
    for word in list(growing.words(read_lines(path))):  # all in the old pieces
        for character in word:
            growing.add_character(character)
        pieces = growing.merged(word)
        while len(pieces) > 1:
            if not growing.knows((pieces[0], pieces[1])):
                both = pieces[0] + pieces[1]
                raise DataError(f"{path}: {both!r} is, or holds, a mark of the vocabulary.")
            growing.add(pieces[0], pieces[1])
            pieces = growing.merged(word)
    if not growing.parts:
        raise DataError(f"{path} holds no word that is not a piece of the vocabulary already.")
    return growing.finished()


def with_text(model: bytes, path: Path, count: int) -> Extension:
    """Learns new pieces from text: its unknown characters, then the pairs that are most frequent.

    Args:
        model: the old vocabulary, serialised.
        path: text, one sentence per line, plain or .gz.
        count: pieces to add; fewer if no pair of letters is left that occurs twice.

    Raises:
        DataError: as `with_words`.
    """
    growing = _Growing(model)
    counts = Counter(growing.words(read_lines(path)))
    characters: Counter[str] = Counter()
    for word, times in counts.items():
        for piece in word:
            if piece not in growing.ids:
                characters[piece] += times
    for character, _ in characters.most_common(count):
        growing.add_character(character)
    pairs = _Pairs(counts)
    while len(growing.parts) < count and (best := pairs.best()):
        if growing.knows(best):
            growing.add(*best)
            pairs.merge(best)
        else:
            pairs.forget(best)
    if not growing.parts:
        raise DataError(f"{path} holds nothing to make a new piece of.")
    return growing.finished()


class _Growing:
    """A model under extension."""

    def __init__(self, model: bytes) -> None:
        try:
            self._processor = old = subwords.load(model)
        except RuntimeError:  # its text names lines of SentencePiece's source and nothing else
            raise DataError("The vocabulary is no SentencePiece model, or a damaged one.") from None
        self._model, self._old = model, old.get_piece_size()
        self._never_merged = sentencepiece_model.never_merged(model)
        self.ids = {old.id_to_piece(number): [number] for number in range(self._old)}
        self._scores = {
            piece: old.get_score(number) for piece, (number,) in self.ids.items()
            if not (old.is_control(number) or old.is_unknown(number) or old.is_unused(number)
                    or piece in self._never_merged)
        }  # fmt: skip
        if not all(score.is_integer() for score in self._scores.values()):
            raise DataError(  # merges have ranks; pieces of a unigram model have log-probabilities
                "The vocabulary is not one of byte-pair encoding: new pieces would change how old "
                "text is cut."
            )
        self._lowest = min(self._scores.values())
        self.parts: dict[str, list[int]] = {}

    def words(self, lines: Iterable[str]) -> Iterator[Word]:
        """The words of some text, each in its old pieces; an unknown character is a piece."""
        for line in lines:
            word: list[str] = []
            for piece in self._with_characters(self._processor.encode(line, out_type=str)):
                if piece.startswith(SPACE) and word:
                    yield tuple(word)
                    word = []
                # Unknown characters that are neighbours come as one piece.
                word += [piece] if piece in self.ids else list(piece)
            if word:
                yield tuple(word)

    def knows(self, pair: tuple[str, str]) -> bool:
        """Whether both halves are pieces that merge, and their sum is none yet."""
        return (
            "".join(pair) not in self.ids
            and self.ids.keys() >= set(pair)
            and self._never_merged.keys().isdisjoint(pair)
        )

    def add_character(self, character: str) -> None:
        """Adds an unknown character, unless it is there; a longer piece is always there."""
        if character not in self.ids:
            names = [f"<0x{byte:02X}>" for byte in character.encode()]
            known = [self._never_merged[name] for name in names if name in self._never_merged]
            self._append(character, known if len(known) == len(names) else [UNK])

    def add(self, left: str, right: str) -> None:
        """Adds the sum of two pieces."""
        self._append(left + right, self.ids[left] + self.ids[right])

    def merged(self, word: Word) -> list[str]:
        """A word as the vocabulary with its new pieces cuts it."""
        scores, pieces = self._scores, list(word)
        while True:
            sums = enumerate(map("".join, pairwise(pieces)))
            found = [(-scores[both], place, both) for place, both in sums if both in scores]
            if not found:
                return pieces
            _, place, both = min(found)
            pieces[place : place + 2] = [both]

    def finished(self) -> Extension:
        """The new model."""
        total = self._old + len(self.parts)
        new = b"".join(_field(1, _piece(name, self._scores[name])) for name in self.parts)
        size = _field(2, bytes([4 << 3]) + _varint(total))  # TrainerSpec.vocab_size
        model = subwords.load(self._model + new + size).serialized_model_proto()
        pieces, parts = list(self.parts), list(self.parts.values())
        return Extension(model, self._old, subwords.rounded_up(total), pieces, parts)

    def _with_characters(self, pieces: Iterable[str]) -> Iterator[str]:
        """Puts the characters that are written as bytes together again."""
        raw = b""
        for piece in pieces:
            if piece in self._never_merged and self._processor.is_byte(self.ids[piece][0]):
                raw += bytes.fromhex(piece[3:5])
                with suppress(UnicodeDecodeError):
                    yield raw.decode()
                    raw = b""
            else:
                yield piece

    def _append(self, piece: str, parts: list[int]) -> None:
        self.ids[piece] = self.parts[piece] = parts
        self._scores[piece] = self._lowest - len(self.parts)


class _Pairs:
    """Neighbouring pieces within the words of a text, and how often they occur.

    Only letters are joined: digits and marks stay apart, as in SentencePiece's own training.
    """

    def __init__(self, words: Counter[Word]) -> None:
        self._words = [(list(word), times) for word, times in words.items()]
        self._counts: Counter[tuple[str, str]] = Counter()
        self._where: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        for number in range(len(self._words)):
            self._count(number, 1)
        self._heap = [(-times, pair) for pair, times in self._counts.items()]
        heapq.heapify(self._heap)

    def best(self) -> tuple[str, str] | None:
        """The most frequent pair, the first in the alphabet of several; None below two of it."""
        while self._heap:
            times, pair = self._heap[0]
            if -times == self._counts[pair]:
                return pair if times <= -2 else None
            heapq.heappop(self._heap)  # counted anew since
        return None

    def forget(self, pair: tuple[str, str]) -> None:
        """Never offer a pair again."""
        self._where.pop(pair, None)
        del self._counts[pair]

    def merge(self, pair: tuple[str, str]) -> None:
        """Makes each occurrence of a pair one piece."""
        changed: set[tuple[str, str]] = set()
        for number in sorted(self._where.pop(pair)):
            changed |= self._count(number, -1)
            pieces = self._words[number][0]
            place = 0
            while place < len(pieces) - 1:
                if (pieces[place], pieces[place + 1]) == pair:
                    pieces[place : place + 2] = ["".join(pair)]
                place += 1
            changed |= self._count(number, 1)
        for other in changed:
            heapq.heappush(self._heap, (-self._counts[other], other))

    def _count(self, number: int, sign: int) -> set[tuple[str, str]]:
        """Counts the pairs of a word in (1) or out (-1)."""
        pieces, times = self._words[number]
        pairs = [pair for pair in pairwise(pieces) if _may_join(pair)]
        for pair in pairs:
            self._counts[pair] += sign * times
            if sign > 0:
                self._where[pair].add(number)
            else:
                self._where[pair].discard(number)
        return set(pairs)


def _piece(name: str, score: float) -> bytes:
    """A ModelProto.SentencePiece; its type is the default, a normal piece.

    Messages that follow each other are one message, in which lists go on and numbers are replaced;
    so a model can be extended without the class of its message, which SentencePiece's wheel ships
    for another version of protobuf than TensorFlow's.

    Source: sentencepiece_model.proto; protobuf.dev/programming-guides/encoding, last one wins.
    """
    return _field(1, name.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def _may_join(pair: Sequence[str]) -> bool:
    piece = "".join(pair)
    return piece.removeprefix(SPACE).isalpha() and len(piece) <= _LONGEST_LEARNED

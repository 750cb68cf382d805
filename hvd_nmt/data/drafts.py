"""A part (train, dev, test) on its way from raw text into the data directory.

`read` cleans it, `hold_out` may take dev pairs from training, `encode` turns it into ids. Text is
streamed from file to file: memory does not grow with the corpus but for 16 bytes per pair.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

import sentencepiece
from tqdm import tqdm

from hvd_nmt.data import subwords
from hvd_nmt.data.corpus import File, Part, SentencesWriter, Side
from hvd_nmt.data.text import is_blank, read_pairs
from hvd_nmt.errors import DataError

BLANK = "a side is empty"
TOO_LONG = "too long"
HELD_OUT = "held out for dev"
IN_DEV = "source is in dev"

_ENCODE_AT_ONCE = 20_000  # pairs held in memory while they are encoded

# SentencePiece's longest piece. A line of more characters than max_length such pieces is too long
# even if it has few pieces: a megabyte of unknown characters is encoded as one unk.
_PIECE_CHARACTERS = 16

Item = TypeVar("Item")
Paths = tuple[Path, Path]


@dataclass
class Draft:
    """Cleaned text and what was counted on the way. Pairs of values are (source, target)."""

    inputs: tuple[File, File]
    text: Paths  # cleaned UTF-8 text, one sentence per line
    pairs_read: int = 0
    pairs: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    truncated: int = 0
    text_bytes: list[int] = field(default_factory=lambda: [0, 0])
    kept_text_bytes: list[int] = field(default_factory=lambda: [0, 0])
    tokens: list[int] = field(default_factory=lambda: [0, 0])

    def finished(self) -> Part:
        """What the manifest records."""
        columns = (self.inputs, self.text_bytes, self.kept_text_bytes, self.tokens)
        source, target = (Side(*row) for row in zip(*columns, strict=True))
        return Part(self.pairs_read, self.pairs, dict(self.removed), self.truncated, source, target)


def read(inputs: Paths, files: tuple[File, File], text: Paths, drop_blank: bool) -> Draft:
    """Reads the raw files of a part and writes its cleaned text.

    Args:
        inputs: raw source and target file, plain or .gz.
        files: what they are, for the manifest.
        text: where the cleaned text goes.
        drop_blank: leave out pairs with an empty side.

    Raises:
        DataError: as `hvd_nmt.data.text.read_pairs`.
    """
    draft = Draft(files, text)
    with _writing(text) as write:
        for pair in _progress(read_pairs(*inputs), f"reading {inputs[0].name}"):
            draft.pairs_read += 1
            _count_bytes(draft.text_bytes, pair)
            if drop_blank and (is_blank(pair[0]) or is_blank(pair[1])):
                draft.removed[BLANK] += 1
                continue
            draft.pairs += 1
            _count_bytes(draft.kept_text_bytes, pair)
            write(pair)
    return draft


def hold_out(train: Draft, pairs: int, text: Paths) -> Draft:
    """Takes dev pairs out of the training draft, evenly spread over it.

    A corpus is often several, one after the other; its last pairs would be of the last kind only.
    Training pairs whose source is also a dev source leave too: a sentence that was trained on says
    nothing about the model's quality.

    Args:
        train: the training draft; its text and counts are changed.
        pairs: number of dev pairs.
        text: where the dev text goes.

    Raises:
        DataError: that would be more than half of the training pairs.
    """
    if pairs > train.pairs // 2:
        raise DataError(
            f"--dev-size {pairs} is more than half of the {train.pairs} usable training pairs: "
            "hold out fewer."
        )
    dev = Draft(train.inputs, text, pairs_read=pairs, pairs=pairs)
    chosen = {(2 * i + 1) * train.pairs // (2 * pairs) for i in range(pairs)}
    dev_sources = set()
    with _writing(text) as write:
        for index, pair in enumerate(read_pairs(*train.text)):
            if index in chosen:
                dev_sources.add(pair[0])
                _count_bytes(dev.text_bytes, pair)
                write(pair)
    dev.kept_text_bytes = list(dev.text_bytes)

    rest: Paths = (_beside(train.text[0]), _beside(train.text[1]))
    train.pairs, train.kept_text_bytes = 0, [0, 0]
    with _writing(rest) as write:
        for index, pair in enumerate(read_pairs(*train.text)):
            if index in chosen:
                train.removed[HELD_OUT] += 1
            elif pair[0] in dev_sources:
                train.removed[IN_DEV] += 1
            else:
                train.pairs += 1
                _count_bytes(train.kept_text_bytes, pair)
                write(pair)
    train.text = rest
    return dev


def encode(
    draft: Draft,
    model: sentencepiece.SentencePieceProcessor,
    max_length: int,
    skip_too_long: bool,
    stems: Paths,
) -> None:
    """Encodes a draft into `<stem>.ids.npy` and `<stem>.offsets.npy` for both sides.

    Args:
        draft: its counts are completed.
        model: the joint vocabulary.
        max_length: longest sentence to write, tokens with eos.
        skip_too_long: leave out pairs with a longer side; otherwise cut that side.
        stems: paths without the ending.
    """
    draft.pairs, draft.kept_text_bytes = 0, [0, 0]
    vocabulary_size = subwords.rounded_up(model.get_piece_size())
    threads = len(os.sched_getaffinity(0))
    with (
        SentencesWriter(stems[0], vocabulary_size) as source_writer,
        SentencesWriter(stems[1], vocabulary_size) as target_writer,
    ):
        pairs = _progress(read_pairs(*draft.text), f"encoding {stems[0].name}")
        for chunk in _chunks(pairs, _ENCODE_AT_ONCE):
            encoded = [
                subwords.encode_lines(model, list(lines), threads)
                for lines in zip(*chunk, strict=True)
            ]
            kept: list[tuple[list[int], list[int]]] = []
            for pair, source, target in zip(chunk, *encoded, strict=True):
                longest_characters = max(map(len, pair))
                too_long = max(len(source), len(target)) > max_length
                if skip_too_long and (
                    too_long or longest_characters > _PIECE_CHARACTERS * max_length
                ):
                    draft.removed[TOO_LONG] += 1
                    continue
                if too_long:
                    draft.truncated += 1
                    source, target = _cut(source, max_length), _cut(target, max_length)
                kept.append((source, target))
                _count_bytes(draft.kept_text_bytes, pair)
            draft.pairs += len(kept)
            source_writer.append([source for source, _ in kept])
            target_writer.append([target for _, target in kept])
    draft.tokens = [source_writer.tokens, target_writer.tokens]


@contextmanager
def _writing(paths: Paths) -> Iterator[Callable[[tuple[str, str]], None]]:
    """Yields a function that writes a line pair to two files."""
    with open(paths[0], "wb") as source, open(paths[1], "wb") as target:

        def write(pair: tuple[str, str]) -> None:
            source.write(pair[0].encode() + b"\n")
            target.write(pair[1].encode() + b"\n")

        yield write


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.rest")


def _cut(ids: list[int], max_length: int) -> list[int]:
    return ids if len(ids) <= max_length else [*ids[: max_length - 1], subwords.EOS]


def _count_bytes(counts: list[int], pair: tuple[str, str]) -> None:
    for side, line in enumerate(pair):
        counts[side] += len(line.encode()) + 1


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _progress(pairs: Iterable[Item], description: str) -> Iterable[Item]:
    # disable=None: only when stderr is a terminal.
    return tqdm(pairs, desc=description, unit=" pairs", disable=None, leave=False)

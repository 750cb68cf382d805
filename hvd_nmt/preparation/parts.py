"""A part (train, dev, test) on its way from raw text into the data directory.

Text goes from file to file; only a hash of each side, 16 bytes a pair, stays in memory, by which
duplicates and leaks are found.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import FileFacts, fingerprint
from hvd_nmt.common.progress import progress
from hvd_nmt.data.corpus import Part, Side
from hvd_nmt.data.text import Block, block_lines, pair_blocks, plain
from hvd_nmt.preparation import cleaning, removed, workers
from hvd_nmt.preparation.removed import RemovedPair

NOT_UTF8 = "not UTF-8"
HELD_OUT = "held out for dev"
IN_DEV = "source is in dev"
TARGET_IN_DEV = "target is in dev"

Paths = tuple[Path, Path]
"""a source file and its translation, line by line"""


class Input(NamedTuple):
    """The raw text of a part."""

    paths: Sequence[Paths]
    """files, one corpus after the other"""
    facts: Sequence[tuple[FileFacts, FileFacts]]
    """what each of these files was when the command began"""

    @classmethod
    def of(cls, paths: Sequence[Paths]) -> Input:
        """Reads the files' digests; DataError: a file cannot be read, or not more than once."""
        for path in (path for pair in paths for path in pair):
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise DataError(
                    f"{path} is a pipe or a device, and the text is read more than once: give a "
                    "file (one of gzip, bzip2 or xz is read as it is)."
                )
        try:
            return cls(paths, [(fingerprint(pair[0]), fingerprint(pair[1])) for pair in paths])
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}.") from None

    @property
    def name(self) -> str:
        """Of the first source file."""
        return self.paths[0][0].name

    @property
    def files(self) -> tuple[FileFacts, FileFacts]:
        """What all sources and all targets are; of several files, the digest of their digests."""
        source, target = (joined_files(side) for side in zip(*self.facts, strict=True))
        return source, target

    def blocks(self) -> Iterator[tuple[Paths, Block]]:
        """The line pairs of each corpus and the files they are from.

        Raises DataError as `pair_blocks`; at the end also if a file is no longer what it was.
        """
        for paths, facts in zip(self.paths, self.facts, strict=True):
            for block in pair_blocks(*paths):
                yield paths, block
            for path, known in zip(paths, facts, strict=True):
                if fingerprint(path) != known:
                    raise DataError(
                        f"{path} has changed while it was read: give the same command again when "
                        "nobody writes to it."
                    )


@dataclass
class PartState:
    """What has come of a part so far. Pairs of values are (source, target)."""

    inputs: tuple[FileFacts, FileFacts]
    """what the raw files are"""
    text: Paths
    """clean UTF-8 text, one sentence per line"""
    pairs_read: int = 0
    """pairs of the raw files"""
    pairs: int = 0
    """pairs that are kept"""
    removed: Counter[str] = field(default_factory=Counter)
    """pairs removed by each rule"""
    truncated: int = 0
    """pairs kept with a side cut to the greatest length"""
    text_bytes: list[int] = field(default_factory=lambda: [0, 0])
    """bytes of the text read, cleaned, one byte per line end; (source, target)"""
    kept_text_bytes: list[int] = field(default_factory=lambda: [0, 0])
    """bytes of the text of the pairs that are kept, cleaned; (source, target)"""
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    """tokens of the pairs that are kept, eos counted, 0 before they are encoded"""
    by_corpus: list[int] = field(default_factory=list)
    """pairs that are kept of each of several corpora, one after the other; empty: of one"""
    keys: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.uint64))
    """`cleaning.keys` of the pairs of the text"""

    def finished(self) -> Part:
        """What the manifest records."""
        columns = (self.inputs, self.text_bytes, self.kept_text_bytes, self.tokens)
        source, target = (Side(*row) for row in zip(*columns, strict=True))
        removed = dict(sorted(self.removed.items()))
        return Part(self.pairs_read, self.pairs, removed, self.truncated, source, target)


@dataclass(frozen=True)
class Cleaning:
    """How the pairs of a part are cleaned."""

    cleaner: Callable[[str, str], tuple[str | None, tuple[str, str]]]
    """tells of a raw pair which rule removes it (None: none) and gives it cleaned; picklable"""
    wrong_bytes: str = "stop"
    """stop: an error at the first line that is not UTF-8; skip: leave its pair out; keep: U+FFFD"""
    tags: Sequence[str] = ()
    """that make no other sentence of one"""
    repeated: Callable[[np.ndarray], Mapping[str, np.ndarray]] = lambda keys: {}
    """gives the pairs that go because of others, see `cleaning.repeated`"""
    removed: Path | None = None
    """file for the removed pairs, see `hvd_nmt.preparation.removed`; None: they are not kept"""


def keep_all(source: str, target: str) -> tuple[str | None, tuple[str, str]]:
    """The cleaner of dev and test: every pair stays, for a score counts them all."""
    return None, (plain(source), plain(target))


def clean(raw: Input, text: Paths, method: Cleaning) -> PartState:
    """Reads a part's raw files, writes its clean text; raises as `Input.blocks`."""
    part, keys, numbers = PartState(raw.files, text), [], []
    with removed.writing(method.removed) as write_removed:
        with _writing(text) as write, progress(None, "pairs", f"reading {raw.name}") as bar:
            for cleaned in workers.in_order(_clean, _jobs(raw), settings=method):
                bar.update(cleaned.pairs_read)
                part.pairs_read += cleaned.pairs_read
                part.removed.update(cleaned.removed)
                for side in (0, 1):
                    part.text_bytes[side] += cleaned.text_bytes[side]
                    part.kept_text_bytes[side] += len(cleaned.kept[side])
                keys.append(cleaned.keys)
                numbers.append(cleaned.numbers)
                write(cleaned.kept)
                write_removed(cleaned.removed_pairs)
        part.keys = np.concatenate([part.keys, *keys])
        part.pairs = len(part.keys)
        rules = method.repeated(part.keys)
        if not any(of.any() for of in rules.values()):
            return part
        numbers_of = np.concatenate(numbers)

        def note(index: int, rule: str, source: bytes, target: bytes) -> None:
            write_removed([(int(numbers_of[index]), rule, (source.decode(), target.decode()))])

        drafts = [path.rename(path.with_name(f"{path.name}.all")) for path in text]
        left = without(replace(part, text=(drafts[0], drafts[1])), text, rules, note)
    for draft in drafts:
        draft.unlink()
    return left


def joined(states: Sequence[PartState | None], text: Paths) -> PartState:
    """The same part of several corpora as one, their clean text in one file after the other.

    Args:
        states: of each corpus; None: it has no such part.
        text: where the text goes; that of the only corpus may be there.
    """
    present = [state for state in states if state is not None]
    if present[0].text == text:
        return present[0]
    inputs = [joined_files(side) for side in zip(*(s.inputs for s in present), strict=True)]
    whole = PartState((inputs[0], inputs[1]), text, by_corpus=[s.pairs if s else 0 for s in states])
    whole.keys = np.concatenate([state.keys for state in present])
    for state in present:
        whole.pairs_read += state.pairs_read
        whole.pairs += state.pairs
        whole.removed.update(state.removed)
        for side in (0, 1):
            whole.text_bytes[side] += state.text_bytes[side]
            whole.kept_text_bytes[side] += state.kept_text_bytes[side]
    for side, path in enumerate(text):
        with open(path, "wb") as stream:
            for state in present:
                with open(state.text[side], "rb") as one:
                    shutil.copyfileobj(one, stream)
    return whole


def hold_out(
    train: PartState, pairs: int, dev_text: Paths, rest: Paths, targets_too: bool = False
) -> tuple[PartState, PartState]:
    """Takes dev pairs out of the training pairs; returns what is left of train, and dev.

    They are evenly spread: a corpus is often several, one after the other. Training pairs whose
    source is also a dev source leave too, for a sentence that was trained on says nothing about
    the model's quality; with `targets_too` also those whose target is a dev target.

    Args:
        dev_text: where the dev text goes.
        rest: where the text of the other pairs goes.

    Raises:
        DataError: that would be more than half of the training pairs.
    """
    if pairs > train.pairs // 2:
        raise DataError(
            f"--dev-size {pairs} is more than half of the {train.pairs} usable training pairs: "
            "hold out fewer."
        )
    chosen = np.zeros(train.pairs, bool)
    chosen[(2 * np.arange(pairs) + 1) * train.pairs // (2 * pairs)] = True
    dev = without(train, dev_text, {"": ~chosen})
    dev = PartState(
        train.inputs, dev_text, pairs, pairs, text_bytes=[*dev.kept_text_bytes],
        kept_text_bytes=dev.kept_text_bytes, keys=dev.keys,
    )  # fmt: skip
    shared = cleaning.leaks(train.keys, dev.keys)
    rules = {HELD_OUT: chosen, IN_DEV: shared[:, 0]}
    if targets_too:
        rules[TARGET_IN_DEV] = shared[:, 1]
    return without(train, rest, rules), dev


def without(
    part: PartState, text: Paths, rules: Mapping[str, np.ndarray],
    note: Callable[[int, str, bytes, bytes], None] = lambda *pair: None,
) -> PartState:  # fmt: skip
    """Writes the pairs that no rule removes, and counts the others by the first one that does.

    Args:
        text: where the text of the pairs that are left goes.
        rules: bool [pairs] for each, the pairs that it removes.
        note: is told of each removed pair: index, rule, source and target.
    """
    names, removed_by = list(rules), np.zeros(part.pairs, np.int64)
    for number, of in reversed([*enumerate(rules.values(), start=1)]):
        removed_by[of] = number
    counts = np.bincount(removed_by, minlength=len(names) + 1)[1:].tolist()
    left = replace(
        part, text=text, pairs=int((removed_by == 0).sum()), keys=part.keys[removed_by == 0],
        removed=part.removed + Counter(dict(zip(names, counts, strict=True))),
        text_bytes=[*part.text_bytes], kept_text_bytes=[0, 0],
    )  # fmt: skip
    with _writing(text) as write, progress(part.pairs, "pairs", f"writing {text[0].name}") as bar:
        for block in pair_blocks(*part.text):
            kept = []
            for index, pair in enumerate(_split(block.source, block.target), start=block.first - 1):
                if removed_by[index]:
                    note(index, names[removed_by[index] - 1], *pair)
                else:
                    kept.append(pair)
            joined = _joined(kept)
            for side in (0, 1):
                left.kept_text_bytes[side] += len(joined[side])
            write(joined)
            bar.update(block.pairs)
    return left


def joined_files(files: Sequence[FileFacts]) -> FileFacts:
    """What one file after the other is: of several, the digest of their digests."""
    if len(files) == 1:
        return files[0]
    digests = "".join(file.sha256 for file in files)
    n_bytes = sum(file.n_bytes for file in files)
    return FileFacts(n_bytes, hashlib.sha256(digests.encode()).hexdigest())


class _Job(NamedTuple):
    block: Block
    names: tuple[str, str]
    before: int
    """pairs of the files before"""


class _Cleaned(NamedTuple):
    pairs_read: int
    text_bytes: tuple[int, int]
    kept: tuple[bytes, bytes]
    keys: np.ndarray
    """of the kept pairs"""
    numbers: np.ndarray
    """line numbers of the kept pairs"""
    removed: Counter[str]
    removed_pairs: list[RemovedPair]


def _jobs(raw: Input) -> Iterator[_Job]:
    before = done = 0
    for paths, block in raw.blocks():
        if block.first == 1:
            before = done
        yield _Job(block, (str(paths[0]), str(paths[1])), before)
        done += block.pairs


def _clean(method: Cleaning, job: _Job) -> _Cleaned:
    """What a worker does with a block: decode, apply the rules, encode what stays."""
    wrong_bytes = method.wrong_bytes
    block = job.block
    wrong = set()
    try:
        lines = block_lines(block, job.names)
    except DataError:
        if wrong_bytes == "stop":
            raise
        lines = block_lines(block, job.names, lenient=True)
        if wrong_bytes == "skip":
            raw = enumerate(_split(block.source, block.target))
            wrong = {i for i, pair in raw if not all(map(_is_utf8, pair))}
    kept: list[tuple[str, str]] = []
    numbers: list[int] = []
    removed_pairs: list[RemovedPair] = []
    first = job.before + block.first
    for number, (source, target) in enumerate(zip(*lines, strict=True), start=first):
        rule, pair = method.cleaner(source, target)
        rule = NOT_UTF8 if number - first in wrong else rule
        if rule is None:
            kept.append(pair)
            numbers.append(number)
        else:
            removed_pairs.append((number, rule, (source, target)))
    return _Cleaned(
        pairs_read=block.pairs,
        text_bytes=(_n_bytes(lines[0]), _n_bytes(lines[1])),
        kept=_joined([(source.encode(), target.encode()) for source, target in kept]),
        keys=cleaning.keys(kept, method.tags),
        numbers=np.array(numbers, np.int64),
        removed=Counter(rule for _, rule, _ in removed_pairs),
        removed_pairs=removed_pairs,
    )


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _n_bytes(lines: Iterable[str]) -> int:
    """Bytes of lines as they are used, one for each line's end."""
    return sum(len(line if line.isascii() else plain(line).encode()) + 1 for line in lines)


def _split(source: bytes, target: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The line pairs of two equally long runs of lines, without their ends."""
    if source:
        sides = (side.removesuffix(b"\n").split(b"\n") for side in (source, target))
        yield from zip(*sides, strict=True)


def _joined(pairs: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """The inverse of `_split`."""
    source, target = (b"".join(pair[side] + b"\n" for pair in pairs) for side in (0, 1))
    return source, target


@contextmanager
def _writing(paths: Paths) -> Iterator[Callable[[tuple[bytes, bytes]], None]]:
    """Yields a function that writes whole lines to two files."""
    with open(paths[0], "wb") as source, open(paths[1], "wb") as target:

        def write(block: tuple[bytes, bytes]) -> None:
            source.write(block[0])
            target.write(block[1])

        yield write

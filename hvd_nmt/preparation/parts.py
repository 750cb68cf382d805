"""A part (train, dev, test) on its way from raw text to clean text, in `removed.tsv.gz` what goes.

Text goes from file to file; only a hash of each side, 16 bytes a pair, stays in memory, by which
duplicates and leaks are found.
"""

import gzip
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import FileFacts, fingerprint
from hvd_nmt.common.progress import progress
from hvd_nmt.data.corpus import Part, Side
from hvd_nmt.data.text import Block, block_lines, pair_blocks, plain
from hvd_nmt.preparation import cleaning, workers

NOT_UTF8 = "not UTF-8"
HELD_OUT = "held out for dev"
IN_DEV = "source is in dev"
TARGET_IN_DEV = "target is in dev"

Paths = tuple[Path, Path]
"""a source file and its translation, line by line"""


class Input(NamedTuple):
    """The raw text of a part."""

    paths: Sequence[Paths]
    """files, one after the other"""
    facts: Sequence[tuple[FileFacts, FileFacts]]
    """what each of these files was when the command began"""

    @classmethod
    def of(cls, paths: Sequence[Paths]) -> "Input":
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
    def files(self) -> list[FileFacts]:
        """What all sources and all targets are; of several files, the digest of their digests."""
        return [*map(_joined, zip(*self.facts, strict=True))]

    def blocks(self) -> Iterator[tuple[Paths, Block, int]]:
        """The line pairs, the files they are from, and how many pairs the files before have.

        Raises DataError as `pair_blocks`; at the end also if a file is no longer what it was.
        """
        before = 0
        for paths, facts in zip(self.paths, self.facts, strict=True):
            last = 0
            for block in pair_blocks(*paths):
                yield paths, block, before
                last += block.pairs
            before += last
            for path, known in zip(paths, facts, strict=True):
                if fingerprint(path) != known:
                    raise DataError(
                        f"{path} has changed while it was read: give the same command again when "
                        "nobody writes to it."
                    )


@dataclass(frozen=True)
class Source:
    """One corpus of a part, and how its pairs are cleaned."""

    raw: Input | None
    """None: the corpus has no such part"""
    cleaner: Callable[[str, str], tuple[str | None, cleaning.Pair]]
    """tells of a raw pair which rule removes it (None: none) and gives it cleaned"""
    wrong_bytes: str = "stop"
    """stop: an error at the first line that is not UTF-8; skip: leave its pair out; keep: U+FFFD"""
    tags: tuple[str, ...] = ()
    """that are put in front of each source"""
    known_tags: Sequence[str] = ()
    """that make no other sentence of one"""
    repeated: Callable[[np.ndarray], Mapping[str, np.ndarray]] = lambda keys: {}
    """gives the pairs that go because of others, see `cleaning.repeated`"""
    removed: Path | None = None
    """file of removed pairs: rule, line number from 1, source and target with TAB between, those of
    `repeated` last; wrong bytes are U+FFFD and controls are spaces. None: they are not kept"""


@dataclass
class PartState:
    """What has come of a part so far. Pairs of values are (source, target)."""

    text: Paths
    """clean UTF-8 text, one sentence per line"""
    inputs: Sequence[FileFacts]
    """what the raw files are"""
    keys: np.ndarray
    """`cleaning.keys` of the pairs of the text"""
    corpora: np.ndarray
    """int [pairs], number of the corpus that each kept pair is of"""
    pairs_read: int
    """pairs of the raw files"""
    text_bytes: list[int]
    """bytes of the text read, cleaned, one byte per line end"""
    removed: Counter[str] = field(default_factory=Counter)
    """pairs removed by each rule"""
    truncated: int = 0
    """pairs kept with a side cut to the greatest length"""
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    """tokens of the pairs that are kept, eos counted, 0 before they are encoded"""
    kept_text_bytes: list[int] = field(init=False)
    """bytes of the text of the pairs that are kept"""

    def __post_init__(self) -> None:
        self.kept_text_bytes = [path.stat().st_size for path in self.text]

    @property
    def pairs(self) -> int:
        """Pairs that are kept."""
        return len(self.corpora)

    def finished(self) -> Part:
        """What the manifest records."""
        columns = (self.inputs, self.text_bytes, self.kept_text_bytes, self.tokens)
        source, target = (Side(*row) for row in zip(*columns, strict=True))
        removed = dict(sorted(self.removed.items()))
        return Part(self.pairs_read, self.pairs, removed, self.truncated, source, target)


def keep_all(source: str, target: str) -> tuple[str | None, cleaning.Pair]:
    """The cleaner of dev and test: every pair stays, for a score counts them all."""
    return None, (plain(source), plain(target))


def clean(sources: Sequence[Source], text: Paths) -> PartState:
    """Reads a part's raw files, one corpus after the other, and writes its clean text.

    Raises DataError as `Input.blocks` and `block_lines`.
    """
    pairs_read, text_bytes, removed = 0, np.zeros(2, np.int64), Counter[str]()
    keys, numbers = [np.zeros((0, 2), np.uint64)], [np.zeros(0, np.int64)]
    sizes: list[int] = []
    with ExitStack() as stack:
        notes = [stack.enter_context(_noting(source.removed)) for source in sources]
        with _writing(text) as write:
            for source, write_row in zip(sources, notes, strict=True):
                for cleaned in _cleaned(source):
                    pairs_read += cleaned.pairs_read
                    text_bytes += cleaned.text_bytes
                    removed.update(rule for rule, *_ in cleaned.removed)
                    keys.append(cleaned.keys)
                    numbers.append(cleaned.numbers)
                    write(cleaned.kept)
                    for row in cleaned.removed:
                        write_row(*row)
                sizes.append(sum(map(len, keys)) - sum(sizes))
        inputs = [source.raw.files for source in sources if source.raw]
        part = PartState(
            text, [*map(_joined, zip(*inputs, strict=True))], np.concatenate(keys),
            np.repeat(np.arange(len(sizes)), sizes), pairs_read, text_bytes.tolist(), removed,
        )  # fmt: skip
        rules: dict[str, np.ndarray] = {}
        for number, source in enumerate(sources):
            of_corpus = part.corpora == number
            for rule, pairs in source.repeated(part.keys[of_corpus]).items():
                rules.setdefault(rule, np.zeros(part.pairs, bool))[of_corpus] = pairs
        if not any(pairs.any() for pairs in rules.values()):
            return part
        if cleaning.DUPLICATE in rules:  # it comes last, whichever corpus has named it first
            rules[cleaning.DUPLICATE] = rules.pop(cleaning.DUPLICATE)
        number_of = np.concatenate(numbers)

        def note(index: int, rule: str, pair: tuple[bytes, bytes]) -> None:
            of_corpus = notes[part.corpora[index]]
            of_corpus(rule, number_of[index], (pair[0].decode(), pair[1].decode()))

        left = text[0].with_name(f"{text[0].name}.left"), text[1].with_name(f"{text[1].name}.left")
        return without(part, left, rules, note)


def hold_out(
    train: PartState, pairs: int, dev_text: Paths, rest: Paths, targets_too: bool
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
    keys = train.keys[chosen]
    shared = cleaning.leaks(train.keys, keys)
    rules = {HELD_OUT: chosen, IN_DEV: shared[:, 0]}
    if targets_too:
        rules[TARGET_IN_DEV] = shared[:, 1]
    with _writing(dev_text) as write:

        def note(index: int, rule: str, pair: tuple[bytes, bytes]) -> None:
            if rule == HELD_OUT:
                write((pair[0] + b"\n", pair[1] + b"\n"))

        left = without(train, rest, rules, note)
    dev = PartState(dev_text, train.inputs, keys, train.corpora[chosen], pairs, [])
    dev.text_bytes = dev.kept_text_bytes
    return left, dev


def without(
    part: PartState, text: Paths, rules: Mapping[str, np.ndarray],
    note: Callable[[int, str, tuple[bytes, bytes]], None],
) -> PartState:  # fmt: skip
    """Writes the pairs that no rule removes, and counts the others by the first one that does.

    Args:
        text: where the text of the pairs that are left goes.
        rules: bool [pairs] for each, the pairs that it removes.
        note: is told of each removed pair: index, rule, source and target.
    """
    names, removed_by = list(rules), np.zeros(part.pairs, np.int64)
    for number, pairs in reversed([*enumerate(rules.values(), start=1)]):
        removed_by[pairs] = number
    counts = np.bincount(removed_by, minlength=len(names) + 1)[1:].tolist()
    with _writing(text) as write, progress(part.pairs, "pairs", f"writing {text[0].name}") as bar:
        for block in pair_blocks(*part.text):
            first, (sources, targets) = block.first - 1, block.lines
            of_block = removed_by[first : first + block.pairs]
            for i in np.flatnonzero(of_block).tolist():
                note(first + i, names[of_block[i] - 1], (sources[i], targets[i]))
            is_left = of_block == 0
            write((_ended(compress(sources, is_left)), _ended(compress(targets, is_left))))
            bar.update(block.pairs)
    left = removed_by == 0
    return replace(
        part, text=text, keys=part.keys[left], corpora=part.corpora[left],
        removed=part.removed + Counter(dict(zip(names, counts, strict=True))),
    )  # fmt: skip


class _Cleaned(NamedTuple):
    pairs_read: int
    text_bytes: tuple[int, int]
    kept: tuple[bytes, bytes]
    keys: np.ndarray
    """of the kept pairs"""
    numbers: np.ndarray
    """line numbers of the kept pairs"""
    removed: list[tuple[str, int, cleaning.Pair]]
    """rule, line number and text of the others"""


def _cleaned(source: Source) -> Iterator[_Cleaned]:
    if source.raw is not None:
        with progress(None, "pairs", f"reading {source.raw.paths[0][0].name}") as bar:
            for cleaned in workers.in_order(partial(_clean, source), source.raw.blocks()):
                bar.update(cleaned.pairs_read)
                yield cleaned


def _clean(source: Source, job: tuple[Paths, Block, int]) -> _Cleaned:
    """What a worker does with a block: decode, apply the rules, encode what stays."""
    paths, block, before = job
    names, wrong = (str(paths[0]), str(paths[1])), set()
    try:
        lines = block_lines(block, names)
    except DataError:
        if source.wrong_bytes == "stop":
            raise
        lines = block_lines(block, names, lenient=True)
        if source.wrong_bytes == "skip":
            raw = (enumerate(side) for side in block.lines)
            wrong = {i for side in raw for i, line in side if not _is_utf8(line)}
    kept: list[cleaning.Pair] = []
    numbers: list[int] = []
    removed: list[tuple[str, int, cleaning.Pair]] = []
    for i, pair in enumerate(zip(*lines, strict=True)):
        rule, cleaned = source.cleaner(*pair)
        number = before + block.first + i
        if i in wrong or rule:
            removed.append((NOT_UTF8 if i in wrong else str(rule), number, pair))
        else:
            kept.append((" ".join((*source.tags, cleaned[0])), cleaned[1]))
            numbers.append(number)
    return _Cleaned(
        pairs_read=block.pairs,
        text_bytes=(_n_bytes(lines[0]), _n_bytes(lines[1])),
        kept=(_ended(pair[0].encode() for pair in kept), _ended(pair[1].encode() for pair in kept)),
        keys=cleaning.keys(kept, source.known_tags),
        numbers=np.array(numbers, np.int64),
        removed=removed,
    )


def _is_utf8(line: bytes) -> bool:
    return line.decode(errors="replace").encode() == line


def _n_bytes(lines: Iterable[str]) -> int:
    """Bytes of lines as they are used, one for each line's end."""
    return sum(len(line if line.isascii() else plain(line).encode()) + 1 for line in lines)


def _ended(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _joined(files: Sequence[FileFacts]) -> FileFacts:
    """What one file after the other is: of several, the digest of their digests."""
    if len(files) == 1:
        return files[0]
    digests = "".join(file.sha256 for file in files)
    n_bytes = sum(file.n_bytes for file in files)
    return FileFacts(n_bytes, hashlib.sha256(digests.encode()).hexdigest())


@contextmanager
def _writing(paths: Paths) -> Iterator[Callable[[tuple[bytes, bytes]], None]]:
    """Yields a function that writes whole lines to two files."""
    with open(paths[0], "wb") as source, open(paths[1], "wb") as target:

        def write(lines: tuple[bytes, bytes]) -> None:
            source.write(lines[0])
            target.write(lines[1])

        yield write


@contextmanager
def _noting(path: Path | None) -> Iterator[Callable[[str, int, cleaning.Pair], None]]:
    """Yields a function that writes rule, line number and text of a removed pair to a file."""
    if path is None:
        yield lambda *row: None
        return
    with (
        open(path, "wb") as stream,
        # Without a name and a time, which gzip would put into the bytes.
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, compresslevel=6, mtime=0) as packed,
    ):

        def write_row(rule: str, number: int, pair: cleaning.Pair) -> None:
            packed.write(("\t".join((rule, str(number), *map(plain, pair))) + "\n").encode())

        yield write_row

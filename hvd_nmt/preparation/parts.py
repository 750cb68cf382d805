"""A part (train, dev, test) on its way from raw text to clean text, in `removed.tsv.gz` what goes.

Text goes from file to file; hashes and line numbers, 24 bytes a pair, stay in memory.
"""

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, count, islice, repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import FileFacts
from hvd_nmt.common.progress import print_line, progress
from hvd_nmt.data.corpus import Part, Side
from hvd_nmt.data.sentencepiece_model import without_tags
from hvd_nmt.data.text import LineBlock, count_lines, decoded, plain, read_lines
from hvd_nmt.preparation import cleaning, workers
from hvd_nmt.preparation.corpus_files import CorpusFiles, Paths, joined_facts

NOT_UTF8 = "not UTF-8"
HELD_OUT = "held out for dev"
IN_DEV = "source is in dev"
TARGET_IN_DEV = "target is in dev"
_KEPT = np.dtype([("keys", np.uint64, 2), ("corpus", np.uint32), ("line", np.uint32)])
"""what is known of a pair: its `cleaning.keys`, number of its corpus, line of the corpus from 1"""


@dataclass
class PartState:
    """What has come of a part so far. Pairs of values are (source, target)."""

    text: Paths
    """clean UTF-8 text, one sentence per line"""
    inputs: Sequence[FileFacts]
    """what the raw files are"""
    kept: np.ndarray
    """_KEPT [pairs], the pairs of the text"""
    pairs_read: int
    """pairs of the raw files"""
    text_bytes: Sequence[int]
    """bytes of the text read, cleaned, one byte per line end"""
    removed: Counter[tuple[int, str]] = field(default_factory=Counter)
    """pairs removed, by number of their corpus and rule"""
    truncated: int = 0
    """pairs kept with a side cut to the greatest length"""
    tokens: Sequence[int] = (0, 0)
    """tokens of the pairs that are kept, eos counted, 0 before they are encoded"""
    kept_text_bytes: Sequence[int] = field(init=False)
    """bytes of the text of the pairs that are kept"""

    def __post_init__(self) -> None:
        self.kept_text_bytes = [path.stat().st_size for path in self.text]

    @property
    def pairs(self) -> int:
        """Pairs that are kept."""
        return len(self.kept)

    def finished(self) -> Part:
        """What the manifest records."""
        columns = (self.inputs, self.text_bytes, self.kept_text_bytes, self.tokens)
        source, target = (Side(*row) for row in zip(*columns, strict=True))
        removed = self.removed_by_rule()
        return Part(self.pairs_read, self.pairs, removed, self.truncated, source, target)

    def removed_by_rule(self, corpus: int | None = None) -> dict[str, int]:
        """How many pairs each rule removed, from all corpora or from one."""
        counts: Counter[str] = Counter()
        for (number, rule), pairs in self.removed.items():
            counts[rule] += pairs if corpus in (None, number) else 0
        return dict(sorted((+counts).items()))

    def going(self, rules: np.ndarray) -> Counter[tuple[int, str]]:
        """Counts like `removed`; `rules`, object [pairs], names why one goes, "" where it stays."""
        gone = rules != ""
        return Counter(zip(self.kept["corpus"][gone].tolist(), rules[gone], strict=True))


def clean_part(
    part: str, corpora: Sequence[CorpusFiles], text: Paths, removed: Path, *,
    wrong_bytes: str = "stop", known_tags: Sequence[str] = (),
    held_out: Mapping[str, np.ndarray] | None = None,
) -> PartState:  # fmt: skip
    """Reads a part's raw files, one corpus after the other, and writes its clean text.

    All pairs of dev and test stay, for a score counts them all.

    Args:
        removed: folder for the pairs that are removed from train: `removed.tsv.gz`, or of several
            corpora `removed.NAME.tsv.gz`. A row is rule, line number from 1, source and target
            with TAB between. Those that go because of others are last.
        wrong_bytes: stop: DataError at the first line that is not UTF-8; skip: a training pair with
            one is removed, dev and test keep it, with U+FFFD.
        known_tags: that make no other sentence of a source.
        held_out: `cleaning.keys` of the parts with which train must not share sentences.

    Raises DataError as `pair_blocks` and `decoded`.
    """
    blocks: list[_CleanedBlock] = []
    gone: Counter[tuple[int, str]] = Counter()
    with ExitStack() as stack:
        names = [corpus.name for corpus in corpora if part == "train"]
        rows = [stack.enter_context(_removed_rows(removed, name, "wb")) for name in names]
        with open(text[0], "wb") as source, open(text[1], "wb") as target:
            for number, corpus in enumerate(corpora):
                for cleaned in _cleaned_blocks(part, corpus, wrong_bytes == "skip", known_tags):
                    source.write(cleaned.text[0])
                    target.write(cleaned.text[1])
                    if rows:
                        rows[number].write(cleaned.rows)
                    gone.update({(number, rule): n for rule, n in cleaned.removed.items()})
                    cleaned.kept["corpus"] = number
                    blocks.append(cleaned._replace(text=(b"", b""), rows=b""))
        for path, lines in sum((block.with_cr for block in blocks), Counter()).items():
            print_line(f"{lines:,} lines of {path} ended in CR LF; the CR was removed")
    inputs = [corpus.inputs[part].files for corpus in corpora if part in corpus.inputs]
    state = PartState(
        text,
        inputs=[*map(joined_facts, zip(*inputs, strict=True))],
        kept=np.concatenate([block.kept for block in blocks]),
        pairs_read=sum(block.pairs_read for block in blocks),
        text_bytes=np.sum([block.text_bytes for block in blocks], axis=0).tolist(),
        removed=gone,
    )
    del blocks
    rules = np.full(state.pairs, "", object)
    for number, corpus in enumerate(corpora if names else ()):
        of_corpus = state.kept["corpus"] == number
        keys = state.kept["keys"][of_corpus]
        rules[of_corpus] = cleaning.repeated(corpus.rules, keys, held_out or {})
    if not rules.any():
        return state
    record_removed(state, names, removed, rules)
    left = text[0].with_name(f"{text[0].name}.left"), text[1].with_name(f"{text[1].name}.left")
    return _without(state, left, rules)


def record_removed(part: PartState, names: Sequence[str], folder: Path, rules: np.ndarray) -> None:
    """Adds pairs that go to the files of their corpora; `rules`, object [pairs], names why."""
    with ExitStack() as stack:
        rows = [stack.enter_context(_removed_rows(folder, name, "ab")) for name in names]
        pairs = zip(*(compress(read_lines(path), rules) for path in part.text), strict=True)
        gone = rules != ""
        for rule, known, pair in zip(rules[gone], part.kept[gone], pairs, strict=True):
            rows[known["corpus"]].write(_row(rule, known["line"], *pair))


@contextmanager
def _removed_rows(folder: Path, corpus: str, mode: str) -> Iterator[gzip.GzipFile]:
    name = ".".join(filter(None, ("removed", corpus, "tsv.gz")))
    # Without a name and a time, which gzip would put into the bytes.
    with (
        (folder / name).open(mode) as stream,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0) as rows,
    ):
        yield rows


def look_swapped(train: PartState, other: PartState, corpus: int) -> bool:
    """Whether each side of a corpus' dev or test has more runs of letters of train's other side."""
    runs = []
    for part in (train, other):
        for path in part.text:
            some = [*islice(compress(read_lines(path), part.kept["corpus"] == corpus), 2_000)]
            runs.append({line[i : i + 3] for line in some for i in range(len(line) - 2)})
    sources, targets, source, target = runs
    as_named = len(source & sources) + len(target & targets)
    return len(source & targets) + len(target & sources) > 1.2 * as_named


def hold_out(
    train: PartState, corpora: Sequence[CorpusFiles], dev_text: Paths, rest: Paths
) -> tuple[PartState, PartState]:
    """Takes `dev_size` evenly spread pairs out of each corpus; returns what is left, and dev.

    Training pairs whose source is also a dev source leave too; where a corpus' rules remove leaks
    also those whose target is a dev target. The text goes to `dev_text` and `rest`. DataError: dev
    would be more than half of the training pairs.
    """
    chosen = np.zeros(train.pairs, bool)
    for number, corpus in enumerate(corpora):
        places, pairs = np.flatnonzero(train.kept["corpus"] == number), corpus.dev_size
        if pairs > len(places) // 2:
            raise DataError(
                f"{f'corpus {corpus.name}: dev_size' if corpus.name else '--dev-size'} {pairs} is "
                f"more than half of the {len(places)} usable training pairs: give a smaller one."
            )
        chosen[places[(2 * np.arange(pairs) + 1) * len(places) // (2 * pairs or 1)]] = True
    dev = subset(train, dev_text, chosen)
    dev = replace(dev, pairs_read=dev.pairs, text_bytes=dev.kept_text_bytes, removed=Counter())
    shared = cleaning.leaks(train.kept["keys"], dev.kept["keys"])
    rules = np.full(train.pairs, "", object)
    targets_too = np.array([corpus.rules.remove_leaks for corpus in corpora])
    rules[shared[:, 1] & targets_too[train.kept["corpus"]]] = TARGET_IN_DEV
    rules[shared[:, 0]] = IN_DEV
    rules[chosen] = HELD_OUT
    return _without(train, rest, rules), dev


def joined_parts(parts: Sequence[PartState], text: Paths) -> PartState:
    """Several small parts as one, its pairs in the order of their corpora."""
    kept = np.concatenate([part.kept for part in parts])
    order = np.argsort(kept["corpus"], kind="stable")
    for side, path in enumerate(text):
        lines = [line for part in parts for line in part.text[side].read_bytes().splitlines(True)]
        path.write_bytes(b"".join(lines[place] for place in order))
    return replace(
        parts[0],
        text=text,
        inputs=[*map(joined_facts, zip(*(part.inputs for part in parts), strict=True))],
        pairs_read=sum(part.pairs_read for part in parts),
        text_bytes=np.sum([part.text_bytes for part in parts], axis=0).tolist(),
        kept=kept[order],
    )


def _without(part: PartState, text: Paths, rules: np.ndarray) -> PartState:
    """What is left where `rules`, object [pairs], name for each pair the one that removes it."""
    return replace(subset(part, text, rules == ""), removed=part.removed + part.going(rules))


def subset(part: PartState, text: Paths, which: np.ndarray) -> PartState:
    """Some pairs of a part, bool [pairs], written to other files."""
    for path, new in zip(part.text, text, strict=True):
        with open(path, "rb") as lines, open(new, "wb") as stream:
            stream.writelines(compress(lines, which))
    return replace(part, text=text, kept=part.kept[which])


class _CleanedBlock(NamedTuple):
    pairs_read: int
    text_bytes: tuple[int, int]
    text: tuple[bytes, bytes]
    """sources and targets of the kept pairs"""
    kept: np.ndarray
    """_KEPT [pairs], the kept pairs; the number of their corpus is not set"""
    removed: Counter[str]
    rows: bytes
    """rows of `removed.tsv.gz`"""
    with_cr: Counter[Path]
    """lines with CR before their end, by file"""


def _cleaned_blocks(
    part: str, corpus: CorpusFiles, lenient: bool, known_tags: Sequence[str]
) -> Iterator[_CleanedBlock]:
    if part not in corpus.inputs:
        return
    raw = corpus.inputs[part]
    cleaner = cleaning.Cleaner(corpus.rules, corpus.languages) if part == "train" else None
    work = partial(_clean_block, cleaner, lenient, corpus.tags, known_tags)
    total = None  # a file with both sides is read once
    if all(len(paths) > 1 for paths in raw.paths):
        total = sum(count_lines(paths[0]) for paths in raw.paths)
    with progress(total, "pairs", f"reading {raw.paths[0][0].name}") as bar:
        for cleaned in workers.in_order(work, raw.blocks()):
            bar.update(cleaned.pairs_read)
            yield cleaned


def _clean_block(
    cleaner: cleaning.Cleaner | None, lenient: bool, tags: Sequence[str],
    known_tags: Sequence[str], job: tuple[Paths, int, LineBlock],
) -> _CleanedBlock:  # fmt: skip
    """What a worker does with a block: decode, apply the rules (None: all stay), encode."""
    paths, before, block = job
    lines = [
        list(decoded(raw, block.first, lenient, str(path)))
        for raw, path in zip(block.lines, (paths[0], paths[-1]), strict=True)
    ]
    pairs: list[cleaning.Pair] = []
    numbers: list[int] = []
    rows: list[bytes] = []
    removed: Counter[str] = Counter()
    raw_and_text = zip(zip(*block.lines, strict=True), zip(*lines, strict=True), strict=True)
    given_rules = block.rules or repeat("")
    numbered = zip(count(before + block.first), raw_and_text, given_rules, strict=False)
    for number, (raw, pair), given_rule in numbered:
        rule: str | None = given_rule
        cleaned = plain(pair[0]), plain(pair[1])
        if cleaner and not rule:
            rule, cleaned = cleaner(*pair)
        if cleaner and lenient and any(b.decode(errors="replace").encode() != b for b in raw):
            rule = NOT_UTF8
        if rule:
            rows.append(_row(rule, number, *pair))
            removed[rule] += 1
        else:
            if known_tags:  # but for what holds nothing to translate
                has_text = without_tags(cleaned[0], known_tags).strip()
                cleaned = " ".join((*tags, cleaned[0])) if has_text else "", cleaned[1]
            pairs.append(cleaned)
            numbers.append(number)
    kept = np.zeros(len(pairs), _KEPT)
    kept["keys"], kept["line"] = cleaning.keys(pairs, known_tags), numbers
    return _CleanedBlock(
        pairs_read=block.pairs,
        text_bytes=(len(_text(lines[0])), len(_text(lines[1]))),
        text=(_text(source for source, _ in pairs), _text(target for _, target in pairs)),
        kept=kept,
        removed=removed,
        rows=b"".join(rows),
        with_cr=Counter(
            path for i, path in enumerate(paths) for line in block.lines[i] if line[-1:] == b"\r"
        ),
    )


def _text(lines: Iterable[str]) -> bytes:
    return "".join(f"{plain(line)}\n" for line in lines).encode()


def _row(rule: str, number: int, source: str, target: str) -> bytes:
    return f"{rule}\t{number}\t{plain(source)}\t{plain(target)}\n".encode()

"""A file translated, or scored, chunk by chunk, with one line of output for each of input."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hvd_nmt.checkpoints import names
from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.files import fingerprint
from hvd_nmt.common.progress import print_line, progress
from hvd_nmt.config import EOS
from hvd_nmt.data.text import read_lines
from hvd_nmt.translation import output, reader
from hvd_nmt.translation.settings import Settings

if TYPE_CHECKING:
    from hvd_nmt.translation.engine import Advance, Engine, Line, LineWarning


class FileJob(NamedTuple):
    """What to translate or score, and with which model."""

    run: Path
    checkpoints: tuple[str, ...]
    """one or more, see `checkpoints.find.find`; several translate as an ensemble"""
    input: Path | None
    """text, plain or .gz; None: stdin"""
    output: Path | None
    """where the lines go, plain or .gz; None: stdout"""
    target: Path | None
    """translations to score instead of translating"""
    as_json: bool
    settings: Settings

    @property
    def input_name(self) -> str:
        """The input, for messages."""
        return str(self.input or "stdin")

    def files(self) -> list[Path]:
        """The files that it reads."""
        return [path for path in (self.input, self.target) if path is not None]


class Rows(NamedTuple):
    """What a chunk became."""

    rows: list[str]
    """a line of output for each of its lines"""
    warnings: list[LineWarning]
    empty: int
    """lines that are not empty and have an empty translation"""


class Chunk(NamedTuple):
    """Lines of the input that are translated at a time."""

    first: int
    """number of the first line, from 1"""
    lines: list[str]
    targets: list[str] | None
    """the lines of `FileJob.target` that belong to them"""


def check_files(job: FileJob) -> None:
    """See before a model is loaded that files can be used."""
    if job.input is None and sys.__stdin__ is None:
        raise ConfigError("The standard input is closed: give --input.")
    if job.output is None and sys.__stdout__ is None:
        raise ConfigError("The standard output is closed: give --output.")
    for path in job.files():
        if not path.exists():
            raise DataError(f"There is no file {path}.")
        for written in output.files(job.output) if job.output else ():
            if written.exists() and written.samefile(path):
                raise ConfigError(f"{written} is the input: give the output another name.")


def run(job: FileJob) -> None:
    """Does the job, or what another process has left of it."""
    from hvd_nmt.checkpoints.find import find
    from hvd_nmt.translation import engine

    settings = job.settings.exact() if job.target else job.settings
    # Now, for which one is the best may change while the lines are translated.
    checkpoints = [find(job.run, which) for which in job.checkpoints]
    resumable = job.input is not None and all(path.is_file() for path in job.files())
    is_kept = resumable and job.output is not None
    identity = _identity(job, checkpoints) if is_kept else output.AFRESH
    with output.open_output(job.output, identity) as writer:
        try:
            loaded = engine.load(job.run, [str(prefix) for prefix in checkpoints], settings)
            _translate_all(job, loaded, writer)
        except KeyboardInterrupt:
            if resumable and writer.part is not None and writer.lines_done:
                kept = f"{writer.lines_done:,} lines are done and kept: the same command goes on."
                print(kept, file=sys.stderr)
            raise


def _identity(job: FileJob, checkpoints: Sequence[Path]) -> str:
    """What decides the lines of the output, as text."""
    facts = {
        "checkpoints": [fingerprint(names.file(prefix, ".index")).sha256 for prefix in checkpoints],
        "text": [fingerprint(path).sha256 for path in job.files()],
        "target": job.target is not None,
        "json": job.as_json,
        **job.settings.output_options(),
    }
    return json.dumps(facts, sort_keys=True)


def _translate_all(job: FileJob, engine: Engine, writer: output.Output) -> None:
    done, empty, total = writer.lines_done, 0, None
    if job.input is not None and job.input.is_file():
        total = reader.count_lines(job.input)
    if done:
        print_line(f"{writer.part} has {done:,} lines: going on behind them.")
    with progress(total, "lines", done=done) as bar:
        for chunk in _chunks(job, done):
            translated = _scored if chunk.targets else _translated
            rows, warnings, empty_rows = translated(job, engine, chunk, bar.update)
            empty += empty_rows
            for index, text in warnings:
                print_line(f"{job.input_name}, line {chunk.first + index}: {text}")
            writer.write(rows)
    if empty:
        since = f" after line {done:,}" if done else ""
        print_line(
            f"{job.input_name}: empty translations of lines that are not empty{since}: {empty:,}."
        )


def _translated(job: FileJob, engine: Engine, chunk: Chunk, advance: Advance) -> Rows:
    numbers = range(chunk.first, chunk.first + len(chunk.lines))
    results = engine.search(chunk.lines, job.as_json, advance, numbers)
    empty = sum(not best.text and best.source_tokens > 1 for best, *_ in results.lines)
    if not job.as_json:
        return Rows([best.text for best, *_ in results.lines], results.warnings, empty)
    pieces = engine.tokenizers.target.pieces
    found = zip(numbers, results.lines, strict=True)
    listed = job.settings.decoding.n_best > 1
    rows = [as_json(number, line, pieces, listed) for number, line in found]
    return Rows(rows, results.warnings, empty)


def _scored(job: FileJob, engine: Engine, chunk: Chunk, advance: Advance) -> Rows:
    assert chunk.targets is not None
    scored = engine.score_tokens(chunk.lines, chunk.targets, advance)
    pieces, rows = engine.tokenizers.target.pieces, []
    pairs = zip(scored.targets, scored.logps, strict=True)
    for number, (ids, logps) in enumerate(pairs, chunk.first):
        score = float(np.sum(logps, dtype=np.float64))
        facts = {"line": number, "score": _number(score), **_tokens(ids, logps, pieces)}
        rows.append(_json(facts) if job.as_json else f"{score:.4f}")
    return Rows(rows, scored.warnings, 0)


def as_json(number: int, translations: Sequence[Line], pieces: Sequence[str], listed: bool) -> str:
    """The line of output for one line of input, with `--json`.

    Args:
        number: of the line, from 1.
        translations: of the line, best first.
        pieces: of the vocabulary, by id.
        listed: whether all of them are given, as `n_best`.
    """
    found = [_facts(line, pieces) for line in translations]
    more = {"n_best": found} if listed else {}
    return _json({"line": number, **found[0], **more})


def _facts(line: Line, pieces: Sequence[str]) -> dict[str, Any]:
    found = line.translation
    facts: dict[str, Any] = {"text": line.text, "score": _number(found.score)}
    if found.token_scores is not None:
        facts |= _tokens(found.ids, found.token_scores, pieces)
    if found.alignment is not None:
        last = line.source_tokens - 1  # the end of the source, which stands for no word
        pairs = enumerate(zip(found.alignment.tolist(), found.ids.tolist(), strict=True))
        facts["alignment"] = [[i, j] for j, (i, token) in pairs if token != EOS and 0 <= i < last]
    return facts


def _tokens(ids: np.ndarray, logps: np.ndarray, pieces: Sequence[str]) -> dict[str, Any]:
    # The embedding has more rows than the vocabulary has pieces, a multiple of 8.
    named = [pieces[i] if i < len(pieces) else f"<{i}>" for i in ids.tolist()]
    return {"tokens": named, "token_scores": [_number(logp) for logp in logps.tolist()]}


def _number(score: float) -> float | None:
    """With six digits; null, for JSON has no infinity."""
    return round(score, 6) if math.isfinite(score) else None


def _json(facts: dict[str, Any]) -> str:
    return json.dumps(facts, ensure_ascii=False)


def _chunks(job: FileJob, done: int) -> Iterator[Chunk]:
    """The input after the lines that are done."""
    if job.input is None:
        found = reader.from_stdin()
    else:
        left = islice(read_lines(job.input, lenient=True), done, None)
        found = reader.chunks(left, reader.CHUNK_LINES)
    first, targets = done + 1, None
    if job.target is not None:
        targets = islice(read_lines(job.target, lenient=True), done, None)
    for lines in found:
        theirs = None if targets is None else list(islice(targets, len(lines)))
        if theirs is not None and len(theirs) < len(lines):
            raise DataError(f"{job.target} has fewer lines than {job.input_name}.")
        yield Chunk(first, lines, theirs)
        first += len(lines)
    if targets is not None and next(targets, None) is not None:
        raise DataError(f"{job.target} has more lines than {job.input_name}.")

"""A file translated, or scored, chunk by chunk: rank 0 reads and writes, every rank translates."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.files import fingerprint
from hvd_nmt.common.progress import print_line, progress
from hvd_nmt.common.version import __version__, code_hash
from hvd_nmt.config import command_line
from hvd_nmt.data.text import read_lines
from hvd_nmt.translation import output, output_format, ranks, reader
from hvd_nmt.translation.output_format import Columns
from hvd_nmt.translation.ranks import RankGroup
from hvd_nmt.translation.settings import Settings

if TYPE_CHECKING:
    from hvd_nmt.translation.engine import Advance, Engine


@dataclasses.dataclass(frozen=True)
class FileJob:
    """What to translate or score, and with which model."""

    run: Path
    """run directory"""
    checkpoints: tuple[str, ...]
    """one or more, see `checkpoints.find.find`; several translate as an ensemble"""
    input: Path | None
    """text, plain or .gz; None: stdin"""
    output: Path | None
    """where the lines go, plain or .gz; None: stdout"""
    prefix: Path | None
    """how the translation of each line of the input must begin"""
    target: Path | None
    """translations to score instead of translating"""
    columns: Columns
    """what a line of output has"""
    settings: Settings
    """how to translate"""

    @property
    def input_name(self) -> str:
        """The input, for messages."""
        return str(self.input or "stdin")

    @property
    def paired(self) -> Path | None:
        """The file whose line i belongs to line i of the input, if there is one."""
        return self.target or self.prefix

    def files(self) -> list[Path]:
        """The files that it reads."""
        return [path for path in (self.input, self.paired) if path is not None]


class Chunk(NamedTuple):
    """Lines of the input that are translated at a time."""

    first: int
    """number of the first line, from 1"""
    lines: list[str]
    paired: list[str] | None
    """the lines of `FileJob.paired` that belong to them"""


class Share(NamedTuple):
    """What a rank made of its share of a chunk."""

    indices: list[int]
    """places of its lines in the chunk, from 0"""
    rows: list[list[str]]
    """lines of output of each line in `indices`"""
    warnings: list[tuple[int, str]]
    """number of a line of the input, and what its reader should know"""
    empty: int
    """lines that are not empty and have an empty translation"""


def check_files(job: FileJob) -> None:
    """See before a model is loaded that files can be used."""
    if job.input is None and sys.__stdin__ is None:
        raise ConfigError("The standard input is closed: give --input.")
    if job.output is None and sys.__stdout__ is None:
        raise ConfigError("The standard output is closed: give --output.")
    if command_line.started_by_horovod():
        if job.input is None:
            raise ConfigError("ranks get no stdin: give --input.")
        if job.output is None:
            raise ConfigError("what several ranks print is no file: give --output.")
    for path in job.files():
        if not path.exists():
            raise DataError(f"There is no file {path}.")
        for written in output.files(job.output) if job.output else ():
            if written.exists() and written.samefile(path):
                raise ConfigError(f"{written} is the input: give the output another name.")
    files = [path for path in job.files() if path.is_file()]
    if len(files) == 2:
        counts = [reader.count_lines(path) for path in files]
        if counts[0] != counts[1]:
            raise DataError(
                f"{files[0]} has {counts[0]} lines, but {files[1]} has {counts[1]}: "
                "line i of one must belong to line i of the other."
            )


def run(job: FileJob) -> None:
    """Does the job, or what another process has left of it."""
    from hvd_nmt.checkpoints.find import find
    from hvd_nmt.translation import engine

    with ranks.join(job.settings.threads) as group, ExitStack() as stack:
        with group.raise_on_all_ranks():
            # Once: a run that still trains may have another best one a moment later.
            prefixes = [os.fspath(find(job.run, name)) for name in job.checkpoints]
            hashes = engine.manifest_hashes(prefixes)
        settings = job.settings.exact() if job.target else engine.with_precision(job.settings)
        job = dataclasses.replace(job, settings=settings)
        group.require_equal({
            "checkpoint": hashes, "code of hvd_nmt": code_hash(),
            "precision (give --precision)": settings.precision,
        })  # fmt: skip
        writer: output.Output | None = None
        chunks: Iterator[Chunk] = iter(())
        with group.raise_on_all_ranks():
            if group.is_first:
                resumable = job.input is not None and all(path.is_file() for path in job.files())
                opened = output.open_output(job.output, _identity(job, hashes), resumable=resumable)
                writer = stack.enter_context(opened)
                chunks = _chunks(job, writer.lines_done, group.size)
        with group.raise_on_all_ranks():
            threads = group.threads(job.settings.threads)
            settings = dataclasses.replace(job.settings, threads=threads)
            loaded = engine.load(job.run, prefixes, settings)
        try:
            _translate_all(job, group, loaded, chunks, writer)
        except KeyboardInterrupt:
            if writer is not None and writer.lines_kept:
                kept = f"{writer.lines_kept:,} lines are done and kept: the same command goes on."
                print(kept, file=sys.stderr)
            raise
        with group.raise_on_all_ranks():
            stack.close()


def _translate_all(
    job: FileJob,
    group: RankGroup,
    engine: Engine,
    chunks: Iterator[Chunk],
    writer: output.Output | None,
) -> None:
    """Chunk by chunk: rank 0 reads, all translate their share, rank 0 writes."""
    done = writer.lines_done if writer else 0
    total = None
    if group.is_first and job.input is not None and job.input.is_file():
        total = reader.count_lines(job.input)
    empty = 0
    with progress(total, "lines", done=done, show=group.is_first) as bar:
        while True:
            with group.raise_on_all_ranks():
                read = next(chunks, None)
            fields = group.broadcast(read)
            if fields is None:
                break
            chunk = Chunk(*fields)
            indices = group.share(chunk.lines)
            with group.raise_on_all_ranks():
                share = _translate_share(job, engine, chunk, indices, bar.update)
            shares = [Share(*each) for each in group.gather(share)]
            with group.raise_on_all_ranks():
                if writer is not None:
                    _write(job, chunk, shares, writer)
            empty += sum(share.empty for share in shares)
            bar.update(len(chunk.lines) - len(indices))
    if empty and group.is_first:
        since = f" after line {done:,}" if done else ""
        print_line(
            f"{job.input_name}: empty translations of lines that are not empty{since}: {empty:,}."
        )


def _translate_share(
    job: FileJob, engine: Engine, chunk: Chunk, indices: list[int], advance: Advance
) -> Share:
    lines = [chunk.lines[index] for index in indices]
    paired = None if chunk.paired is None else [chunk.paired[index] for index in indices]
    numbers = [chunk.first + index for index in indices]
    pieces = engine.tokenizers.target.pieces
    if job.target is not None:
        assert paired is not None
        scored = engine.score(lines, paired, advance)
        pairs = zip(scored.targets, scored.logps, strict=True)
        tokens = job.columns.token_scores
        rows = [[output_format.scored_row(ids, logps, pieces, tokens)] for ids, logps in pairs]
        warnings, empty = scored.warnings, 0
    else:
        results = engine.translate(lines, paired, job.columns.details, advance, numbers)
        found = zip(results.lines, numbers, strict=True)
        rows = [output_format.rows(line, number, job.columns, pieces) for line, number in found]
        warnings, best = results.warnings, (found[0] for found in results.lines)
        empty = sum(not line.text and line.source_tokens > 1 for line in best)
    return Share(indices, rows, [(numbers[index], text) for index, text in warnings], empty)


def _write(job: FileJob, chunk: Chunk, shares: list[Share], writer: output.Output) -> None:
    """The ranks' shares of a chunk, put in order."""
    rows: dict[int, list[str]] = {}
    for share in shares:
        rows.update(zip(share.indices, share.rows, strict=True))
    for number, text in sorted(tuple(each) for share in shares for each in share.warnings):
        print_line(f"{job.input_name}, line {number}: {text}")
    count = len(chunk.lines)
    writer.write([row for index in range(count) for row in rows[index]], count)


def _chunks(job: FileJob, done: int, ranks_count: int) -> Iterator[Chunk]:
    """The input after the lines that are done."""
    if job.input is None:
        found = reader.from_stdin()
    else:
        lines = islice(read_lines(job.input, lenient=True), done, None)
        found = reader.chunks(lines, reader.CHUNK_LINES * ranks_count)
    others = None
    if job.paired is not None:
        others = islice(read_lines(job.paired, lenient=True), done, None)
    first = done + 1
    for chunk in found:
        paired = None if others is None else list(islice(others, len(chunk)))
        if paired is not None and len(paired) < len(chunk):
            raise DataError(f"{job.paired} has fewer lines than {job.input_name}.")
        yield Chunk(first, chunk, paired)
        first += len(chunk)
    if others is not None and next(others, None) is not None:
        raise DataError(f"{job.paired} has more lines than {job.input_name}.")


def _identity(job: FileJob, checkpoints: list[str]) -> output.Job:
    """What decides the output: a half-finished one is gone on with only where all is equal."""
    if job.output is None:
        return {}
    files = {"input": job.input, "prefix": job.prefix, "target": job.target}
    facts: output.Job = {
        name: fingerprint(path).sha256 if path and path.is_file() else None
        for name, path in files.items()
    }
    facts |= {"checkpoint": checkpoints, "version": __version__, "score": bool(job.target)}
    return facts | dataclasses.asdict(job.columns) | job.settings.output_options()

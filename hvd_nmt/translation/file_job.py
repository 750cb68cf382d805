"""A file translated chunk by chunk, with one line of output for each of input.

The lines go to OUT.part, so that another start counts the whole ones and continues after them.
OUT.part.job says of which job they are. At the end OUT.part replaces OUT.
"""

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.find import find
from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.files import fingerprint, rename_durably, replacing_file, sync, try_lock
from hvd_nmt.common.progress import print_line, progress
from hvd_nmt.common.units import count
from hvd_nmt.config import EOS
from hvd_nmt.data.text import ENCODINGS, PACKINGS, UNKNOWN, count_lines, read_lines, to_utf8
from hvd_nmt.translation import engine
from hvd_nmt.translation.engine import Engine, Line
from hvd_nmt.translation.settings import FileJob

AFRESH = "starts afresh"
_BLOCK_BYTES = 1 << 20


def run(job: FileJob) -> None:
    """Does the job, or what another process has left of it."""
    _check_files(job)
    # Now, for which one is the best may change while the lines are translated.
    checkpoints = [find(job.run, which) for which in job.checkpoint]
    with open_output(job.output, _identity(job, checkpoints)) as output:
        loaded = engine.load(job.run, [str(prefix) for prefix in checkpoints], job.settings)
        if output.lines_done:
            print_line(f"{output.part} has {output.lines_done:,} lines: continuing after them.")
        _translate_all(job, loaded, output)


@dataclass
class Output:
    """Where the lines go; made by `open_output`."""

    stream: IO[bytes]
    path: Path | None
    """path of a file, a device or a pipe; None: standard output"""
    part: Path | None = None
    """file in which another start has the lines; None: they are lost"""
    lines_done: int = 0

    def write(self, rows: Sequence[str]) -> None:
        """Writes lines, given without their ends; when it returns, they are done for good."""
        with _explained(self.path):
            self.stream.write("".join(row + "\n" for row in rows).encode("utf-8", "replace"))
            self.stream.flush()
            if self.part is not None:
                sync(self.part)
        self.lines_done += len(rows)


@contextmanager
def open_output(path: Path | None, job: str = AFRESH) -> Iterator[Output]:
    """The output: complete when the block ends, and otherwise OUT.part and an older OUT.

    `path` is a file, packed as its name ends (`PACKINGS`), or None for standard output. `job` is
    what decides the lines: those of an equal job are gone on from, but for `AFRESH`, whose input
    cannot be read again.

    ConfigError: it cannot be written, another process writes it, or OUT.part is of another job.
    """
    if path is None:
        yield Output(sys.stdout.buffer, path)
        return
    if path.exists() and not path.is_file():  # such as /dev/null, or a named pipe
        with _explained(path):
            device = path.open("wb")
        with device:
            yield Output(device, path)
        return
    path, part, mark = _written_files(path)
    with _explained(path):
        stream = part.open("ab+")
    with stream:
        output = Output(stream, path)
        with _explained(path):
            _find_lines(output, part, mark, job)
        try:
            yield output
        except BaseException:
            if output.lines_done == 0 or job == AFRESH:
                part.unlink()
                mark.unlink(missing_ok=True)
            raise
        with _explained(path):
            _put_in_place(part, path)
            mark.unlink(missing_ok=True)


def _check_files(job: FileJob) -> None:
    """See before a model is loaded that files can be used."""
    if job.output is None and sys.__stdout__ is None:
        raise ConfigError("The standard output is closed: give --output.")
    if job.input is None:
        return
    if not job.input.exists():
        raise DataError(f"There is no file {job.input}: check --input.")
    for written in _written_files(job.output) if job.output else ():
        if written.exists() and written.samefile(job.input):
            raise ConfigError(f"{written} is the input: give the output another name.")


def _written_files(path: Path) -> tuple[Path, Path, Path]:
    """OUT itself, behind any link, which stays one; OUT.part; and OUT.part.job."""
    path = Path(os.path.realpath(path))
    return path, Path(f"{path}.part"), Path(f"{path}.part.job")


def _identity(job: FileJob, checkpoints: Sequence[Path]) -> str:
    """What decides the lines of the output, as text."""
    if job.output is None or job.input is None or not job.input.is_file():
        return AFRESH
    indexes = (names.file(prefix, ".index") for prefix in checkpoints)
    facts = {
        "checkpoints": [fingerprint(path).sha256 for path in indexes],
        "text": [fingerprint(job.input).sha256],
        "json": job.json,
    }
    return json.dumps(facts | job.settings.output_options(), sort_keys=True)


def _find_lines(output: Output, part: Path, mark: Path, job: str) -> None:
    """Counts the lines of a killed job; half a line behind them is cut off."""
    if not try_lock(output.stream):  # held until this process ends, however it ends
        raise ConfigError(f"{part} is being written by another process: wait for it, or end it.")
    output.stream.seek(0)
    count = end = 0
    for line in output.stream:
        if line.endswith(b"\n"):
            count, end = count + 1, end + len(line)
    if count and (not mark.exists() or mark.read_text("utf-8") != job):
        raise ConfigError(
            f"{part} is the unfinished output of another job, with other text, options or "
            "checkpoints: remove it to start again."
        )
    output.part, output.lines_done = part, 0 if job == AFRESH else count
    output.stream.truncate(end if output.lines_done else 0)
    if not output.lines_done:  # else it is there, and a full disk would empty it
        mark.write_text(job, "utf-8")


def _put_in_place(part: Path, path: Path) -> None:
    packing = PACKINGS.get(path.suffix)
    if packing is None:
        rename_durably(part, path)
        return
    with (
        replacing_file(path) as draft,
        part.open("rb") as lines,
        packing.open(draft, "wb") as packed,
    ):
        shutil.copyfileobj(lines, packed)
    part.unlink()


@contextmanager
def _explained(path: Path | None) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if path is None:  # Python flushes stdout once more at exit and must not fail then
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        remedy = "make its directory" if isinstance(error, FileNotFoundError) else "fix that"
        fault = f"Cannot write {path or 'stdout'} ({error.strerror or error})"
        raise ConfigError(f"{fault}: {remedy}, or give another --output.") from None


def _translate_all(job: FileJob, loaded: Engine, output: Output) -> None:
    name, done, empty, wrong = str(job.input or "stdin"), output.lines_done, 0, 0
    remarks = engine.Remarks(f"{name}, ", print_line)
    chunks, total = from_stdin(), None
    if job.input is not None:
        chunks = engine.chunks(islice(read_lines(job.input, lenient=True), done, None))
        if job.input.is_file():
            total = count_lines(job.input)
    with progress(total, "lines", done=done) as bar:
        for lines in chunks:
            first = output.lines_done + 1
            translated = loaded.search(lines, first, job.json, remarks, bar.update)
            # That of a blank line has a score of 0, as nothing else has.
            empty += sum(not best.text and best.translation.score != 0 for best, *_ in translated)
            pieces = loaded.tokenizers.target.pieces
            output.write([_row(i, line, pieces, job) for i, line in enumerate(translated, first)])
            wrong += sum("\ufffd" in line for line in lines)
    remarks.end()
    since = f" after line {done:,}" if done else ""
    if empty:
        print_line(f"{name}: empty translations of lines that are not empty{since}: {empty:,}.")
    if wrong:
        lost = f"{count(wrong, 'line')}{since} had characters that are not UTF-8, and lost them"
        print_line(f"{name}: {lost}. Convert it, and translate new.txt:")
        print_line(f"  {to_utf8(UNKNOWN, name)}")
        print_line(f"{UNKNOWN} is {ENCODINGS}.")


def from_stdin() -> Iterator[list[str]]:
    """Chunks of standard input as it arrives, at least a line: who types gets each answer."""
    arrived: list[int] = []

    def raw_lines() -> Iterator[bytes]:
        rest = b""
        while data := os.read(sys.stdin.fileno(), _BLOCK_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                arrived.append(len(lines))
            yield from (line + b"\n" for line in lines)
        if rest:
            arrived.append(1)
            yield rest

    decoded = read_lines(raw_lines(), lenient=True, name="stdin")
    for line in decoded:  # the first that has arrived
        yield from engine.chunks([line, *islice(decoded, arrived.pop() - 1)])


def _row(number: int, translations: Sequence[Line], pieces: Sequence[str], job: FileJob) -> str:
    """The line of output for one line of input; `number` is from 1, `pieces` are by id."""
    if not job.json:
        return translations[0].text
    facts = [_facts(line, pieces) for line in translations]
    more = {"n_best": facts} if job.settings.decoding.n_best > 1 else {}
    return json.dumps({"line": number, **facts[0], **more}, ensure_ascii=False)


def _facts(line: Line, pieces: Sequence[str]) -> dict[str, Any]:
    translation, ids = line.translation, line.translation.ids.tolist()
    # The embedding has more rows than the vocabulary has pieces, a multiple of 8.
    tokens = [pieces[i] if i < len(pieces) else f"<{i}>" for i in ids]
    facts = {"text": line.text, "score": _number(translation.score), "tokens": tokens}
    if translation.token_scores is not None:
        facts["token_scores"] = [_number(score) for score in translation.token_scores.tolist()]
    if translation.alignment is not None:
        pairs = enumerate(zip(translation.alignment.tolist(), ids, strict=True))
        facts["alignment"] = [[i, j] for j, (i, token) in pairs if token != EOS and i >= 0]
    return facts


def _number(score: float) -> float | None:
    """A number of six digits; None, which is null, for an infinity: JSON has none."""
    return round(score, 6) if math.isfinite(score) else None

"""An output file that a killed job finds again, with no line lost or doubled.

The lines go to FILE.part, one for each line of the input, so that another start counts the whole
ones and goes on behind them; FILE.part.job says of which job they are. At the end FILE.part becomes
FILE; an older FILE stays until then.
"""

import gzip
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, final

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.files import rename_durably, replacing_file, sync, try_lock

AFRESH = "starts afresh"


@final
class Output:
    """Where the lines go; made by `open_output`."""

    def __init__(self, stream: IO[bytes], part: Path | None = None, lines_done: int = 0) -> None:
        self._stream = stream
        self.part = part
        """the file in which another start finds the lines; None: nowhere"""
        self.lines_done = lines_done

    def write(self, rows: list[str]) -> None:
        """Writes lines, given without their ends; when it returns, they are done for good."""
        self._stream.write("".join(row + "\n" for row in rows).encode("utf-8", "replace"))
        self._stream.flush()
        self.lines_done += len(rows)
        if self.part is not None:
            sync(self.part)


@contextmanager
def open_output(path: Path | None, job: str = AFRESH) -> Iterator[Output]:
    """The output: complete when the block ends, and otherwise FILE.part and an older FILE.

    Args:
        path: file, plain or .gz; None: standard output.
        job: what decides the lines; only the lines of an equal one are gone on from. `AFRESH` for
            an input that cannot be read again.

    Raises:
        ConfigError: it cannot be written, another process writes it, or FILE.part is another job's.
    """
    with _explained(path):
        if path is None:
            yield Output(sys.stdout.buffer)
            return
        if path.is_dir():
            raise ConfigError(f"{path} is a directory: give the name of a file.")
        if path.exists() and not path.is_file():  # /dev/null, a named pipe
            with path.open("wb") as stream:
                yield Output(stream)
            return
        path, part = files(path)
        with open(part, "ab+") as stream:
            _lock(stream, part)
            mark = part.with_name(f"{part.name}.job")
            lines_done = _whole_lines(stream)
            if lines_done and (not mark.exists() or mark.read_text("utf-8") != job):
                raise ConfigError(
                    f"{part} is the half-finished output of another job, with other text, options "
                    "or checkpoints: remove it to start afresh."
                )
            output = Output(stream, part, 0 if job == AFRESH else lines_done)
            if not output.lines_done:
                stream.truncate(0)
                mark.write_text(job, "utf-8")
            try:
                yield output
            except BaseException:
                if output.lines_done == 0 or job == AFRESH:
                    part.unlink()
                    mark.unlink(missing_ok=True)
                raise
            _put_in_place(part, path)
            mark.unlink(missing_ok=True)


def files(path: Path) -> tuple[Path, Path]:
    """FILE itself, behind any link, which stays one; and FILE.part."""
    path = Path(os.path.realpath(path))
    return path, path.with_name(f"{path.name}.part")


def _whole_lines(stream: IO[bytes]) -> int:
    """How many there are; half a line behind them, which was being written, is cut off."""
    stream.seek(0)
    count = end = 0
    for line in stream:
        if line.endswith(b"\n"):
            count, end = count + 1, end + len(line)
    stream.truncate(end)
    return count


def _put_in_place(part: Path, path: Path) -> None:
    if path.suffix != ".gz":
        rename_durably(part, path)
        return
    with (
        replacing_file(path) as draft,
        part.open("rb") as lines,
        gzip.open(draft, "wb", 6) as packed,
    ):
        shutil.copyfileobj(lines, packed)
    part.unlink()


def _lock(stream: IO[bytes], part: Path) -> None:
    """Hold the file until this process ends, however it ends."""
    with suppress(OSError):
        if try_lock(stream) and os.path.samestat(os.stat(part), os.fstat(stream.fileno())):
            return  # and it was not renamed meanwhile
    raise ConfigError(f"{part} is being written by another process: wait for it, or end it.")


@contextmanager
def _explained(path: Path | None) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if path is None:  # Python flushes stdout once more at exit and must not fail then
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        name = path or "stdout"
        raise ConfigError(f"{name} cannot be written: {error.strerror or error}.") from None

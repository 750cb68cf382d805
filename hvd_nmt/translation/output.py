"""An output file that a killed job finds again, with no line lost or doubled.

The lines go to FILE.part. After each chunk the file is synced, and then FILE.part.json says how
many lines of the input are done, how many bytes they made, and of which job; so whatever a killed
job wrote after that is cut off by the next start. At the end FILE.part becomes FILE. An older FILE
stays as it is until then.
"""

import gzip
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, final

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.files import rename_durably, sync, try_lock, write_atomically

Job = dict[str, Any]
"""what decides the bytes of an output: name -> value, of types that JSON has"""


@final
class Output:
    """Where the lines go; made by `open_output`."""

    def __init__(self, stream: IO[bytes], *, compress: bool = False) -> None:
        self._stream, self._compress = stream, compress
        self._journal: Path | None = None
        self._job: Job = {}
        self.lines_done = 0
        """lines of the input whose output is written"""
        self.lines_kept = 0
        """lines of the input that another start of the same job would not do again"""

    def write(self, rows: list[str], lines: int) -> None:
        """Writes the output of some lines of the input; when it returns, they are done for good.

        Args:
            rows: lines of output, without their ends.
            lines: of the input, that they came from.
        """
        data = "".join(row + "\n" for row in rows).encode("utf-8", "replace")
        # Each chunk is a gzip member of its own: a file of whole members is a gzip file.
        self._stream.write(gzip.compress(data, 6, mtime=0) if self._compress else data)
        self._stream.flush()
        self.lines_done += lines
        if self._journal is not None:
            sync(Path(self._stream.name))
            self._note(self._journal)
            self.lines_kept = self.lines_done

    def _begin(self, journal: Path, job: Job, part: Path, resumable: bool) -> None:
        """Goes on where the journal says, or from the start."""
        done = _read(journal)
        if done is not None and self._stream.seek(0, os.SEEK_END) >= done["bytes"] > 0:
            _require_same(done["job"], job, part)
            self.lines_done = self.lines_kept = done["lines"]
            self._stream.truncate(done["bytes"])
        else:
            journal.unlink(missing_ok=True)  # of lines that are gone, whatever is written now
            self._stream.truncate(0)
        self._stream.seek(0, os.SEEK_END)
        if resumable:
            self._journal, self._job = journal, job

    def _note(self, journal: Path) -> None:
        facts = {"lines": self.lines_done, "bytes": self._stream.tell(), "job": self._job}
        write_atomically(journal, json.dumps(facts, indent=1) + "\n")


@contextmanager
def open_output(path: Path | None, job: Job, *, resumable: bool = True) -> Iterator[Output]:
    """The output: complete when the block ends, and otherwise FILE.part and an older FILE.

    Args:
        path: file, plain or .gz; None: standard output.
        job: what decides its bytes.
        resumable: False for an input that cannot be read again: the job always starts afresh.

    Raises:
        ConfigError: it cannot be written, or FILE.part is that of another job or of a living one.
    """
    with _explained(path):
        if path is None:
            yield Output(sys.stdout.buffer)
            return
        compress = path.suffix == ".gz"
        if path.is_dir():
            raise ConfigError(f"{path} is a directory: give the name of a file.")
        if path.exists() and not path.is_file():  # /dev/null, a named pipe
            with path.open("wb") as stream:
                yield Output(stream, compress=compress)
            return
        path, part, journal = files(path)
        with open(part, "ab+") as stream:
            _lock(stream, part)
            output = Output(stream, compress=compress)
            output._begin(journal, job, part, resumable)
            try:
                yield output
            except BaseException:
                if output.lines_done == 0:
                    part.unlink()
                raise
            if compress and stream.tell() == 0:
                output.write([], 0)  # no bytes at all are no gzip file
            rename_durably(part, path)
            journal.unlink(missing_ok=True)
            sync(path.parent)


def files(path: Path) -> tuple[Path, Path, Path]:
    """FILE itself, behind any link, which stays one; FILE.part; and FILE.part.json."""
    path = Path(os.path.realpath(path))
    return path, path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")


def _lock(stream: IO[bytes], part: Path) -> None:
    """Hold the file until this process ends, however it ends."""
    with suppress(OSError):
        if try_lock(stream) and os.path.samestat(os.stat(part), os.fstat(stream.fileno())):
            return  # and it was not renamed meanwhile
    raise ConfigError(f"{part} is being written by another process: wait for it, or end it.")


def _read(journal: Path) -> dict[str, Any] | None:
    """What the journal says; None if there is none, or none that can be understood."""
    try:
        facts = json.loads(journal.read_text(encoding="utf-8"))
        whole = facts["lines"] >= 0 and facts["bytes"] >= 0 and isinstance(facts["job"], dict)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return facts if whole else None


def _require_same(old: Job, new: Job, part: Path) -> None:
    for name in sorted(old.keys() | new.keys()):
        was, now = (str(job.get(name))[:40] for job in (old, new))
        if old.get(name) != new.get(name):
            raise ConfigError(
                f"{part} is the half-finished output of another job, with another {name} ({was}, "
                f"now {now}): start that job again to finish it, or remove the file to start "
                "afresh."
            )


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

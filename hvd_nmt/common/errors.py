"""How a command ends: a person's mistake in one sentence, with an exit code for scripts.

A defect has a traceback; horovodrun turns any failure of a rank into exit code 1.
"""

import contextlib
import errno
import io
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Self, TextIO, cast, final

from hvd_nmt.common.rank_environment import START_ID


class UserError(Exception):
    """An error that a person can fix: printed as one sentence, without a traceback."""

    exit_code = 2
    on_all_ranks = False
    """whether every rank of the run has it, so that the first alone prints it"""

    def of_all_ranks(self) -> Self:
        """The same error, which all ranks are known to have."""
        self.on_all_ranks = True
        return self


class ConfigError(UserError, ValueError):
    """The command line or configuration cannot work; no right, disk or memory."""


class DataError(UserError):
    """The text, the vocabulary or the prepared data cannot be used."""

    exit_code = 3


class RunError(UserError):
    """The run directory or a checkpoint in it cannot be used."""

    exit_code = 4


class ClusterError(UserError):
    """The ranks or hosts do not form the cluster that was asked for."""

    exit_code = 5


class DivergedError(UserError):
    """Training stopped: NaN or Inf, or replicas that no longer hold equal weights."""

    exit_code = 6
    on_all_ranks = True  # a decision, and all ranks decide alike


class Preempted(UserError):
    """Stopped by a signal after saving a checkpoint: the same command resumes."""

    exit_code = 75
    on_all_ranks = True


@contextlib.contextmanager
def spoken_in_python() -> Iterator[None]:
    """Around a function for Python: its UserErrors name arguments instead of options."""
    try:
        yield
    except UserError as error:
        text = re.sub(r"`python -m hvd_nmt\.prepare [^`]*`", "hvd_nmt.prepare_data", str(error))
        text = re.sub(r"python -m hvd_nmt\.\w+ --help", "help(hvd_nmt)", text)
        option = r"(?<![\w./-])--([a-z][\w.-]*\w)"
        error.args = (re.sub(option, lambda match: match[1].replace("-", "_"), text),)
        raise


BY_EXIT_CODE = {kind.exit_code: kind for kind in UserError.__subclasses__()}
EXIT_CODES = """\
Exit codes: 0 done, 1 defect, 2 command line, 3 text or data, 4 run directory, 5 ranks or hosts,
6 training diverged, 75 stopped and saved, 130 Ctrl-C. docs/exit-codes.md explains them."""


def speak_utf8() -> None:
    """Let no character stop the output, nor a stream that was closed before the start.

    horovodrun reads the ranks' output as UTF-8 and stops reading at the first byte that is not,
    after which the rank blocks as soon as the pipe is full.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It takes the number of the closed one, which else the next file that is opened gets.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


def unwritten(sentence: str, error: BaseException) -> UserError:
    """A RunError; for a full disk a ClusterError: there may be room when the run resumes."""
    is_full = system_error(error) in map(os.strerror, (errno.ENOSPC, errno.EDQUOT))
    return (ClusterError if is_full else RunError)(sentence)


# Only a person can fix these: no right to a file or folder, a file where a folder is needed, and a
# full disk.
_OF_THE_MACHINE = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOSPC, errno.EDQUOT
}  # fmt: skip


def system_error(error: BaseException) -> str:
    """The operating system's message, which TensorFlow puts between others; "": it has none."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    known = [os.strerror(number) for number in errno.errorcode]
    return next((text for text in known if text in str(error)), "")


_FIRST_SPEAKS_S = 5.0
"""seconds for rank 0 to print the same: its launcher then ends the others before they do"""


@contextlib.contextmanager
def reported(command: str, speak: bool = True) -> Iterator[SimpleNamespace]:
    """Turn a person's mistake into an exit code and, after `command`, one sentence on stderr.

    Ranks other than the first do not `speak`: they print only errors that not all have.
    """
    outcome, message, is_own = SimpleNamespace(exit_code=0), "", True
    try:
        yield outcome
    except UserError as error:
        outcome.exit_code, message, is_own = error.exit_code, str(error), not error.on_all_ranks
    except BrokenPipeError:
        # A reader such as `head` has enough. Python flushes stdout once more at exit and must not
        # fail then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        name = f"{error.filename}: " if error.filename else ""
        outcome.exit_code = ConfigError.exit_code
        message = f"{name}{error.strerror}: fix that, or give another path."
    except KeyboardInterrupt:
        outcome.exit_code, message, is_own = 130, "interrupted.", False
    if message and not speak and is_own:
        if START_ID not in os.environ:  # hvd_nmt.launch shows only what rank 0 does not print
            time.sleep(_FIRST_SPEAKS_S)
        message, speak = f"On {socket.gethostname()}: {message}", True
    if message and speak:
        print(f"{command}: {message}", file=sys.stderr)


@contextlib.contextmanager
def outliving_readers(command: str) -> Iterator[None]:
    """In the block a write to stdout or stderr that fails does nothing; the next is tried again.

    A reader such as `head` has ended, an ssh connection is cut, or the disk of a log is full. One
    sentence on stderr, after the command's name, says so of stdout.
    """
    speak_utf8()
    streams = sys.stdout, sys.stderr
    for name in ("stdout", "stderr"):
        setattr(sys, name, cast(TextIO, _OutlivingStream(getattr(sys, name), name, command)))
    try:
        yield
    finally:
        sys.stdout.flush()  # at its exit Python could not
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams


@final
class _OutlivingStream:
    """A text stream whose writes never fail; in all else it is the stream itself."""

    def __init__(self, stream: TextIO, name: str, command: str) -> None:
        self._stream, self._name, self._command = stream, name, command
        self._has_failed, self._lock = False, threading.Lock()

    def write(self, text: str) -> int:
        self._outlive(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._outlive(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _outlive(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            # What is still in Python's buffer would come with the next, perhaps in its midst.
            number = self._stream.fileno()
            with (
                self._lock,
                open(os.devnull, "wb") as nowhere,
                os.fdopen(os.dup(number), "wb") as kept,
            ):
                os.dup2(nowhere.fileno(), number)
                self._stream.flush()
                os.dup2(kept.fileno(), number)
            if not self._has_failed:
                self._has_failed = True
                why = f"{self._name} while it cannot be written ({error.strerror})."
                print(f"{self._command} continues without {why}", file=sys.stderr)

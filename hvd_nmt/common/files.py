"""A directory that is complete or not there, built by one process at a time."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hvd_nmt.common.errors import ConfigError, DataError


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Waits until no other process on this host holds `path`, and holds it.

    The lock is `flock` on `<path>.lock`: the kernel frees it when its owner dies, however it dies.
    The file is removed again, so that nothing is left behind.

    Raises:
        DataError: the parent directory cannot be made or written.
    """
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(lock_path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None
    try:
        _recover(path)
        yield
    finally:
        lock_path.unlink(missing_ok=True)
        os.close(lock)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Builds a directory under another name and puts it in place when it is complete.

    Use inside `exclusive(path)`. Whatever goes wrong, `path` stays as it was. After a crash between
    the two renames that replace an older directory, the next `exclusive(path)` puts it back.

    Args:
        path: the directory to make; replaced if it is there.

    Yields:
        An empty directory beside it. It is renamed to `path` at the end, or removed after an error.
    """
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        partial.mkdir()
        yield partial
        put_in_place(partial, path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        _recover(path)


def require_free(path: Path, option: str = "--out") -> None:
    """See that an output replaces nothing: its place is free, or an empty directory.

    Args:
        path: of the output.
        option: that names it on the command line.

    Raises:
        ConfigError: something is there.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} is there already: choose another {option}, or remove it first.")


def put_in_place(directory: Path, path: Path) -> None:
    """Renames a complete directory to `path`, replacing what is there.

    Use inside `exclusive(path)`. At a crash between the two renames of a replacement, the next
    `exclusive(path)` puts the old directory back.

    Args:
        directory: on the same file system.
        path: its new name.

    Raises:
        OSError: it cannot be written or renamed.
    """
    for file in (*directory.rglob("*"), directory):
        sync(file)
    if path.exists():
        path.rename(path.with_name(f"{path.name}.old-{os.getpid()}"))
    directory.rename(path)
    sync(path.parent)
    _recover(path)


def _locked(lock_path: Path) -> int:
    while True:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Its last owner may have removed the file while we waited: then another process can lock a
        # new file of that name, and ours means nothing.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(lock_path), os.fstat(lock)):
                return lock
        os.close(lock)


def _recover(path: Path) -> None:
    """Removes what this or a killed process left; the lock says that nobody works on it."""
    ours = re.compile(rf"{re.escape(path.name)}\.(old|partial)-\d+")  # a person's x.old-copy stays
    for other in list(path.parent.iterdir()):
        left = ours.fullmatch(other.name)
        if left and left[1] == "old" and not path.exists():
            other.rename(path)
        elif left:
            shutil.rmtree(other, ignore_errors=True)


def sync(path: Path) -> None:
    """Have the disk hold what was written to a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

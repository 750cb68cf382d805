"""Files and directories that are complete or not there, and locks that die with their process.

A file is written under another name, synced and renamed, and then its directory is synced. After a
crash, also of the machine, there is the old content or the new one.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hvd_nmt.common.errors import ConfigError, DataError, RunError, UserError, unwritten


@dataclass(frozen=True)
class FileFacts:
    """Size and SHA-256, in hexadecimal, of the content of a file."""

    n_bytes: int
    sha256: str


def fingerprint(path: Path) -> FileFacts:
    """The facts of a file."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
        return FileFacts(stream.tell(), digest.hexdigest())


def followed(path: Path) -> Path:
    """A path, or where it leads to if it is a link: a file next to that is on its disk."""
    return path.resolve() if path.is_symlink() else path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file (text as UTF-8) or replaces it: a reader sees the old content or the new."""
    with replacing_file(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Lets a file be written under a hidden name and puts it in place when the block ends.

    Yields that name, next to the file. After an error it is removed, and an old file stays.
    """
    draft = path.with_name(f".{path.name}.new")
    try:
        yield draft
        rename_durably(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def rename_durably(draft: Path, path: Path) -> None:
    """Renames a complete file so that no crash leaves a part of it under the new name."""
    sync(draft)
    rename_together([(draft, path)])


def rename_together(renames: Sequence[tuple[Path, Path]]) -> None:
    """Renames files or directories in their order and syncs their new directories.

    What must be on the disk before it has the new name is synced by the caller.
    """
    for old, new in renames:
        os.replace(old, new)
    for folder in {new.parent for _, new in renames}:
        sync(folder)


def sync(path: Path) -> None:
    """Have the disk hold what was written to a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(stream: IO[Any], wait: bool = False) -> bool:
    """Locks an open file until it is closed or its process ends.

    False if another process has it, or has removed or replaced it since it was opened.
    The kernel frees the lock with the process, however it ends, so that it cannot go stale. A file
    system without locks (Lustre without `-o flock`, NFS without lockd) is warned of on stderr.
    """
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.ESTALE:  # removed by another host
            return False
        print(
            f"warning: the file system of {stream.name} has no locks ({error.strerror}), so a "
            "second process would not be stopped: start only one.",
            file=sys.stderr,
        )
    with suppress(FileNotFoundError):
        opened = os.fstat(stream.fileno())
        return opened.st_nlink > 0 and os.path.samestat(os.stat(stream.name), opened)
    return False


def is_locked(stream: IO[Any]) -> bool:
    """Whether another process on this host holds the `try_lock` of an open file.

    OSError: its file system has no locks.
    """
    try:
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(stream, fcntl.LOCK_UN)
    return False


@contextmanager
def exclusive(path: Path, kind: type[UserError] = DataError, out: str = "--out") -> Iterator[None]:
    """Waits until no other process on this host holds `path`, and holds it.

    The lock is on a file `.<name>.lock` beside it, removed at the end. An error of this `kind`:
    that cannot be written; `out` is the option that decides where it is.
    """
    path = followed(path)
    name = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while not try_lock(lock := name.open("ab"), wait=True):
            lock.close()  # who held it has removed it
    except OSError as error:
        raise _unwritten(path, error, kind, out) from None
    with lock:
        try:
            _recover(path)
            yield
        finally:
            name.unlink(missing_ok=True)


def _unwritten(path: Path, error: OSError, kind: type[UserError], out: str = "--out") -> UserError:
    fault = f"Cannot write {path} ({error.strerror or error}): fix that, or"
    if kind is RunError:
        return unwritten(f"{fault} use a copy of the run.", error)
    return kind(f"{fault} choose another {out}.")


@contextmanager
def replacing(path: Path, kind: type[UserError] = DataError) -> Iterator[Path]:
    """Builds a directory under another name and puts it in place when it is complete.

    Use inside `exclusive(path)`. Yields an empty directory on the disk of `path`; at the end it
    replaces what is there, and after an error it is removed and `path` stays as it was. At a crash
    between the two renames of a replacement, the next `exclusive(path)` puts the old one back.
    """
    path = followed(path)
    new, old = _asides(path)
    try:
        new.mkdir()
        yield new
        for file in (*new.rglob("*"), new):
            sync(file)
        if path.exists():
            path.rename(old)
        rename_together([(new, path)])
    except OSError as error:
        raise _unwritten(path, error, kind) from error
    finally:
        _recover(path)


def require_free(path: Path) -> None:
    """See that an output can be made, and replaces an empty directory at most; else ConfigError."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} already exists: choose another --out, or remove it first.")
    folder = next(folder for folder in followed(path).absolute().parents if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"{folder} is no directory that can be written: choose another --out.")


def _asides(path: Path) -> tuple[Path, Path]:
    """The names of a directory that is not complete yet, and of the one that it replaces."""
    return path.with_name(f".{path.name}.hvd_nmt-new"), path.with_name(f".{path.name}.hvd_nmt-old")


def _recover(path: Path) -> None:
    """Removes what this or a killed process left; the lock keeps others from working on it."""
    new, old = _asides(path)
    if old.exists() and not path.exists():
        old.rename(path)
    for folder in (new, old):
        shutil.rmtree(folder, ignore_errors=True)

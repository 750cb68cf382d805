"""Files and directories that are complete or not there, and locks that die with their process.

A file is written under another name, synced, renamed, and then its directory is synced: after a
crash, also of the machine, there is the old content or the new one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hvd_nmt.common.errors import ConfigError, DataError

_OWN_LOCK = b"a lock of hvd_nmt\n"
_ASIDE_MARK = "made by hvd_nmt"
_NEW, _OLD = "new", "old"


@dataclass(frozen=True)
class FileFacts:
    """What a file is, whatever its name."""

    n_bytes: int
    """size of the file"""
    sha256: str
    """SHA-256 of the file's content, in hexadecimal"""


def fingerprint(path: Path) -> FileFacts:
    """Size and SHA-256 of a file. An OSError always has the file's name."""
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
            return FileFacts(stream.tell(), digest.hexdigest())
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def followed(path: Path) -> Path:
    """A path, or where it leads to if it is a link: what is made beside that is on its disk."""
    return path.resolve() if path.is_symlink() else path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file (text as UTF-8) or replaces it: a reader sees the old content or the new."""
    with replacing_file(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_file(path: Path, draft: Path | None = None) -> Iterator[Path]:
    """Lets a file be written under another name and puts it in place when the block ends.

    Yields that name: `draft`, on the same file system, or by default a hidden one next to the file.
    After an error it is removed, and an old file stays.
    """
    draft = draft or path.with_name(f".{path.name}.new")
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


def try_lock(stream: IO[Any]) -> bool:
    """Locks an open file until it is closed or its process ends; False if another process has it.

    The kernel frees the lock with the process, however it ends, so that it cannot go stale. A file
    system without locks (Lustre without `-o flock`, NFS without lockd) is warned of on stderr.
    """
    return _flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, stream.name)


def is_locked(stream: IO[Any]) -> bool:
    """Whether another process on this host holds the `try_lock` of an open file.

    Raises:
        OSError: its file system has no locks.
    """
    try:
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(stream, fcntl.LOCK_UN)
    return False


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Waits until no other process on this host holds `path`, and holds it.

    The lock is `flock` on `<path>.lock`, which is removed again; one that is somebody's stays.

    Raises:
        DataError: the parent directory cannot be made or written.
    """
    path = followed(path)
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(lock_path)
    except OSError as error:
        is_odd = lock_path.is_dir() or lock_path.is_symlink()
        place = f"{lock_path}, a lock for it," if is_odd else path
        raise DataError(f"{place} cannot be written: {error.strerror or error}.") from None
    try:
        _recover(path)
        yield
    finally:
        if os.pread(lock, 2 * len(_OWN_LOCK), 0) == _OWN_LOCK and not lock_path.is_symlink():
            lock_path.unlink(missing_ok=True)
        os.close(lock)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Builds a directory under another name and puts it in place when it is complete.

    Use inside `exclusive(path)`. Yields an empty directory on the disk of `path`; at the end it
    replaces what is there, and after an error it is removed and `path` stays as it was.
    """
    path = followed(path)
    try:
        new = _make_aside(path) / _NEW
        new.mkdir()
        yield new
        put_in_place(new, path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        _recover(path)


def require_free(path: Path, option: str = "--out") -> None:
    """See that an output replaces nothing: its place is free, or an empty directory.

    Raises:
        ConfigError: something is there; it names the option of the command line.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} is there already: choose another {option}, or remove it first.")


def is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which is made itself if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def put_in_place(directory: Path, path: Path) -> None:
    """Renames a complete directory to `path`, replacing what is there.

    Use inside `exclusive(path)`. At a crash between the two renames of a replacement, the next
    `exclusive(path)` puts the old directory back.
    """
    for file in (*directory.rglob("*"), directory):
        sync(file)
    if path.exists():
        path.rename(_make_aside(path) / _OLD)
    directory.rename(path)
    sync(path.parent)
    _recover(path)


def _locked(lock_path: Path) -> int:
    while True:
        lock = _opened(lock_path)
        _flock(lock, fcntl.LOCK_EX, lock_path)
        # Its last owner may have removed the file while we waited: then another process can lock a
        # new file of that name, and ours means nothing.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(lock_path), os.fstat(lock)):
                return lock
        os.close(lock)


def _flock(file: int, operation: int, name: object) -> bool:
    """Whether nobody else holds the lock, as far as the file system can tell."""
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        print(
            f"warning: the file system of {name} has no locks ({error.strerror}): nothing keeps a "
            "second process out, so start only one.",
            file=sys.stderr,
        )
    return True


def _opened(lock_path: Path) -> int:
    """Opens a lock's file, and marks it as ours if it is new."""
    while True:
        try:
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            os.write(lock, _OWN_LOCK)
            return lock
        except FileExistsError:
            try:
                return os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:  # its owner has removed it
                if lock_path.is_symlink():  # to nowhere
                    raise


def _aside(path: Path) -> Path:
    """The folder beside `path` that has the new and the old directory of a replacement."""
    return path.with_name(f".{path.name}.hvd_nmt")


def _make_aside(path: Path) -> Path:
    """Makes that folder, if it is not there, with the mark without which nothing in it is ours."""
    aside = _aside(path)
    aside.mkdir(exist_ok=True)
    if not (aside / _ASIDE_MARK).exists():
        if any(aside.iterdir()):
            raise OSError(errno.EEXIST, f"{aside} holds something else", str(path))
        (aside / _ASIDE_MARK).touch()
    for folder in (aside, aside.parent):  # no crash leaves an old directory without the mark
        sync(folder)
    return aside


def _recover(path: Path) -> None:
    """Removes what this or a killed process left; the lock says that nobody works on it."""
    aside = _aside(path)
    if (aside / _ASIDE_MARK).exists():
        if (aside / _OLD).exists() and not path.exists():
            (aside / _OLD).rename(path)
        for name in (_NEW, _OLD):
            shutil.rmtree(aside / name, ignore_errors=True)
        if os.listdir(aside) == [_ASIDE_MARK]:
            (aside / _ASIDE_MARK).unlink()
    with suppress(OSError):  # it is not there, or not empty
        aside.rmdir()


def sync(path: Path) -> None:
    """Have the disk hold what was written to a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Some files out of an archive that nobody has looked into: .tgz, .tar or .zip.

Only the members that were asked for are written, to paths that the caller names, so that nothing an
archive says decides where a byte goes. An archive that tries is refused as a whole: absolute paths,
"..", names with odd characters, devices and pipes, links that lead out of it, a wanted member that
is a link or there twice, and more bytes than the caller allows, counted as they are unpacked and
not as headers promise. The files are put into place together at the end, when all of the archive
has been read and its check sums were right.
"""

from __future__ import annotations

import gzip
import io
import os
import posixpath
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, final

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.progress import progress
from hvd_nmt.common.units import data_size

MOST_BYTES = 8_000_000_000
"""bytes that come out of an archive, of all its members together"""
MOST_RATIO = 100
"""times an archive's own bytes that may come out of it; text needs 3 to 5"""

_SMALL_BYTES = 10_000_000  # the ratio does not count below this
_MOST_MEMBERS = 10_000
_MOST_HEADER_BYTES = 1 << 24  # of all members; a tar header can hold a name of any length
_AT_ONCE_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_ZIP = b"PK"


class DamagedError(DataError):
    """The archive is not whole, or not the one that was meant: fetching it again may help."""


def extract(archive: Path, wanted: Mapping[str, Path], most_bytes: int = MOST_BYTES) -> None:
    """Takes some members out of an archive.

    Args:
        archive: a .tar, a gzip-compressed .tar, or a .zip, told by its content.
        wanted: where each member goes, by its name in the archive. Files there are replaced.
        most_bytes: most bytes to unpack.

    Raises:
        DamagedError: the archive is damaged, or a wanted member is missing.
        DataError: the archive is refused, or a file cannot be written.
    """
    partial = {name: path.with_name(f"{path.name}.unpacked") for name, path in wanted.items()}
    try:
        with _refusing(archive), open(archive, "rb") as stream:
            allowed = min(most_bytes, max(_SMALL_BYTES, MOST_RATIO * archive.stat().st_size))
            unpack = _unpack_zip if _starts_with(stream, _ZIP) else _unpack_tar
            missing = set(wanted) - unpack(stream, partial, allowed)
            if missing:
                names = ", ".join(sorted(missing))
                raise DamagedError(f"{archive} does not hold {names}: it is another archive.")
        for name, path in wanted.items():
            os.replace(partial[name], path)
    except OSError as error:
        place = error.filename or archive
        raise DataError(f"{place} cannot be used: {error.strerror or error}.") from None
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)


class _Refused(Exception):
    """Why an archive is not to be trusted."""


@contextmanager
def _refusing(archive: Path) -> Iterator[None]:
    """Makes one sentence of all that a bad archive can cause."""
    try:
        yield
    except _Refused as error:
        raise DataError(
            f"{archive} is refused: {error}. Nothing was unpacked: get the archive from a place "
            "that you trust."
        ) from None
    except (
        tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, struct.error,
        EOFError, RuntimeError, ValueError, LookupError, OverflowError,
    ) as error:  # fmt: skip
        raise DamagedError(
            f"{archive} is damaged ({error or type(error).__name__}): fetch it again."
        ) from None


def _unpack_tar(stream: IO[bytes], paths: Mapping[str, Path], allowed: int) -> set[str]:
    opened: IO[bytes] = stream
    if _starts_with(stream, _GZIP):
        opened = gzip.GzipFile(fileobj=stream)  # type: ignore[assignment]
    counted = _Counted(opened, allowed)
    found: set[str] = set()
    with counted, tarfile.open(fileobj=counted, mode="r:", encoding="utf-8") as tar:
        for number, member in enumerate(tar):
            name = _checked_tar(member, number)
            if name not in paths or member.isdir():
                continue
            if not member.isreg():
                raise _Refused(f"{name} is a link")
            if name in found:
                raise _Refused(f"{name} is there twice")
            found.add(name)
            source = tar.extractfile(member)
            assert source is not None  # it is a plain file
            counted.in_headers = False
            _copy(source, paths[name], allowed)
            counted.in_headers = True
        counted.seek_to_end()
    return found


def _checked_tar(member: tarfile.TarInfo, number: int) -> str:
    """The name of a member that is harmless."""
    _check_number(number)
    name = _checked_name(member.name)
    if member.issym() or member.islnk():
        folder = posixpath.dirname(name) if member.issym() else ""
        target = posixpath.normpath(posixpath.join(folder, member.linkname))
        if target.startswith("/") or target.split("/")[0] == "..":
            raise _Refused(f"{name} is a link out of it, to {target!r}")
    elif not (member.isreg() or member.isdir()) or member.issparse():
        raise _Refused(f"{name} is a device, a pipe or something else that is no plain file")
    return name


def _unpack_zip(stream: IO[bytes], paths: Mapping[str, Path], allowed: int) -> set[str]:
    found: set[str] = set()
    with zipfile.ZipFile(stream) as archive:
        for number, member in enumerate(archive.infolist()):
            _check_number(number)
            if member.orig_filename != member.filename:
                raise _Refused(f"{member.orig_filename!r} is an odd name")
            name = _checked_name(member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _Refused(f"{name} is a link, a device or something else that is no file")
            if name not in paths or member.is_dir():
                continue
            if name in found:
                raise _Refused(f"{name} is there twice")
            if member.flag_bits & 1:
                raise _Refused(f"{name} is encrypted")
            with archive.open(member) as source:
                allowed -= _copy(source, paths[name], allowed)
            found.add(name)
    return found


def _starts_with(stream: IO[bytes], magic: bytes) -> bool:
    start = stream.read(len(magic))
    stream.seek(0)
    return start == magic


def _check_number(number: int) -> None:
    if number >= _MOST_MEMBERS:
        raise _Refused(f"it has over {_MOST_MEMBERS:,} members")


def _checked_name(name: str) -> str:
    """A member's name without "./" and a final "/", if it stays below the folder it is in."""
    if not name.isprintable() or "\\" in name or "\ufffd" in name or name[1:2] == ":":
        raise _Refused(f"{name!r} is an odd name")
    if name.startswith("/"):
        raise _Refused(f"{name!r} is an absolute path")
    if ".." in name.split("/"):
        raise _Refused(f'{name!r} leads out of it by ".."')
    return posixpath.normpath(name)


def _copy(source: IO[bytes], path: Path, allowed: int) -> int:
    """Writes a new file and returns its bytes. Never through a link that somebody left there."""
    path.unlink(missing_ok=True)
    n_bytes = 0
    with open(path, "xb") as stream:
        while piece := source.read(_AT_ONCE_BYTES):
            n_bytes += len(piece)
            if n_bytes > allowed:
                raise _Refused(_too_much(allowed))
            stream.write(piece)
    return n_bytes


def _too_much(allowed: int) -> str:
    return f"over {data_size(allowed)} come out of it"


@final
class _Counted(io.RawIOBase):
    """What comes out of a compressed file, counted and shown, for `tarfile` to read forward."""

    def __init__(self, stream: IO[bytes], allowed: int) -> None:
        super().__init__()
        self.in_headers = True
        """whether a header is read next; members that are passed over are not read"""
        self._header_bytes = _MOST_HEADER_BYTES
        self._stream = stream
        self._allowed = allowed
        self._position = 0
        self._progress = progress(None, "B", "unpacking")

    def close(self) -> None:
        """Ends the progress bar."""
        self._progress.close()
        super().close()

    def read(self, size: int = -1) -> bytes:
        """Reads; refuses headers that are larger than any honest ones."""
        if self.in_headers:
            if not 0 <= size <= self._header_bytes:
                raise _Refused(f"its headers have over {_MOST_HEADER_BYTES:,} bytes")
            self._header_bytes -= size
        return self._read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes forward, by reading."""
        if whence != io.SEEK_SET or offset < self._position:
            raise _Refused("its parts are not one after the other")
        while self._position < offset and self._read(min(_AT_ONCE_BYTES, offset - self._position)):
            pass
        return self._position

    def seek_to_end(self) -> None:
        """Reads the rest, so that the check sum of the compressed file is compared."""
        while self._read(_AT_ONCE_BYTES):
            pass

    def tell(self) -> int:
        """Bytes read so far."""
        return self._position

    def _read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self._position += len(piece)
        self._progress.update(len(piece))
        if self._position > self._allowed:
            raise _Refused(_too_much(self._allowed))
        return piece

"""Some files out of a .tgz that nobody has looked into.

Only the members that were asked for are written, to paths that the caller names, so that nothing an
archive says decides where a byte goes. An archive that tries is refused as a whole: devices, pipes,
links that lead out of it, absolute paths, "..", names with odd characters, a wanted member that is
a link or there twice, too many members, too large headers, and more bytes than the caller allows,
counted as they are unpacked and not as headers promise. The files are put into place together at
the end, when all of the archive has been read and its check sums were right.

`tarfile.data_filter` refuses some of this, but Python 3.11.2, which Debian 12 has, lacks it.
"""

from __future__ import annotations

import gzip
import io
import posixpath
import shutil
import struct
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, final

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import rename_together
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
_DAMAGE = (
    tarfile.TarError, gzip.BadGzipFile, zlib.error, struct.error, EOFError, RuntimeError,
    ValueError, LookupError, OverflowError,
)  # fmt: skip
"""all that a damaged archive can cause"""


class UselessError(DataError):
    """What is in a file is of no use: only another file can help."""


class DamagedError(UselessError):
    """The archive is not whole, or not the one that was meant: fetching it again may help."""


def extract(archive: Path, wanted: Mapping[str, Path], most_bytes: int = MOST_BYTES) -> None:
    """Takes some members out of an archive.

    Args:
        archive: a gzip-compressed tar.
        wanted: where each member goes, by its name in the archive. Files there are replaced.
        most_bytes: most bytes to unpack.

    Raises:
        DamagedError: the archive is damaged, or a wanted member is missing.
        UselessError: the archive is refused.
        DataError: a file cannot be written.
    """
    partial = {name: path.with_name(f"{path.name}.unpacked") for name, path in wanted.items()}
    try:
        with open(archive, "rb") as stream:
            allowed = min(most_bytes, max(_SMALL_BYTES, MOST_RATIO * archive.stat().st_size))
            missing = set(wanted) - _unpack(stream, partial, allowed)
        if missing:
            names = ", ".join(sorted(missing))
            raise DamagedError(f"{archive} does not hold {names}: it is another archive.")
        rename_together([(partial[name], path) for name, path in wanted.items()])
    except _Refused as error:
        raise UselessError(
            f"{archive} is refused: {error}. Nothing was unpacked: get the archive from a place "
            "that you trust."
        ) from None
    except _DAMAGE as error:
        reason = error or type(error).__name__
        raise DamagedError(f"{archive} is damaged ({reason}): fetch it again.") from None
    except OSError as error:
        place = error.filename or archive
        raise DataError(f"{place} cannot be used: {error.strerror or error}.") from None
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)


class _Refused(Exception):
    """Why an archive is not to be trusted."""


def _unpack(stream: IO[bytes], paths: Mapping[str, Path], allowed: int) -> set[str]:
    """Writes the wanted members, and returns the names of those that were there."""
    counted = _Counted(gzip.GzipFile(fileobj=stream), allowed)
    found: set[str] = set()
    with counted, tarfile.open(fileobj=counted, mode="r:", encoding="utf-8") as tar:
        for number, member in enumerate(tar):
            if number >= _MOST_MEMBERS:
                raise _Refused(f"it has over {_MOST_MEMBERS:,} members")
            name = _checked_name(member)
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
            paths[name].unlink(missing_ok=True)  # never through a link that somebody left there
            with open(paths[name], "xb") as target:
                shutil.copyfileobj(source, target, _AT_ONCE_BYTES)
            counted.in_headers = True
        counted.seek_to_end()
    return found


def _checked_name(member: tarfile.TarInfo) -> str:
    """The name of a harmless member, without "./" and a final "/"."""
    name = member.name
    if not name.isprintable() or "\\" in name or "\ufffd" in name or name[1:2] == ":":
        raise _Refused(f"{name!r} is an odd name")
    if name.startswith("/"):
        raise _Refused(f"{name!r} is an absolute path")
    if ".." in name.split("/"):
        raise _Refused(f'{name!r} leads out of it by ".."')
    if member.issparse():  # its bytes would not be counted
        raise _Refused(f"{name} is a sparse file")
    if member.islnk() or member.issym():
        beside = posixpath.dirname(name) if member.issym() else ""
        target = posixpath.normpath(posixpath.join(beside, member.linkname))
        if target.startswith("/") or target.split("/")[0] == "..":
            raise _Refused(f"{name!r} would link to {member.linkname!r}, which is outside of it")
    elif not (member.isreg() or member.isdir()):
        raise _Refused(f"{name!r} is a special file")
    return posixpath.normpath(name)


@final
class _Counted(io.RawIOBase):
    """What comes out of a compressed file, counted and shown, for `tarfile` to read forward."""

    def __init__(self, stream: gzip.GzipFile, allowed: int) -> None:
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
            raise _Refused(f"over {data_size(self._allowed)} come out of it")
        return piece

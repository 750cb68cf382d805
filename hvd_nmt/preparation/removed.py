"""The file of removed pairs that `prepare --removed FILE` writes: where it may be, and its bytes.

The pairs are collected in the work directory and copied to FILE at the end, before the result is
put in place. A process that is killed in between leaves the beginning of FILE, and the same command
writes it again. So a file may be written over where its bytes are the beginning of what is to be
written, for then nothing is lost; any other file stays as it is.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.files import require_free

NAME = "removed.tsv"
"""of the pairs in the work directory"""
_OPTION = "--removed"
_PIECE_BYTES = 1 << 20


def require_place(path: Path, inputs: Iterable[Path], outputs: Iterable[tuple[str, Path]]) -> None:
    """See that the file is none of the inputs and not among what else is written.

    Args:
        path: of the file, plain or .gz.
        inputs: what the job reads; they need not be there.
        outputs: each option with a directory or file that the job makes or replaces for it.

    Raises:
        ConfigError: it is an input, perhaps by way of a link, or in the way of an output.
    """
    for given in inputs:
        if path.exists() and given.exists() and path.samefile(given):
            name = f"{path} is" if path == given else f"{path} and {given} are one file,"
            raise ConfigError(f"{name} an input: choose another {_OPTION}.")
    place = Path(os.path.realpath(path))
    for option, output in outputs:
        taken = Path(os.path.realpath(output))
        if place.is_relative_to(taken) or taken.is_relative_to(place):
            raise ConfigError(
                f"{_OPTION} {path} is in the way of {output}, which {option} needs: choose "
                f"another {_OPTION}."
            )


def require_new(path: Path, work: Path) -> None:
    """See that no other file would be lost.

    Args:
        path: of the file.
        work: directory of the job, with what is collected so far.

    Raises:
        ConfigError: something is there that this job has not written.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no file: give {_OPTION} the name of a new one.")
    if not _begins(work / _ready_name(path), path):
        require_free(path, _OPTION)


def write(work: Path, path: Path) -> None:
    """Writes the file from what is in the work directory; the same pairs give the same bytes.

    Args:
        work: directory of the job; the file of a .gz is made in it first.
        path: of the file; compressed if it ends in .gz, also when nothing was removed.

    Raises:
        ConfigError: as `require_new`.
        OSError: it cannot be written.
    """
    ready = work / _ready_name(path)
    if ready.name != NAME:
        with (
            open(work / NAME, "rb") as pairs,
            open(ready, "wb") as stream,
            # Without a name and a time, which gzip would put into the bytes.
            gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed,
        ):
            shutil.copyfileobj(pairs, packed, _PIECE_BYTES)
    require_new(path, work)
    shutil.copyfile(ready, path)


def _ready_name(path: Path) -> str:
    return f"{NAME}.gz" if path.suffix == ".gz" else NAME


def _begins(whole: Path, path: Path) -> bool:
    """Whether one file begins with all that is in the other."""
    if not whole.is_file() or not path.is_file():
        return False
    with open(whole, "rb") as expected, open(path, "rb") as found:
        while piece := found.read(_PIECE_BYTES):
            if expected.read(len(piece)) != piece:
                return False
    return True

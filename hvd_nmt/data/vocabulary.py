"""The vocabulary as text, one `piece<TAB>score` a line, id = line number from 0.

SentencePiece's trainer writes it beside its model, and the recipe reads its ids from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hvd_nmt.common.errors import DataError


def read(path: Path) -> list[tuple[str, float]]:
    """Pieces and their scores (0: none given), by id; DataError: not readable or no vocabulary."""
    try:
        lines = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        columns = [line.partition("\t") for line in lines]
        return [(piece, float(score or 0)) for piece, _, score in columns]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise DataError(
            f"{path} is no vocabulary of lines `piece<TAB>score` ({error}): fetch it again."
        ) from None


def write(path: Path, pieces: Iterable[tuple[str, float]]) -> None:
    """Writes such a file, as SentencePiece's trainer does."""
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        for piece, score in pieces:
            stream.write(f"{piece}\t{score:g}\n")

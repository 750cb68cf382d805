"""Translations that checkpoints of a run make of a text, each a system to be scored."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hvd_nmt.checkpoints.find import find
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.progress import progress
from hvd_nmt.translation import engine
from hvd_nmt.translation.scoring import Text
from hvd_nmt.translation.settings import Settings

_WARNINGS_SHOWN = 5
"""warnings about lines of the source that are printed for each system"""


def translate(
    run: Path,
    checkpoints: Sequence[str],
    source: Text,
    settings: Settings,
    keep: Path | None = None,
    inputs: Sequence[Text] = (),
) -> dict[Path, Text]:
    """Prefix of each checkpoint -> its translations of a text, under the checkpoint's name.

    They are kept in the folder `keep`, unless it is None, and never written over `inputs`.

    Raises:
        ConfigError: a checkpoint is named twice, or `keep` cannot be used.
        RunError: a checkpoint cannot be used.
    """
    names = _names([find(run, which) for which in checkpoints])
    kept = {prefix: keep and _file_for(name, keep, inputs) for prefix, name in names.items()}
    found = {}
    for prefix, name in names.items():
        found[prefix] = Text(name, _translated(run, prefix, name, source, settings))
        if (path := kept[prefix]) is not None:
            with _explain_failure(path):
                path.write_bytes("".join(line + "\n" for line in found[prefix].lines).encode())
    return found


def _translated(run: Path, prefix: Path, name: str, source: Text, settings: Settings) -> list[str]:
    loaded = engine.load(run, [str(prefix)], settings)
    warnings: list[str] = []
    with progress(len(source.lines), "lines", name) as bar:
        found = loaded.stream(
            source.lines, bar.update,
            lambda number, text: warnings.append(f"{name}: {source.name}, line {number}: {text}"),
        )  # fmt: skip
        lines = list(found)
    for warning in warnings[:_WARNINGS_SHOWN]:
        print(warning, file=sys.stderr)
    if len(warnings) > _WARNINGS_SHOWN:
        more = len(warnings) - _WARNINGS_SHOWN
        print(f"{name}: and {more:,} such lines more", file=sys.stderr)
    return lines


def _names(prefixes: Sequence[Path]) -> dict[Path, str]:
    """Each checkpoint with its name: the last part of its prefix, or all where two share it."""
    for prefix in prefixes:
        if prefixes.count(prefix) > 1:
            raise ConfigError(f"--checkpoint names {prefix} twice: give each checkpoint once.")
    short = [prefix.name for prefix in prefixes]
    return {p: p.name if short.count(p.name) == 1 else str(p) for p in prefixes}


def _file_for(name: str, keep: Path, inputs: Sequence[Text]) -> Path:
    """The file for the translations of a checkpoint, seen to be none of the inputs."""
    path = keep / f"{name.replace('/', '_')}.txt"
    for text in inputs:
        if path.exists() and Path(text.name).exists() and path.samefile(text.name):
            raise ConfigError(f"--keep would write over {text.name}: give another folder.")
    with _explain_failure(keep):
        keep.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def _explain_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from None

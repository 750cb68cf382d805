"""Texts that are scored: files, a run's prepared data, and what its checkpoints make of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hvd_nmt.checkpoints.run_files import data_of_run, load_config
from hvd_nmt.common.errors import DataError
from hvd_nmt.common.progress import print_line, progress
from hvd_nmt.data import corpus
from hvd_nmt.data.text import read_lines
from hvd_nmt.translation.settings import Settings


class Text(NamedTuple):
    """Lines of a source, of a reference or of a system's translations."""

    name: str
    """file, or name of the system"""
    lines: Sequence[str]


def read(path: Path) -> Text:
    """The lines of a text file, plain or .gz."""
    text = Text(str(path), list(read_lines(path)))
    if not text.lines:
        raise DataError(f"{path} is empty: it needs one sentence per line.")
    return text


def prepared(run: Path, part: str) -> tuple[Text, Text]:
    """Source and target text of a part, dev or test, of the data that a run was trained on.

    Raises DataError if the data are not on this machine, are damaged, or have no such part.
    """
    directory, manifest = data_of_run(run, load_config(run))
    data = corpus.load(directory)
    languages = (manifest.source_language, manifest.target_language)
    source, target = (
        Text(str(data.text_path(part, language)), lines)
        for language, lines in zip(languages, data.text(part), strict=True)
    )
    if not source.lines:
        raise DataError(f"{source.name} is empty: name the text yourself.")
    return source, target


def by_corpus(run: Path, part: str) -> dict[str, range]:
    """Which lines of `prepared` are of each of several corpora, as "fr (en-fr)"; {} with one."""
    manifest = data_of_run(run, load_config(run))[1]
    directions = {each.name: each.direction for each in manifest.corpora}
    ranges = {name: pairs for name, pairs in manifest.by_corpus(part).items() if pairs}
    named = {f"{name} ({directions[name]})": pairs for name, pairs in ranges.items()}
    return named if len(named) > 1 else {}


def translated(
    run: Path, checkpoints: Sequence[str], source: Text, settings: Settings, keep: Path | None
) -> dict[Path, Text]:
    """Prefix of each checkpoint -> its translations of a text, under the checkpoint's name.

    They are kept in the folder `keep`, unless it is None.

    RunError: a checkpoint cannot be used.
    """
    # TensorFlow takes seconds to import: not for texts that are scored as they are.
    from hvd_nmt.checkpoints.find import find
    from hvd_nmt.translation import engine

    found = {}
    for prefix, name in _names([find(run, which) for which in checkpoints]).items():

        def warn(number: int, text: str, name: str = name) -> None:
            print_line(f"{name}: {source.name}, line {number}: {text}")

        loaded = engine.load(run, [str(prefix)], settings)
        with progress(len(source.lines), "lines", name) as bar:
            found[prefix] = Text(name, list(loaded.stream(source.lines, bar.update, warn)))
        if keep is not None:
            text = "".join(line + "\n" for line in found[prefix].lines)
            (keep / f"{name.replace('/', '_')}.txt").write_bytes(text.encode())
    return found


def _names(prefixes: Sequence[Path]) -> dict[Path, str]:
    """Each checkpoint with its name: the last part of its prefix, or all where two share it."""
    short = [prefix.name for prefix in prefixes]
    return {p: p.name if short.count(p.name) == 1 else str(p) for p in prefixes}

"""The text of the data that a run was trained on, for commands that were given none."""

from pathlib import Path

from hvd_nmt.checkpoints.run_files import data_of_run, load_config
from hvd_nmt.common.errors import DataError, RunError
from hvd_nmt.data import corpus
from hvd_nmt.translation.scoring import Text


class MissingDataError(RunError):
    """The data that a run was trained on are not on this machine."""


def load(run: Path, part: str) -> tuple[Text, Text]:
    """Source and target text of a part, dev or test, of the data that a run was trained on.

    Raises:
        MissingDataError: its data are not on this machine.
        RunError: the run has no readable config.yaml.
        DataError: the data are damaged or have no such part.
    """
    directory, manifest = _data(run)
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
    """Which lines of `load` are of each of several corpora, such as "fr (en-fr)"; {} with one.

    Raises what `load` raises.
    """
    manifest = _data(run)[1]
    directions = {each.name: each.direction for each in manifest.corpora}
    ranges = {name: pairs for name, pairs in manifest.by_corpus(part).items() if pairs}
    named = {f"{name} ({directions[name]})": pairs for name, pairs in ranges.items()}
    return named if len(named) > 1 else {}


def _data(run: Path) -> tuple[Path, corpus.Manifest]:
    """The directory of the data that a run was trained on, and its manifest."""
    config = load_config(run)
    try:
        return data_of_run(run, config)
    except DataError:
        raise MissingDataError(
            f"The data that {run} was trained on are not on this machine: copy the directory named "
            "in its config.yaml here, start where the run was started, or name the text yourself."
        ) from None

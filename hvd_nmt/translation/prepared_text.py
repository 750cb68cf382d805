"""The text of the data that a run was trained on, for commands that were given none."""

from pathlib import Path

from hvd_nmt.checkpoints.run_files import data_of_run, load_config
from hvd_nmt.common.errors import DataError, RunError
from hvd_nmt.data import corpus
from hvd_nmt.translation.scoring import Text


class MissingDataError(RunError):
    """The data that a run was trained on are not on this machine."""


def load(run: Path, part: str, *, any_vocabulary: bool = False) -> tuple[Text, Text]:
    """Source and target text of a part of the data that a run was trained on.

    Args:
        run: run directory.
        part: dev or test.
        any_vocabulary: as of `data_of_run`.

    Raises:
        MissingDataError: its data are not on this machine.
        RunError: the run has no readable config.yaml.
        DataError: the data are damaged or have no such part.
    """
    config = load_config(run)
    try:
        directory, manifest = data_of_run(run, config, any_vocabulary=any_vocabulary)
    except DataError:
        raise MissingDataError(
            f"The data that {run} was trained on are not on this machine: copy the directory named "
            "in its config.yaml here, start where the run was started, or name the text yourself."
        ) from None
    data = corpus.load(directory)
    languages = (manifest.source_language, manifest.target_language)
    source, target = (
        Text(str(data.text_path(part, language)), lines)
        for language, lines in zip(languages, data.text(part), strict=True)
    )
    if not source.lines:
        raise DataError(f"{source.name} is empty: name the text yourself.")
    return source, target

"""Train a Keras Transformer for machine translation with Horovod, and explain the run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_nmt.common.version import __version__ as __version__

if TYPE_CHECKING:
    from hvd_nmt.reporting.questions import RunSummary
    from hvd_nmt.translation.engine import Engine
    from hvd_nmt.translation.settings import Settings

# Horovod's Keras support needs Keras 2, and TensorFlow decides between Keras 2 and 3 when it is
# first imported. Every rank imports this package before TensorFlow, so this is the one safe place.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def load(
    run: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = "best",
    settings: "Settings | None" = None,
) -> "Engine":
    """Loads a trained model, to translate and to score. Imports TensorFlow.

        model = hvd_nmt.load("runs/demo")
        print(model.translate(["A man sees a dog."])[0])
        print(model.score([("A man sees a dog.", "Ein Mann sieht einen Hund.")])[0])

    Args:
        run: a run directory.
        checkpoint: best (as the run's evaluation.best_by says), latest (newest), or the prefix of
            a checkpoint's files; of several the probabilities are averaged, as an ensemble.
        settings: how to translate; by default as `python -m hvd_nmt.translate` does.

    Raises UserError: run, checkpoint or vocabulary cannot be used, or the settings with them.
    """
    from hvd_nmt.common.tensorflow_import import import_tensorflow
    from hvd_nmt.translation.settings import Settings

    import_tensorflow()
    from hvd_nmt.translation import engine

    chosen = [checkpoint] if isinstance(checkpoint, str | os.PathLike) else checkpoint
    names = [os.fspath(name) for name in chosen]
    return engine.load(Path(run), names, (settings or Settings()).exact())


def open_run(path: str | os.PathLike[str]) -> "RunSummary":
    """Opens the record of a run, finished, going on or killed.

        run = hvd_nmt.open_run("runs/demo")
        print(run.sentence)
        print(max(run.evaluations, key=lambda scores: scores.bleu or 0).step)

    `path` is a run directory, or the log (nohup.out) of an OpenSeq2Seq run; RunError: it is
    neither. Of what is returned, `intervals` and `evaluations` are metrics, `checkpoints` prefixes,
    `verdict` says what bound the steps and `sentence` says it in words, `answers` are the eleven.
    """
    from hvd_nmt.records.read import read_any_run
    from hvd_nmt.reporting.questions import RunSummary

    return RunSummary(read_any_run(Path(path).absolute()))

"""Train a Keras Transformer for machine translation with Horovod, and explain the run."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_nmt.reporting.run_summary import RunSummary

__version__ = "0.2.0"

# Horovod's Keras support needs Keras 2, and TensorFlow decides between Keras 2 and 3 when it is
# first imported. Every rank imports this package before TensorFlow, so this is the one safe place.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def open_run(path: str | os.PathLike[str]) -> RunSummary:
    """Opens the record of a run, finished, going on or killed.

        run = hvd_nmt.open_run("runs/demo")
        print(run.verdict.sentence)
        print(max(run.evaluations, key=lambda scores: scores.bleu or 0).step)

    Args:
        path: a run directory of this package, or the log (nohup.out) of an OpenSeq2Seq run.

    Returns:
        The run: `intervals` and `evaluations` are its metrics, `checkpoints` the prefixes of its
        checkpoints, `verdict` says what bound its steps, `answers` are the eleven questions.

    Raises:
        RunError: there is nothing at the path, or it is neither of the two.
    """
    from hvd_nmt.records.read import read_any_run
    from hvd_nmt.reporting.run_summary import RunSummary

    return RunSummary(read_any_run(Path(path)))


def code_hash() -> str:
    """Give the sha256 over all modules of the package and their paths, equal where the code is."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()

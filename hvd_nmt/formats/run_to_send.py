"""A run's model to send: a run directory with weights, configuration and vocabulary alone.

The moments of the optimizer, two thirds of a checkpoint and of use for training only, stay behind.
"""

import os
import shlex
from pathlib import Path

from hvd_nmt.checkpoints.averaging import save_weights
from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.run_files import new_directory
from hvd_nmt.checkpoints.weights import load_model, manifest_of
from hvd_nmt.formats import card

_README = """\
A run directory of hvd_nmt with the weights of {checkpoint}, and what it takes to use them.

    python -m hvd_nmt.translate --run {out} < in.txt > out.txt

It translates, evaluates and exports as the run does. A new run can begin with its weights
(--init-from). The run itself resumes only where its own checkpoints are.
"""


def convert(run: Path, checkpoint: str, out: Path, licence: str = "") -> None:
    """Write a checkpoint as a run directory, complete or not at all; errors as `ctranslate2`'s."""
    prefix = find(run, checkpoint)
    model, _ = load_model(run, os.fspath(prefix))
    with new_directory(out) as draft:
        save_weights(draft, run, model, manifest_of(run, prefix))
        readme = _README.format(checkpoint=prefix.name, out=shlex.quote(out.name))
        card.write(draft, run, prefix, licence, readme)

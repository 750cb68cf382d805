"""Write a trained model for use without this package: a SavedModel, or for CTranslate2.

    python -m hvd_nmt.export --run runs/x --to saved-model --out x-saved-model
    python -m hvd_nmt.export --run runs/x --to ctranslate2 --out x-ct2
    python -m hvd_nmt.export --run runs/x --to ctranslate2 --quantization int8 --out x-int8
    python -m hvd_nmt.export --run runs/x --to saved-model --out x-greedy --beam-size 1

saved-model: one TensorFlow graph with everything inside, text in, text and scores out, for
TensorFlow Serving or any process with tensorflow and tensorflow_text. The search's options
(--beam-size and the like) are fixed now.

ctranslate2: for the engine CTranslate2 (pip install ctranslate2), several times as fast on CPUs and
free of TensorFlow; it takes and gives subword pieces, so spm.model lies beside the model. The
search's options are given when it is used. --quantization int8 makes the files a quarter of the
size and is fast, float16 and bfloat16 half; a few translations change.

The output is complete or not there, holds a README.txt that says how to use it, and is checked at
the end: lines of the run's dev set (or of --verify-on) are translated by both models and compared.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tyro.conf import OmitArgPrefixes

from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.files import require_free
from hvd_nmt.common.units import data_size
from hvd_nmt.config import command_line
from hvd_nmt.formats import Quantization
from hvd_nmt.translation import export_check
from hvd_nmt.translation.settings import Search

VERIFIED_LINES = 100


@dataclasses.dataclass(frozen=True)
class Options:
    """What to export, to which form, and where."""

    run: Path
    """run directory with checkpoints, config.yaml and spm.model"""
    to: Literal["saved-model", "ctranslate2"]
    """the form: TensorFlow with text in and out, or CTranslate2"""
    out: Path
    """directory to make; must not be there yet"""
    checkpoint: str = "best"
    """best: by the run's evaluation.best_by; latest: newest; or the prefix of a checkpoint's
    files"""
    quantization: Quantization = "float32"
    """how ctranslate2 stores the weights"""
    verify: bool = True
    """translate some lines with both models at the end and compare"""
    verify_on: Path | None = None
    """text whose first 100 lines are compared, plain or .gz; by default the run's dev set"""
    decoding: OmitArgPrefixes[Search] = dataclasses.field(default_factory=Search)

    def __post_init__(self) -> None:
        if self.to != "ctranslate2" and self.quantization != "float32":
            raise ConfigError(f"--quantization {self.quantization} needs --to ctranslate2.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return command_line.run("hvd_nmt.export", Options, export, str(__doc__), argv)


def export(options: Options) -> None:
    """Writes the model, says how to use it, and compares it with the run's own."""
    require_free(options.out)
    lines = []
    if options.verify:
        lines = export_check.lines_to_compare(options.run, options.verify_on, VERIFIED_LINES)
    # TensorFlow takes seconds to import: not for --help, nor for a mistyped option.
    tensorflow_import.import_tensorflow()
    from hvd_nmt.checkpoints.find import find
    from hvd_nmt.formats import ctranslate2, saved_model

    print(f"reading     {find(options.run, options.checkpoint)}")
    if options.to == "ctranslate2":
        ctranslate2.convert(options.run, options.checkpoint, options.out, options.quantization)
        usage = ctranslate2.usage(options.out)
    else:
        print("            (the graph of the search takes a while)")
        saved_model.convert(options.run, options.checkpoint, options.out, options.decoding)
        usage = saved_model.usage(options.out)
    n_bytes = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(f"written     {options.out}, {data_size(n_bytes)}\n\n{usage}")
    if lines:
        export_check.compare(
            lines, options.run, options.checkpoint, options.out, options.decoding,
            exact=options.quantization == "float32",
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

"""Write a trained model for use without this package: a SavedModel, or for CTranslate2.

    python -m hvd_nmt.export --run runs/x --to saved-model --out x-saved-model
    python -m hvd_nmt.export --run runs/x --to ctranslate2 --out x-ct2
    python -m hvd_nmt.export --run runs/x --to ctranslate2 --quantization int8 --out x-int8
    python -m hvd_nmt.export --run runs/x --to saved-model --out x-greedy --beam-size 1

Model: --run --checkpoint --to --out --quantization --verify-on
Search, for saved-model: --beam-size --length-penalty --normalization --max-length

saved-model: one TensorFlow graph, text in, text and scores out, for TensorFlow Serving or any
process with tensorflow and tensorflow_text. The search's options are fixed now.

ctranslate2: for the engine CTranslate2 (pip install ctranslate2), several times as fast on CPUs. It
takes and gives pieces of spm.model. The search's options are given when it is used. int8 makes a
quarter of the size, float16 and bfloat16 half; some translations change. --verify-on counts them.

The output is complete or not there; its README.txt shows how to use it.
"""

import dataclasses
import os
import shlex
import sys
from itertools import islice
from pathlib import Path
from typing import Literal

from tyro.conf import OmitArgPrefixes

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.files import require_free
from hvd_nmt.common.progress import announce
from hvd_nmt.common.units import data_size
from hvd_nmt.config import command_line
from hvd_nmt.data.text import read_lines
from hvd_nmt.formats import Quantization
from hvd_nmt.translation.settings import Search, Settings


@dataclasses.dataclass(frozen=True)
class Options:
    """What to export, to which form, and where."""

    run: Path
    """run directory; it has checkpoints, config.yaml and spm.model"""
    to: Literal["saved-model", "ctranslate2"]
    """TensorFlow with text in and out, or CTranslate2"""
    out: Path
    """directory to make, which must not be there yet"""
    checkpoint: str = "best"
    """best (by evaluation.best_by), latest, or a prefix"""
    quantization: Quantization = "float32"
    """for ctranslate2: int8, float16 or bfloat16; how it stores the weights"""
    verify_on: Path | None = None
    """text whose first 100 lines both models translate, to compare; plain or .gz"""
    decoding: OmitArgPrefixes[Search] = dataclasses.field(default_factory=Search)

    def __post_init__(self) -> None:
        if self.to != "ctranslate2" and self.quantization != "float32":
            raise ConfigError(f"--quantization {self.quantization} needs --to ctranslate2.")


@command_line.command("hvd_nmt.export", Options, __doc__)
def main(options: Options) -> None:
    """Writes the model, says how to use it, and compares it with the run's own."""
    require_free(options.out)
    lines: list[str] = []
    if options.verify_on is not None:
        text = (line for line in read_lines(options.verify_on, lenient=True) if line.strip())
        if not (lines := list(islice(text, 100))):
            raise DataError(f"{options.verify_on} has no text: give a file with some lines.")
    from hvd_nmt.checkpoints import run_files

    run_files.import_tensorflow_for(options.run)
    from hvd_nmt.checkpoints.find import find
    from hvd_nmt.formats import ctranslate2, saved_model

    print(f"reading     {find(options.run, options.checkpoint)}")
    if options.to == "ctranslate2":
        ctranslate2.convert(options.run, options.checkpoint, options.out, options.quantization)
    else:
        announce("building the graph of the search")
        saved_model.convert(options.run, options.checkpoint, options.out, options.decoding)
    n_bytes = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    readme = (options.out / "README.txt").read_text(encoding="utf-8")
    print(f"written     {options.out}, {data_size(n_bytes)}\n\n{readme}")
    if lines:
        _compare(lines, options)


def _compare(lines: list[str], options: Options) -> None:
    """Translate with the run's model and with the export, and print how many lines are equal."""
    from hvd_nmt.formats import ctranslate2, saved_model
    from hvd_nmt.translation import engine

    settings = Settings(precision="float32", decoding=options.decoding)
    loaded = engine.load(options.run, [options.checkpoint], settings)
    # The run splits a line that is too long, a SavedModel cuts it.
    limit, encode = loaded.backend.max_length, loaded.tokenizers.source.encode
    lines = [line for line in lines if len(encode([line])[0]) <= limit]
    by_run = list(loaded.stream(lines))
    if options.to == "saved-model":
        by_export = saved_model.translated(lines, options.out)
    else:
        backend = ctranslate2.CTranslate2Translator(options.out, loaded.settings.decoding)
        by_export = list(dataclasses.replace(loaded, backend=backend, models=[]).stream(lines))
    triples = list(zip(lines, by_run, by_export, strict=True))
    different = [triple for triple in triples if triple[1] != triple[2]]
    equal = len(lines) - len(different)
    print(f"verified    {equal} of {len(lines)} lines are translated as {options.run} does")
    for line, wanted, found in different[:3]:
        print(f"  {line}\n    run     {wanted}\n    export  {found}")
    if different and options.to == "ctranslate2":
        print(
            "Other rounding chooses other lines of nearly equal score. Compare BLEU with and "
            "without the last two options:\n"
            f"  python -m hvd_nmt.evaluate --run {shlex.quote(os.fspath(options.run))} "
            f"--checkpoint {shlex.quote(options.checkpoint)} --backend ctranslate2 "
            f"--precision {options.quantization.removesuffix('_float32')}"
        )


if __name__ == "__main__":
    sys.exit(main())

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

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import OmitArgPrefixes

from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.files import require_free
from hvd_nmt.common.progress import progress
from hvd_nmt.common.units import data_size
from hvd_nmt.config import command_line
from hvd_nmt.data.text import is_blank, read_lines
from hvd_nmt.formats import Quantization
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.translation import texts
from hvd_nmt.translation.settings import Settings

if TYPE_CHECKING:
    from hvd_nmt.translation.engine import Engine

# Below this share of equal lines a model with all its digits is called suspect.
_EXPECTED = 0.97
# Lines that the check translates at once, of similar length.
_BATCH_LINES = 32
_SHOWN = 3


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
    """best: lowest validation loss; latest: newest; or the prefix of a checkpoint's files"""
    quantization: Quantization = "float32"
    """how ctranslate2 stores the weights"""
    verify: bool = True
    """translate some lines with both models at the end and compare"""
    verify_on: Path | None = None
    """text to compare on, one sentence per line, plain or .gz; by default the run's dev set"""
    verify_lines: int = 100
    """how many lines of it"""
    decoding: OmitArgPrefixes[Decoding] = dataclasses.field(default_factory=Decoding)

    def __post_init__(self) -> None:
        if self.to != "ctranslate2" and self.quantization != "float32":
            raise ConfigError(f"--quantization {self.quantization} needs --to ctranslate2.")
        if self.verify_lines < 1:
            raise ConfigError("--verify-lines must be at least 1; --no-verify compares nothing.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return command_line.run("hvd_nmt.export", Options, export, str(__doc__), argv)


def export(options: Options) -> None:
    """Writes the model, says how to use it, and compares it with the run's own.

    Raises:
        UserError: the run, a file or the output cannot be used.
    """
    require_free(options.out)
    lines = _lines_to_compare(options) if options.verify else []
    # TensorFlow takes seconds to import: not for --help, nor for a mistyped option.
    tensorflow_import.import_tensorflow()
    from hvd_nmt.checkpoints.find import find
    from hvd_nmt.formats import ctranslate2, saved_model

    if options.to == "ctranslate2":
        ctranslate2.require_possible(options.decoding)  # else the comparison would fail at the end
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
        _compare(lines, options)


def _lines_to_compare(options: Options) -> list[str]:
    """The first lines with text of --verify-on or of the run's dev set, if that is here."""
    lines: Iterable[str]
    if options.verify_on:
        lines = read_lines(options.verify_on, lenient=True)
    else:
        try:
            lines = texts.prepared(options.run, "dev")[0].lines
        except texts.NotHereError:
            print(
                "hvd_nmt.export: the run's data are not on this machine, so the export will not be "
                "compared with the run: give --verify-on FILE to do so.",
                file=sys.stderr,
            )
            return []
    with_text = (line for line in lines if not is_blank(line))
    some = list(itertools.islice(with_text, options.verify_lines))
    if not some:
        raise DataError(
            f"{options.verify_on or 'The dev set of the run'} holds no text to compare on: give "
            "--verify-on FILE with some, or --no-verify."
        )
    return some


def _compare(lines: list[str], options: Options) -> None:
    """Translate with the run's model and with the export, and say how many lines are equal."""
    from hvd_nmt.translation import engine

    settings = Settings(long_lines="cut", decoding=options.decoding)
    ours = engine.load(options.run, [options.checkpoint], settings)
    wanted = _translated_by_engine(lines, ours, "the run")
    if options.to == "ctranslate2":
        from hvd_nmt.formats.ctranslate2 import CTranslate2Translator

        backend = CTranslate2Translator(options.out, options.decoding)
        theirs = dataclasses.replace(ours, backend=backend, models=[])
        found = _translated_by_engine(lines, theirs, "the export")
    else:
        found = _translated_by_saved_model(lines, options.out)
    triples = list(zip(lines, wanted, found, strict=True))
    different = [three for three in triples if three[1] != three[2]]
    equal = len(lines) - len(different)
    print(f"verified    {equal} of {len(lines)} lines are translated as {options.run} does")
    for line, by_run, by_export in different[:_SHOWN]:
        print(f"  {line}\n    run     {by_run}\n    export  {by_export}")
    if equal < _EXPECTED * len(lines) and options.quantization == "float32":
        print(
            f"hvd_nmt.export: {len(different)} of {len(lines)} lines differ, more than rounding "
            "explains in a trained model: compare the BLEU of both before you use it.",
            file=sys.stderr,
        )


def _translated_by_engine(lines: list[str], translator: Engine, name: str) -> list[str]:
    with progress(len(lines), "lines", name) as bar:
        results = translator.translate(lines, advance=bar.update)
    return [found[0].text for found in results.lines]


def _translated_by_saved_model(lines: list[str], path: Path) -> list[str]:
    import tensorflow as tf

    model = tf.saved_model.load(os.fspath(path))
    translate = model.signatures["serving_default"]
    order = sorted(range(len(lines)), key=lambda index: len(lines[index]))
    best: dict[int, str] = {}
    with progress(len(lines), "lines", "the export") as bar:
        for some in (order[i : i + _BATCH_LINES] for i in range(0, len(order), _BATCH_LINES)):
            found = translate(text=tf.constant([lines[index] for index in some]))
            texts = [text.decode("utf-8") for text in found["translations"].numpy()]
            best.update(zip(some, texts, strict=True))
            bar.update(len(some))
    return [best[index] for index in range(len(lines))]


if __name__ == "__main__":
    sys.exit(main())

"""Write a trained model for others: in TensorFlow, CTranslate2, LibreTranslate or this package.

    python -m hvd_nmt.export --run runs/x --to saved-model --out x-saved-model
    python -m hvd_nmt.export --run runs/x --to ctranslate2 --out x-ct2
    python -m hvd_nmt.export --run runs/x --to ctranslate2 --quantization int8 --out x-int8
    python -m hvd_nmt.export --run runs/x --to ctranslate2 --shortlist --out x-fast
    python -m hvd_nmt.export --run runs/x --to saved-model --out x-greedy --beam-size 1
    python -m hvd_nmt.export --run runs/x --to argos --out x-argos --verify-on dev.en
    python -m hvd_nmt.export --run runs/x --to run --out x-small

Model: --run --checkpoint --to --out --quantization --shortlist --languages --verify-on --license
Search: --beam-size --length-penalty --normalization --max-length

saved-model: one TensorFlow graph, text in, text and scores out, for TensorFlow Serving or any
process with tensorflow and tensorflow_text. The search's options are fixed now.

ctranslate2: for the engine CTranslate2 (pip install ctranslate2), several times as fast on CPUs. It
takes and gives pieces of spm.model. int8 makes a quarter of the size, float16 and bfloat16 half;
some translations change. --verify-on counts them. --shortlist learns from the run's training pairs
which target pieces go with which source pieces. Only those of a batch are searched, so that a
translation depends a little on its batch. It is for large vocabularies and one direction.

argos: packages that Argos Translate and LibreTranslate install, one for each direction of a model
with tags. They hold a CTranslate2 model, and are searched as Argos Translate does.

run: weights, configuration and vocabulary for this package, a third of the size of the checkpoint.

README.txt shows how to use it, README.md is its model card. translate.py, in the first two, needs
nothing of this package, and searches with the options given here.
The output is complete or not there.
"""

import dataclasses
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from tyro.conf import OmitArgPrefixes

from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.files import require_free
from hvd_nmt.common.progress import announce
from hvd_nmt.common.units import data_size
from hvd_nmt.config import command_line
from hvd_nmt.data.text import read_lines
from hvd_nmt.formats import Quantization, shortlist
from hvd_nmt.translation.settings import Search, Settings

if TYPE_CHECKING:
    from hvd_nmt.formats.argos import Direction


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """What to export, to which form, and where."""

    run: Path
    """run directory; it has checkpoints, config.yaml and spm.model"""
    to: Literal["saved-model", "ctranslate2", "argos", "run"]
    """saved-model, ctranslate2, argos or run; argos is for LibreTranslate, run for this package"""
    out: Path
    """directory to make, which must not be there yet"""
    checkpoint: str = "best"
    """best (by evaluation.best_by), latest, or a prefix"""
    quantization: Quantization = "float32"
    """of ctranslate2, argos: form of the weights"""
    shortlist: bool = False
    """of ctranslate2: search only pieces that go with the source"""
    languages: str = ""
    """for argos: a direction as en-de (default: all of the run)"""
    verify_on: Path | None = None
    """text whose first 100 lines both models translate, to compare; plain or .gz"""
    license: str = ""
    """of the model, for its card, such as cc-by-4.0"""
    decoding: OmitArgPrefixes[Search] = dataclasses.field(default_factory=Search)

    def __post_init__(self) -> None:
        if self.to in ("saved-model", "run") and self.quantization != "float32":
            raise ConfigError(f"--quantization {self.quantization} is not for --to {self.to}.")
        if self.to == "saved-model" and set(self.out.name) & set("[]*?"):
            raise ConfigError(
                f"TensorFlow takes {self.out.name} for a pattern: give an --out without [, ], *, ?."
            )
        if self.to != "argos" and self.languages:
            raise ConfigError(f"--languages {self.languages} needs --to argos.")
        if self.to != "ctranslate2" and self.shortlist:
            raise ConfigError(f"--shortlist needs --to ctranslate2, not {self.to}.")


@command_line.command("hvd_nmt.export", ExportOptions, __doc__)
def main(options: ExportOptions) -> None:
    """Writes the model, says how to use it, and compares it with the run's own."""
    require_free(options.out)
    lines: list[str] = []
    if options.verify_on is not None:
        text = (line for line in read_lines(options.verify_on, lenient=True) if line.strip())
        if not (lines := list(islice(text, 100))):
            raise DataError(f"{options.verify_on} has no text: give a file with some lines.")
    pairs = shortlist.training_pairs(options.run) if options.shortlist else None
    RunDirectory(options.run).import_tensorflow()
    from hvd_nmt.formats import argos, card, ctranslate2, run_to_send, saved_model

    print(f"reading     {find(options.run, options.checkpoint)}")
    what, directions = (options.run, options.checkpoint, options.out), []
    if options.to == "ctranslate2":
        ctranslate2.convert(*what, options.quantization, options.decoding, options.license, pairs)
    elif options.to == "argos":
        directions = argos.convert(*what, options.quantization, options.languages, options.license)
    elif options.to == "run":
        run_to_send.convert(*what, options.license)
    else:
        announce("building the graph of the search")
        saved_model.convert(*what, options.decoding, options.license)
    n_bytes = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    readme = (options.out / card.README).read_text(encoding="utf-8")
    print(f"written     {options.out}, {data_size(n_bytes)}\n\n{readme}")
    if lines:
        _compare(lines, options, directions)


def _compare(lines: list[str], options: ExportOptions, directions: "list[Direction]") -> None:
    """Translate with the run's model and with the export, and print how many lines are equal."""
    from hvd_nmt.formats import argos
    from hvd_nmt.formats.ctranslate2 import CTranslate2Translator
    from hvd_nmt.translation import engine

    settings = Settings(precision="float32", decoding=options.decoding)
    loaded = engine.load(options.run, [options.checkpoint], settings)
    # The run splits a line that is too long, an export does not. A tag needs room, too.
    limit, encode = loaded.backend.max_length - bool(directions), loaded.tokenizers.source.encode
    lines = [line for line in lines if len(encode([line])[0]) <= limit]
    if not directions:
        _report(options, lines, loaded.stream(lines), translated(lines, options.out))
    exported = dataclasses.replace(loaded, models=[], tags={}, tag="")  # packages add it
    for direction in directions:
        by_run = list(dataclasses.replace(loaded, tag=direction.tag).stream(lines))
        with TemporaryDirectory() as folder:
            path = direction.unpacked(options.out, Path(folder))
            for search, given in (("our search", None), ("Argos Translate's", argos.SEARCH)):
                backend = CTranslate2Translator(path, loaded.settings.decoding, given)
                by_export = dataclasses.replace(exported, backend=backend).stream(lines)
                _report(options, lines, by_run, by_export, f"{direction.name}, {search}: ")


def _report(
    options: ExportOptions, lines: list[str], by_run: Iterable[str], by_export: Iterable[str],
    how: str = "",
) -> None:  # fmt: skip
    triples = list(zip(lines, by_run, by_export, strict=True))
    different = [triple for triple in triples if triple[1] != triple[2]]
    equal = len(lines) - len(different)
    print(f"verified    {how}{equal} of {len(lines)} lines are translated as {options.run} does")
    for triple in different[:3]:
        print("  {}\n    run     {}\n    export  {}".format(*triple))
    if different and options.to == "ctranslate2":
        print(
            "The export may choose another line of nearly equal score. Compare BLEU with and "
            "without the options from --backend on:\n"
            f"  python -m hvd_nmt.evaluate --run {shlex.quote(os.fspath(options.run))} "
            f"--checkpoint {shlex.quote(options.checkpoint)} --backend ctranslate2 "
            f"--precision {options.quantization.removesuffix('_float32')}"
            f"{' --shortlist' if options.shortlist else ''}"
        )


def translated(lines: list[str], out: Path) -> list[str]:
    """The translations of some lines by an export alone, as somebody else would use it."""
    alone = out / "translate.py"
    package = ["-m", "hvd_nmt.translate", "--run", os.fspath(out)]
    program = [os.fspath(alone)] if alone.exists() else package
    text = "".join(f"{line}\n" for line in lines).encode()
    done = subprocess.run([sys.executable, *program], input=text, capture_output=True)
    if done.returncode:
        errors = done.stderr.decode(errors="replace").splitlines() or [f"code {done.returncode}"]
        raise DataError(f"{out} cannot translate: {errors[-1]}")
    return done.stdout.decode().split("\n")[:-1]


if __name__ == "__main__":
    sys.exit(main())

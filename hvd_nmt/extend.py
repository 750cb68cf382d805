"""Extend the vocabulary of a trained run: new pieces, new rows, and the old translations unchanged.

    python -m hvd_nmt.extend --run runs/x --pieces words.txt --out runs/x-words
    python -m hvd_nmt.extend --run runs/x --text new.en --size 500 --out runs/x-new
    python -m hvd_nmt.train --init-from runs/x-new --config runs/x-new/config.yaml \\
        --run-dir runs/y --data.directory data/new

Where source and target have vocabularies of their own, --side says which of them grows.

With --pieces each word of the file becomes a piece. With --text new pieces are learned: unknown
characters first, then the pairs of pieces that are most frequent. Old pieces keep their ids, and
new ones are merged after all old ones, so text that holds no new piece keeps its ids. The row of a
new piece begins as the mean of the rows of the pieces that it replaces.

The command tries this on sentences of the dev set (or of --check) before the output is put in
place: without a new piece in it, a sentence must have the same ids, logits and greedy translation
as before. The output is a run directory that translates; training goes on in a new run with
--init-from, on data that `prepare --vocabulary` made with the new spm.model.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hvd_nmt.checkpoints.run_files import CONFIG, prepare_options, vocabularies
from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError, DataError, RunError
from hvd_nmt.common.files import exclusive, replacing, require_free
from hvd_nmt.config import command_line
from hvd_nmt.data.text import is_blank, read_lines

if TYPE_CHECKING:
    from hvd_nmt.preparation.vocabulary_extension import Extension

CHECK_SENTENCES = 200
"""sentences that are tried before and after, at most"""


@dataclass(frozen=True)
class Options:
    """Which run, which pieces, and where the extended one goes."""

    run: Path
    """run directory with checkpoints, config.yaml and spm.model"""
    out: Path
    """run directory to make"""
    pieces: Path | None = None
    """text whose words become pieces, each as a whole, with the shorter pieces this needs"""
    text: Path | None = None
    """text to learn pieces from, one sentence per line, plain or .gz; needs --size"""
    size: int = 0
    """pieces to add, with --text"""
    side: Literal["source", "target"] | None = None
    """which vocabulary grows, in a run whose source and target have their own"""
    checkpoint: str = "best"
    """best: by the run's evaluation.best_by; latest: newest; or the prefix of a checkpoint's
    files"""
    check: Path | None = None
    """source sentences for the check; by default those of the run's dev set, else of --text,
    unless that is of the target"""

    def __post_init__(self) -> None:
        if not self.out.name:
            raise ConfigError("--out is the working directory: give a directory of its own.")
        if (self.pieces is None) == (self.text is None):
            raise ConfigError("Give either --pieces with words or --text with --size.")
        if (self.text is not None) != (self.size > 0):
            raise ConfigError("--size is the number of pieces to learn from --text: give both.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return command_line.run("hvd_nmt.extend", Options, extend, str(__doc__), argv)


def extend(options: Options) -> None:
    """Makes the extended run directory, unless the check fails."""
    vocabulary = _growing(options)
    context = multiprocessing.get_context("spawn")
    with exclusive(options.out):
        require_free(options.out)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            grown = pool.submit(_grow, vocabulary.read_bytes(), options).result()
        print(
            f"vocabulary  {grown.old_pieces:,} pieces and {len(grown.pieces):,} new ones, "
            f"{grown.rows:,} rows"
        )
        with replacing(options.out) as draft:
            _fill(draft, grown, options)
    print(
        f"written     {options.out}\n"
        f"translate   python -m hvd_nmt.translate --run {options.out} < in.txt > out.txt\n"
        f"train on    python -m hvd_nmt.train --init-from {options.out} --run-dir NEW "
        f"--config {options.out / CONFIG} --data.directory DATA\n"
        "            with DATA made by python -m hvd_nmt.prepare "
        f"{prepare_options(options.out)} ..."
    )


def _growing(options: Options) -> Path:
    """The vocabulary that is to grow."""
    source, target = vocabularies(options.run)
    if not target.exists():
        raise RunError(f"{options.run} is no run directory: it has no {target.name}.")
    if source == target and options.side:
        raise ConfigError(f"{options.run} has one vocabulary for both sides: leave --side out.")
    if source != target and not options.side:
        raise ConfigError(
            f"Source and target of {options.run} have vocabularies of their own: say which one "
            "grows with --side source or --side target."
        )
    return source if options.side == "source" else target


def _grow(vocabulary: bytes, options: Options) -> Extension:
    """The new vocabulary."""
    from hvd_nmt.preparation import vocabulary_extension

    if options.pieces:
        return vocabulary_extension.with_words(vocabulary, options.pieces)
    assert options.text is not None
    return vocabulary_extension.with_text(vocabulary, options.text, options.size)


def _fill(draft: Path, grown: Extension, options: Options) -> None:
    """Write the run directory and check it."""
    tensorflow_import.import_tensorflow()
    from hvd_nmt.checkpoints import extension
    from hvd_nmt.model.tokenizer import Tokenizers

    old, new = extension.write(
        options.run, options.checkpoint, grown, draft, options.out, options.side or ""
    )
    lines = _sentences(options)
    before, after = (Tokenizers.of(*vocabularies(run)) for run in (options.run, draft))
    tokenizers = before, after
    parity = extension.compare(old, new, tokenizers, grown.pieces, lines)
    print(parity.line())
    if not parity.holds:
        raise RunError(
            f"The extended model does not translate as before, so {options.out} was not made: "
            "take other pieces, or report this with the line above."
        )


def _sentences(options: Options) -> list[str]:
    """What the check is made on."""
    from hvd_nmt.translation import prepared_text

    path = options.check
    if path is None:
        try:
            # A run that was extended before has another vocabulary than its data.
            path = Path(prepared_text.load(options.run, "dev", any_vocabulary=True)[0].name)
        except (prepared_text.MissingDataError, DataError):
            path = options.text if options.side != "target" else None
    if path is None:
        raise DataError(
            "The dev set of the run is not here, so nothing can be checked: give source sentences "
            "with --check."
        )
    lines = islice(read_lines(path), CHECK_SENTENCES)
    if found := [line for line in lines if not is_blank(line)]:
        return found
    raise DataError(f"{path} holds no sentence to check with: give source sentences with --check.")


if __name__ == "__main__":
    sys.exit(main())

"""Translate raw text with a trained run: N lines in, N lines out, in the same order.

    python -m hvd_nmt.translate --run runs/demo < text.en > text.de
    python -m hvd_nmt.translate --run runs/demo --input text.en.gz --output text.de
    python -m hvd_nmt.translate --run runs/demo --checkpoint best latest < text.en
    python -m hvd_nmt.translate --run runs/demo --json --n-best 4 < text.en > text.jsonl
    python -m hvd_nmt.translate --run runs/demo --input text.en --target text.de > scores

A line ends at byte 0x0A only, and an output line holds no other line separator either. Wrong UTF-8
is read as U+FFFD; a blank line stays an empty line. UTF-16 and, on stdin, compressed input are
refused. A line with more tokens than the model reads is split, at the end of a sentence or word if
there is one, and stderr says so. What is typed, or comes slowly through a pipe, is answered line by
line.

--output FILE is complete or not there: until the end the lines are in FILE.part. After kill -9, or
whatever else, the same command counts the lines there and goes on behind them. A pipe cannot be
read again, so such a job starts afresh.

With --json each line of output is an object: line, its number from 1; text; score, the
log-probability divided by the length penalty; tokens, the pieces of the run's spm.model; their
token_scores, log-probabilities; alignment, pairs [i, j]: token i of the source made token j of the
text, both from 0; n_best, with --n-best above 1, a list of such translations, best first. Scores
are float32 sums whose order depends on what is translated at once: their fourth decimal may differ.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from tyro.conf import OmitArgPrefixes

from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import command_line
from hvd_nmt.translation import file_job
from hvd_nmt.translation.file_job import FileJob
from hvd_nmt.translation.settings import Settings


@dataclasses.dataclass(frozen=True)
class Options:
    """What to translate, and with which model."""

    run: Path
    """run directory with checkpoints, config.yaml and spm.model"""
    checkpoint: tuple[str, ...] = ("best",)
    """best: by the run's evaluation.best_by; latest: newest; or the prefix of a checkpoint's files;
    several translate together, as an ensemble"""
    input: Path | None = None
    """text, one sentence per line, plain or .gz; by default stdin"""
    output: Path | None = None
    """translations, plain or .gz; by default stdout"""
    json: bool = False
    """print JSON with scores, tokens and alignments instead of the text alone"""
    target: Path | None = None
    """translations, plain or .gz, to score instead of translating: prints the log-probability of
    each as the translation of its line of input, natural logarithm, summed over tokens"""
    settings: OmitArgPrefixes[Settings] = dataclasses.field(default_factory=Settings)

    def __post_init__(self) -> None:
        decoding = self.settings.decoding
        if not self.checkpoint:
            raise ConfigError("--checkpoint names none: give best, latest or a prefix.")
        if decoding.n_best > 1 and not self.json:
            raise ConfigError("--n-best gives several translations of a line: add --json.")
        if self.target is None:
            return
        for name, given in {
            "--n-best": decoding.n_best > 1,
            "--sample": decoding.sample,
            "--backend ctranslate2": self.settings.backend == "ctranslate2",
        }.items():
            if given:
                raise ConfigError(f"--target does not go with {name}: leave one of them out.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return command_line.run("hvd_nmt.translate", Options, translate, str(__doc__), argv)


def translate(options: Options) -> None:
    """Translates, or scores, the input to the output."""
    if command_line.started_by_horovod():
        raise ConfigError(
            "Translating is one process: split the input, and start one for each GPU."
        )
    job = FileJob(
        options.run, options.checkpoint, options.input, options.output, options.target,
        options.json, options.settings,
    )  # fmt: skip
    file_job.check_files(job)
    # TensorFlow takes seconds to import: not for --help, nor for a mistyped option.
    tensorflow_import.import_tensorflow()
    file_job.run(job)


if __name__ == "__main__":
    sys.exit(main())

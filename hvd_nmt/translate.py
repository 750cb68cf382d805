"""Translate raw text with a trained run: N lines in, N lines out, in the same order.

    python -m hvd_nmt.translate --run runs/demo < text.en > text.de
    python -m hvd_nmt.translate --run runs/demo --input text.en.gz --output text.de
    python -m hvd_nmt.translate --run runs/demo --checkpoint best latest < text.en
    python -m hvd_nmt.translate --run runs/demo --score --input text.en --target text.de
    horovodrun -np 4 -H a:2,b:2 python -m hvd_nmt.translate --run runs/demo --input F --output G

A line ends at byte 0x0A only, and an output line holds no other line separator either. Wrong UTF-8
is read as U+FFFD; a blank line stays an empty line. UTF-16 and, on stdin, compressed input are
refused. A line with more tokens than the model reads is split or cut, and stderr says which.
What is typed, or comes slowly through a pipe, is answered line by line.

--output FILE is complete or not there: until the end the lines are in FILE.part, and beside it
FILE.part.json says how far the job is. After kill -9, or whatever else, the same command goes on
after the last thousand lines that were finished, with none lost or doubled. A pipe cannot be read
again, so such a job starts afresh.

Under horovodrun the ranks share one file, by chunks. Rank 0 reads the input and writes the output,
which need to be on its host only; every host needs the run directory under the same path. The
number of ranks does not change the output.

With --n-best, --scores, --token-scores or --alignments a line of output has columns, separated by
tabs, in this order: number of the input line from 1 (--n-best above 1, which gives up to that many
lines for each); score (--n-best above 1, --scores), the log-probability divided by the length
penalty; the text; PIECE=LOGP of each token (--token-scores); i-j for each token j of the text, made
from token i of the source, both from 0 (--alignments, as in Pharaoh). Tokens are the pieces of the
run's spm.model, those of the source of its spm.source.model if there is one. Scores are float32
sums whose order depends on what is translated at once: their fourth decimal may differ with
--batch-tokens, other lines beside a line, threads and ranks.
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
from hvd_nmt.translation.output_format import Columns
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
    prefix: Path | None = None
    """file with a line for each line of input, plain or .gz: how its translation must begin; an
    empty line leaves it free"""
    scores: bool = False
    """put the score before each translation"""
    token_scores: bool = False
    """put the log-probability of each token behind it"""
    alignments: bool = False
    """put behind it which token of the source made which of the translation"""
    score: bool = False
    """translate nothing: print the log-probability of each line of --target as the translation of
    its line of input, natural logarithm, summed over tokens"""
    target: Path | None = None
    """translations to score, plain or .gz"""
    settings: OmitArgPrefixes[Settings] = dataclasses.field(default_factory=Settings)

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise ConfigError("--checkpoint names none: give best, latest or a prefix.")
        if self.score != (self.target is not None):
            raise ConfigError("--score and --target belong together: give both or neither.")
        if self.settings.backend != "tensorflow":
            if self.alignments:
                raise ConfigError(
                    "--alignments needs --backend tensorflow, which keeps the attention."
                )
            if self.prefix is not None:
                raise ConfigError("--prefix needs --backend tensorflow, which can force tokens.")
        if self.score:
            excluded = {
                "--prefix": self.prefix is not None,
                "--scores": self.scores,
                "--alignments": self.alignments,
                "--n-best": self.settings.decoding.n_best > 1,
                "--sample": self.settings.decoding.sample,
                "--backend ctranslate2": self.settings.backend == "ctranslate2",
            }
            for name, given in excluded.items():
                if given:
                    raise ConfigError(f"--score does not go with {name}: leave one of them out.")

    def job(self) -> FileJob:
        """The same for `file_job`."""
        several = self.settings.decoding.n_best > 1
        return FileJob(
            self.run, self.checkpoint, self.input, self.output, self.prefix, self.target,
            Columns(several, self.scores, self.token_scores, self.alignments), self.settings,
        )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return command_line.run("hvd_nmt.translate", Options, translate, str(__doc__), argv)


def translate(options: Options) -> None:
    """Translates, or scores, the input to the output."""
    job = options.job()
    if command_line.is_first_rank():
        file_job.check_files(job)
    # TensorFlow takes seconds to import: not for --help, nor for a mistyped option.
    tensorflow_import.import_tensorflow()
    file_job.run(job)


if __name__ == "__main__":
    sys.exit(main())

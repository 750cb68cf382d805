"""Translate raw text with a trained run: N lines in, N lines out, in the same order.

    python -m hvd_nmt.translate --run runs/demo < text.en > text.de
    python -m hvd_nmt.translate --run runs/demo --input text.en.gz --output text.de
    python -m hvd_nmt.translate --run runs/demo --checkpoint best latest < text.en
    python -m hvd_nmt.translate --run runs/demo --json --n-best 4 < text.en > text.jsonl

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

import os
import sys

from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import command_line
from hvd_nmt.translation.settings import FileJob


@command_line.command("hvd_nmt.translate", FileJob, __doc__)
def main(job: FileJob) -> None:
    """Translates the input to the output."""
    if "HOROVOD_RANK" in os.environ:
        raise ConfigError(
            "Translating is one process: split the input, and start one for each GPU."
        )
    tensorflow_import.import_tensorflow()
    from hvd_nmt.translation import file_job

    file_job.run(job)


if __name__ == "__main__":
    sys.exit(main())

"""Translate raw text with a trained run: N lines in, N lines out, in the same order.

    python -m hvd_nmt.translate --run runs/demo < text.en > text.de
    python -m hvd_nmt.translate --run runs/demo --input text.en.gz --output text.de
    python -m hvd_nmt.translate --run runs/demo --checkpoint best latest < text.en
    python -m hvd_nmt.translate --run runs/demo --json --n-best 4 < text.en > text.jsonl

Model and text: --run --checkpoint --input --output --json --to
Search: --beam-size --length-penalty --normalization --n-best --max-length --no-repeat-ngram
    --sample --temperature --top-k --top-p --seed
Speed and memory: --backend --precision --shortlist --batch-tokens

A line ends at byte 0x0A only. Wrong UTF-8 is read as U+FFFD, a blank line stays empty, UTF-16 and
compressed stdin are refused. A line that is too long is split, and stderr reports it. Typed lines
are answered one by one. Until the end the output is in FILE.part; after a kill the same command
continues it. A job that reads a pipe starts again.

With --json each line of output is an object with these fields:
  line, text                       number of the line, from 1, and its translation
  score                            log-probability divided by the length penalty
  tokens, token_scores             pieces of the run's spm.model, and their log-probabilities
  alignment                        pairs [i, j]: source token i made token j of the text, from 0
  n_best                           with --n-best above 1: such translations, best first

Scores are sums in float32, in any order: their fourth decimal may differ.
"""

import os
import sys

from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import command_line
from hvd_nmt.translation.settings import FileJob


@command_line.command("hvd_nmt.translate", FileJob, __doc__)
def main(job: FileJob) -> None:
    """Translates the input to the output."""
    if "HOROVOD_RANK" in os.environ:
        raise ConfigError("Translating is one process: split the input, start one for each GPU.")
    RunDirectory(job.run).import_tensorflow()
    from hvd_nmt.translation import file_job

    file_job.run(job)


if __name__ == "__main__":
    sys.exit(main())

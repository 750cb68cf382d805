"""All commands under one name: `hvd-nmt train ...` is `python -m hvd_nmt.train ...`."""

import importlib
import sys
from collections.abc import Sequence

from hvd_nmt.common.errors import ConfigError, reported
from hvd_nmt.common.version import __version__

# Not asked of the modules themselves: importing some of them takes seconds.
COMMANDS = {
    "prepare": "make a data directory of raw parallel text: clean, train SentencePiece, encode",
    "train": "train a Transformer on all ranks; the same command again resumes",
    "translate": "translate raw text with a trained run: N lines in, N lines out, in their order",
    "evaluate": "score translations: BLEU, chrF2 and TER, with intervals and significance",
    "average": "average the weights of several checkpoints of a run into one new checkpoint",
    "export": "write a trained model for other programs: a SavedModel, or for CTranslate2",
    "convert": "turn a model that another program trained into a run directory",
    "report": "explain a run: eleven answers with figures and evidence, in HTML and Markdown",
    "launch": "start the ranks on all hosts, and again until the run is done: nobody has to watch",
    "doctor": "look at the hosts before a run: what will not work, and how fast it will be",
    "bench": "measure how fast this machine trains, and its share of what products alone reach",
}
"""name of a module of the package with a function `main` -> what it does"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first word names; returns its exit code."""
    name, *words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    with reported("hvd-nmt") as outcome:
        if name in ("-h", "--help"):
            print(_overview())
        elif name == "--version":
            print(f"hvd_nmt {__version__}")
        elif name in COMMANDS:
            return importlib.import_module(f"hvd_nmt.{name}").main(words)
        else:
            raise ConfigError(f"There is no command {name!r}, only {', '.join(COMMANDS)}.")
    return outcome.exit_code


def _overview() -> str:
    return "\n".join([
        "usage: hvd-nmt NAME [options]     (or python -m hvd_nmt NAME [options])", "",
        *(f"  {name:9}  {line}" for name, line in COMMANDS.items()), "",
        "hvd-nmt NAME --help explains a command; exit codes are in hvd_nmt.common.errors.",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

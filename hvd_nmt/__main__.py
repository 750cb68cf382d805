"""All commands under one name: `hvd-nmt train ...` is `python -m hvd_nmt.train ...`."""

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_nmt.common.errors import EXIT_CODES, ConfigError, reported
from hvd_nmt.common.version import __version__

COMMANDS = (
    "prepare", "train", "translate", "evaluate", "average", "export", "convert", "report", "launch",
    "doctor", "bench",
)  # fmt: skip
"""modules of the package with a function `main`"""


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
            from hvd_nmt.config.serialization import nearest  # the list of commands needs no YAML

            raise ConfigError(
                f"There is no command {name!r}{nearest(name, COMMANDS)}. The commands are "
                f"{', '.join(COMMANDS)}."
            )
    return outcome.exit_code


def _overview() -> str:
    """The first line of each module, read as text: to import some of them takes seconds."""
    lines = []
    for name in COMMANDS:
        code = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        lines.append(f"  {name:9}  {str(ast.get_docstring(ast.parse(code))).splitlines()[0]}")
    return "\n".join([
        "usage: hvd-nmt NAME [options]     (or python -m hvd_nmt NAME [options])", "", *lines, "",
        "hvd-nmt NAME --help shows what a command needs, --help-all everything.", "", EXIT_CODES,
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

"""All commands under one name: `hvd-nmt train ...` is `python -m hvd_nmt.train ...`.

    hvd-nmt                 lists the commands
    hvd-nmt NAME --help     explains one

A command is a module of the package with a function `main`. The list reads their files instead of
importing them, which for some takes seconds.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_nmt import __version__
from hvd_nmt.common.errors import ConfigError, reported


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first word names; returns its exit code."""
    name, *words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    with reported("hvd-nmt") as outcome:
        if name in ("-h", "--help"):
            print(_overview())
        elif name == "--version":
            print(f"hvd_nmt {__version__}")
        elif name in (known := commands()):
            return importlib.import_module(f"hvd_nmt.{name}").main(words)
        else:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ConfigError(
                f"There is no command {name!r}{hint}; the commands are {', '.join(known)}."
            )
    return outcome.exit_code


def commands() -> dict[str, str]:
    """The commands that exist: name -> first line of the module's docstring."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in module.body):
            found[path.stem] = (ast.get_docstring(module) or "").partition("\n")[0]
    return found


def _overview() -> str:
    known = commands()
    width = max(map(len, known))
    lines = [f"  {name:{width}}  {line}" for name, line in known.items()]
    usage = "usage: hvd-nmt NAME [options]     (or python -m hvd_nmt NAME [options])"
    more = "hvd-nmt NAME --help explains a command; exit codes are in hvd_nmt.common.errors."
    return "\n".join([usage, "", *lines, "", more])


if __name__ == "__main__":
    sys.exit(main())

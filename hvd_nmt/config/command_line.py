"""The command line of a run, and of any other command: dataclasses made into options by tyro.

For a run, later wins: the preset, then `hvd_nmt.yaml` in the working directory if there is one,
then the YAML file named by `--config`, then the command line. A whole file replaces the preset.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import docstring_parser
import tyro
from tyro import MISSING_NONPROP as MISSING
from tyro.conf import Suppress

from hvd_nmt.common import errors
from hvd_nmt.common.errors import ConfigError, reported, speak_utf8
from hvd_nmt.config import Config, load, presets
from hvd_nmt.config.serialization import nearest

LOCAL_FILE = Path("hvd_nmt.yaml")
"""defaults of a working directory, read when the file is there"""
_LISTED = re.compile(r"^(\w[^:\n]*:)((?:\s+--[\w.-]+)+)$", re.MULTILINE)
"""options that a command's docstring lists under a title: `--help` gives each one a line"""
_PLAIN = {
    r" (?:Argument|For full) helptext.*|'None', |, 'None'": "",
    r"Missing from [^:]+: (.*?)(?:[;.] | \(required\)).*": r"An option is missing: \1",
    r"Missing value for argument '(\S+)'.*": r"\1 needs a value",
    r"Error parsing (\S+): invalid literal for int.*?('[^']*').*": r"\1 is a whole number, not \2",
    r"Error parsing (\S+): .*?('[^']*').*": r"\1 cannot be \2",
    r".* choice 'gpu' .*'(\S+device)'.*": r"\1 cannot be 'gpu'. Remove it to use each GPU",
    r"invalid choice (\S+) for argument '(\S+)'.*\((.+)\)\.": r"\2 cannot be \1, only \3",
}
"""what tyro says -> the same in plain words"""
Options = TypeVar("Options")


def run_config(kind: type[Options], name: str, description: str, argv: Sequence[str]) -> Options:
    """The configuration that the words of a command ask for; ConfigError: it cannot work."""
    table = presets()
    sources = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    sources.add_argument("--preset", default="demo")
    sources.add_argument("--config", type=Path, action="append", default=[])
    try:
        given, words = sources.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error.argument_name} needs a value.") from None
    if given.preset not in table:
        raise ConfigError(
            f"Unknown preset {given.preset!r}{nearest(given.preset, table)}; the presets are "
            f"{', '.join(table)}."
        )
    default = table[given.preset][1]
    for path in [*filter(Path.exists, [LOCAL_FILE]), *given.config]:
        default = load(path, default)
    words = [re.sub("^--init-from(?=$|=)", "--training.init-from", word) for word in words]
    lines = [f"  --preset {name:9}  {line}" for name, (line, _) in table.items()]
    files = "  --config FILE.yaml  values over the preset; config.yaml of a run replaces it"
    text = "\n".join([description, "Presets (default: demo):", *lines, files])
    return options(kind, name, text, words, kind(**vars(default)))


def is_first_rank() -> bool:
    """Whether this is rank 0, which speaks; known before Horovod is imported."""
    return os.environ.get("HOROVOD_RANK", "0") == "0"


def command(
    name: str, kind: type[Options], description: str | None
) -> Callable[[Callable[[Options], int | None]], Callable[..., int]]:
    """Makes a function of options a whole command: called with words, it returns an exit code.

    Of several ranks the first speaks. Options that are a `Config` also come from presets and files.
    """
    make = run_config if issubclass(kind, Config) else options

    def decorated(action: Callable[[Options], int | None]) -> Callable[..., int]:
        def main(argv: Sequence[str] | None = None) -> int:
            speak_utf8()
            with reported(name, speak=is_first_rank()) as outcome:
                words = sys.argv[1:] if argv is None else argv
                outcome.exit_code = action(make(kind, name, description or "", words)) or 0
            return outcome.exit_code

        return main

    return decorated


def options(
    kind: type[Options], name: str, description: str, words: Sequence[str], default: Any = MISSING
) -> Options:
    """One frozen dataclass as a command line (tyro), whose help `--help-all` shows.

    `--help` has a line for each option that the description lists (tyro's has several, or no text).
    ConfigError: unknown options, or values that cannot work; SystemExit: after a help.
    """
    if {"-h", "--help", "--help-all"} & set(words):
        rows, brief = _rows(kind, default), "--help-all" not in words
        text = _LISTED.sub(
            lambda listed: "\n".join([listed[1], *(rows[name] for name in listed[2].split())]),
            description.strip(),
        )
        first, *parts = text.split("\n\n")
        shown = [part for part in parts if not brief or re.search("^  ", part, re.MULTILINE)]
        more = ["--help-all explains more."] if brief else []
        print("\n\n".join([first, *shown, "\n".join([*more, errors.EXIT_CODES])]))
        if brief:
            raise SystemExit(0)
        words = ["--help"]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            prog = f"python -m {name}"
            return tyro.cli(kind, prog=prog, description="", args=words, default=default)
    except (ConfigError, SystemExit) as stopped:
        # tyro reports what __post_init__ raises in a box, too; a ConfigError is one sentence.
        cause: BaseException | None = stopped
        while cause is not None:
            if isinstance(cause, ConfigError):
                field, _, fault = str(cause).partition(" is ")  # as `schema.require_limits` says
                if (option := f"--{field.replace('_', '-')}") in _rows(kind, default):
                    cause.args = (f"{option} is {fault}",)
                raise cause from None
            cause = cause.__context__
        if not getattr(stopped, "code", 0):
            raise
        what = _sentence(printed.getvalue(), _rows(kind, default))
        raise ConfigError(f"{what}; python -m {name} --help shows the options.") from None


def _sentence(box: str, names: Iterable[str]) -> str:
    """What tyro says in a box below its title, in a few words."""
    text = " ".join(re.sub("[─-╿|]|-{4,}", " ", box.strip().partition("\n")[2]).split())
    if unknown := re.search(r"Unrecognized options: ([^\s,=]+)", text):
        return f"There is no option {unknown[1]}{nearest(unknown[1], names)}"
    for pattern, words in _PLAIN.items():
        text = re.sub(pattern, words, text)
    return text


def _rows(kind: type, default: Any, prefix: str = "") -> dict[str, str]:
    """Option -> its line of `--help`.

    It also gives tyro each docstring of a field as one line to fill.
    """
    bases = map(docstring_parser.parse_from_object, reversed(kind.__mro__[:-1]))
    texts = {entry.arg_name: str(entry.description) for base in bases for entry in base.params}
    hints, rows = typing.get_type_hints(kind), dict[str, str]()
    annotated = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, text = hints[field.name], " ".join(texts.get(field.name, "").split())
        value = getattr(default, field.name, field.default)
        marks = getattr(annotated[field.name], "__metadata__", ())
        if Suppress in marks:
            continue
        name = next((mark.name for mark in marks if hasattr(mark, "name")), None)
        field.metadata = MappingProxyType({**field.metadata, "help": text})
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            rows |= _rows(hint, value, prefix if marks else f"{prefix}{field.name}.")
            continue
        meaning = re.split("[;.] ", text)[0]
        if value is dataclasses.MISSING:
            meaning += " (required)"
        elif str(value) not in ("False", "None", "", "()"):
            meaning += f" (default: {' '.join(value) if isinstance(value, tuple) else value})"
        option = f"--{prefix}{name or field.name.replace('_', '-')}"
        named = option + _value(hint, meaning, 31 - len(option))
        gap = "  " if len(named) + len(meaning) <= 96 else f"\n{'':35}"
        rows[option] = f"  {named:31}{gap}{meaning}"
    return rows


def _value(hint: Any, meaning: str, width: int) -> str:
    """What follows an option, nothing after a switch; choices unless long and in its meaning."""
    choices = typing.get_args(hint)
    values = "|".join(map(str, choices))
    is_told = len(values) >= width and all(str(choice) in meaning for choice in choices)
    if typing.get_origin(hint) is Literal and not is_told:
        return f" {values}"
    kinds = {bool: "", Path: " PATH", int: " N", float: " X"}
    return next((kinds[kind] for kind in (hint, *choices) if kind in kinds), " NAME")

"""`prepare` in a process of its own: SentencePiece and TensorFlow do not mix in one."""

import os
import re
import subprocess
import sys
from typing import Any

from hvd_nmt.common.errors import BY_EXIT_CODE, DataError


def prepare(out: str | os.PathLike[str], shows: bool, **options: Any) -> None:
    """Makes a data directory by the command, with its options, and `shows` what it prints.

    UserError: its own, where it fails.
    """
    command = [sys.executable, "-m", "hvd_nmt.prepare", "--out", os.fspath(out)]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            values = value if isinstance(value, list | tuple) else [value]
            command += [f"--{flag}", *map(str, values)]
    output, lines = None if shows else subprocess.DEVNULL, [""]
    with subprocess.Popen(
        command, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        for line in process.stderr or ():
            print(lines[-1] if shows else "", end="", file=sys.stderr)
            lines.append(line)
    if process.returncode:
        said = "".join(lines).rpartition("hvd_nmt.prepare: ")[2]
        sentence = " ".join(re.findall(r"[^\s─│╭╮╰╯]+", said)) or "it failed without a word."
        raise BY_EXIT_CODE.get(process.returncode, DataError)(f"Preparing {out}: {sentence}")
    print(lines[-1] if shows else "", end="", file=sys.stderr)

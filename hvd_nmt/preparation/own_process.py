"""`prepare` in its own process: SentencePiece and TensorFlow do not mix in one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hvd_nmt.common.errors import BY_EXIT_CODE, DataError


def prepare(out: Path, shows: bool, **options: Any) -> Path:
    """Makes a data directory by the command, and `shows` its output; raises its UserError."""
    command = [sys.executable, "-m", "hvd_nmt.prepare", "--out", str(out)]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            values = value if isinstance(value, list | tuple) else [value]
            command += [f"--{flag}", *map(str, values)]
    errors = ""
    with subprocess.Popen(
        command, stdout=None if shows else subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, errors="replace",
    ) as process:  # fmt: skip
        for line in process.stderr or ():
            errors += line
            if shows and "hvd_nmt.prepare: " not in line:
                print(line, end="", file=sys.stderr)
    if process.returncode:
        words = errors.rpartition("hvd_nmt.prepare: ")[2].split()
        error = BY_EXIT_CODE.get(process.returncode, DataError)
        raise error(f"Preparing {out}: {' '.join(words) or 'it failed without a word.'}")
    return out

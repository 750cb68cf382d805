"""Helpers for tests of hvd_nmt.launch: its record, and a secret that must be seen nowhere."""

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvd_nmt.common import jsonl

CANARY = "canary-7d1f2c"
SECRETS = dict.fromkeys(
    ("MY_TOKEN", "TF_VAR_password", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "GITHUB_TOKEN"), CANARY
) | {"MLFLOW_TRACKING_URI": f"https://me:{CANARY}@tracking.invalid"}
"""of the launcher's environment; the last one reaches the ranks"""


def program(path: Path, text: str) -> str:
    """Makes a program, with its folder; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def events(run_dir: Path) -> list[dict[str, Any]]:
    """What the launcher has recorded."""
    path = run_dir / "launch.jsonl"
    return list(jsonl.read(path)) if path.exists() else []


def checksum(stdout: str) -> str:
    """Of the weights, as the run says it at its end."""
    return re.findall(r"weights     checksum (0x[0-9a-f]+) equal on", stdout)[-1]


def require_no_secret(output: str, folder: Path) -> None:
    """Neither in what was said nor in any file."""
    assert CANARY not in output
    for path in folder.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path


@contextlib.contextmanager
def command_lines_read() -> Iterator[set[str]]:
    """All command lines of the machine that show the canary, while the block runs."""
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    line = path.read_bytes().decode(errors="replace")
                    if CANARY in line:
                        seen.add(line)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()

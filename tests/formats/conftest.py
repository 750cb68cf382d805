"""LibreTranslate in an environment of its own, for the tests that ask it."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from hvd_nmt.common.files import exclusive

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
PACKAGES = ("libretranslate==1.9.6", "argos-translate-lt==1.12.1", "minisbd==0.9.5")


@pytest.fixture(scope="session")
def libretranslate():
    """The Python that has it; installed once for all sessions, 0.6 GB."""
    wanted = [*PACKAGES, f"ctranslate2=={version('ctranslate2')}"]
    folder = CACHE / "hvd_nmt" / f"libretranslate-py{sys.version_info.minor}"
    python, mark = folder / "bin" / "python", folder / "installed.txt"
    with exclusive(folder):
        if not mark.exists() or mark.read_text() != str(wanted):
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            command = [python, "-m", "pip", "install", "--quiet", *wanted]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900)
            if done.returncode:
                pytest.skip(f"LibreTranslate cannot be installed: {done.stderr[-200:]}")
            mark.write_text(str(wanted))
    return python

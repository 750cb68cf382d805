"""What the telemetry tests share: a host with made-up GPUs, and Python in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunPython = Callable[..., Any]


@pytest.fixture
def run_python() -> RunPython:
    """Runs a script in a new Python, warnings as errors, and gives the JSON that it prints last."""

    def run(script: str, *prefix: str, **environment: str) -> Any:
        done = subprocess.run(
            [*prefix, sys.executable, "-W", "error", "-c", script],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def fake_nvml(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Compiles fake_nvml.c; gives the environment in which Python finds it."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc to build a libnvidia-ml.so.1 without GPUs")

    def build(*defines: str, **settings: int) -> dict[str, str]:
        source = Path(__file__).parent / "fake_nvml.c"
        library = tmp_path / "nvml" / "libnvidia-ml.so.1"
        library.parent.mkdir()
        options = ["-shared", "-fPIC", "-Wall", "-Werror", *defines]
        subprocess.run([compiler, *options, "-o", library, source], check=True)
        environment = {f"FAKE_NVML_{name}": str(value) for name, value in settings.items()}
        return {"LD_LIBRARY_PATH": str(library.parent), **environment}

    return build

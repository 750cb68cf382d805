"""What the telemetry tests share: a host with made-up GPUs, and Python in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
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


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles fake_nvml.c, without the functions that are named; gives the library's folder."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler to build a libnvidia-ml.so.1 without GPUs")
    built: dict[tuple[str, ...], Path] = {}

    def build(*missing: str) -> Path:
        if missing not in built:
            folder = built[missing] = tmp_path_factory.mktemp("nvml")
            exports = folder / "exports"
            hidden = f"local: {' '.join(f'{name};' for name in missing)}" if missing else ""
            exports.write_text(f"{{ global: nvml*; {hidden} }};")
            options = ["-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,--version-script={exports}"]
            source, library = Path(__file__).parent / "fake_nvml.c", folder / "libnvidia-ml.so.1"
            subprocess.run([compiler, *options, "-o", library, source], check=True)
        return built[missing]

    return build


@pytest.fixture
def fake_nvml(nvml_library: Callable[..., Path], tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Sets the made-up host up; gives the environment in which Python finds its NVML.

    The lines go to the file FAKE_NVML_STATE, see fake_nvml.c; `missing` names functions that the
    library does not have.
    """

    def set_up(*lines: str, missing: Sequence[str] = ()) -> dict[str, str]:
        state = tmp_path / "nvml_state"
        state.write_text("".join(f"{line}\n" for line in lines))
        return {
            "LD_LIBRARY_PATH": str(nvml_library(*missing)),
            "FAKE_NVML_STATE": str(state),
        }

    return set_up

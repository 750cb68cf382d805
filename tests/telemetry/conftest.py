"""What the telemetry tests share: Python in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

RunPython = Callable[..., Any]


@pytest.fixture
def run_python() -> RunPython:
    """Runs a script in a new Python, warnings as errors, and gives the JSON that it prints last."""

    def run(script: str, **environment: str) -> Any:
        command = [sys.executable, "-W", "error", "-c", script]
        environment = {**os.environ, **environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run

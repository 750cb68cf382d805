"""What is left of a start is ended, and nothing else; how far it came is read from its records."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hvd_nmt.common.rank_environment import START_ID
from hvd_nmt.diagnosis.hosts import Host
from hvd_nmt.launching import aftermath

HERE = [Host("localhost", 2)]
SLEEP = [sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def sleepers():
    """Processes of two starts of one launcher, and one of another launcher."""
    started = [
        subprocess.Popen(SLEEP, env={**os.environ, START_ID: start}, stdout=subprocess.PIPE)
        for start in ("3fa9.1", "3fa9.2", "3fa8.2")
    ]
    for process in started:
        process.stdout.readline()
    yield started
    for process in started:
        process.kill()
        process.communicate()


def test_processes_of_the_launcher_are_killed_and_no_others(sleepers):
    first, second, another = sleepers
    found = aftermath.clear_up(HERE, "3fa9", "3fa9.2", None, 0.0)
    assert (found.killed, found.left, found.silent) == ({"localhost": 2}, {}, ())
    assert (first.wait(600), second.wait(600), another.poll()) == (-9, -9, None)


def test_who_ends_in_time_is_not_killed(sleepers):
    first, second, _ = sleepers
    first.terminate()
    second.terminate()
    found = aftermath.clear_up(HERE, "3fa9", "3fa9.2", None, 600.0)
    assert found.killed == {}
    assert first.wait(600) == second.wait(600) == -15


def test_how_far_a_start_came(tmp_path):
    lines = [
        {"kind": "start", "time_s": 10.0, "first_step": 1, "start_id": "3fa9.1"},
        {"kind": "start", "time_s": 20.0, "first_step": 6, "start_id": "3fa9.2"},
        {"kind": "train", "time_s": 21.0, "step": 8},
        {"kind": "eval", "time_s": 22.0, "step": 8},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = aftermath.clear_up(HERE, "3fa9", "3fa9.2", tmp_path, 0.0)
    assert found.reached == {"resumed_step": 5, "first_s": 20.0, "last_s": 22.0, "step": 8}
    assert found.saved_step is None

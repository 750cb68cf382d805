"""Scripts of this folder that run on several ranks, in forks of a process with TensorFlow."""

import json
import os
from pathlib import Path

import pytest

import toy

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def run_on_ranks(toy_commands):
    """A function that runs a script and returns the lines of OUT/RANK.jsonl, by rank."""

    def run(script, ranks, out, *arguments):
        start = toy_commands.command(os.fspath(HERE / script))
        command = [*toy.horovodrun(ranks), *start, *map(os.fspath, (out, *arguments))]
        done = toy.Run(command, out, toy.environment(out)).finished(240)
        assert done.returncode == 0, done.stdout + done.stderr
        texts = ((out / f"{rank}.jsonl").read_text(encoding="utf-8") for rank in range(ranks))
        return [[json.loads(line) for line in text.splitlines()] for text in texts]

    return run

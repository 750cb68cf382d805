"""Scripts of this folder that run on several ranks, in forks of a process with TensorFlow."""

import json
import os
import signal
from pathlib import Path

import pytest

import toy
from forks import EAGER

HERE = Path(__file__).parent
UNTIL = """
import os, signal, sys
from hvd_nmt import train
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.training import step_log

def after_step(self, result, real=step_log.StepLog.after_step):
    if result.step == int(os.environ["LAST_STEP"]):
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    real(self, result)

def note(self, step, *values, real=Saver.note):
    if step == int(os.environ["LAST_STEP"]):
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    real(self, step, *values)

if os.environ["IN_EVALUATION"]:
    Saver.note = note
else:
    step_log.StepLog.after_step = after_step
sys.exit(train.main())
"""


@pytest.fixture(scope="session")
def run_on_ranks(toy_commands):
    """A function that runs a script and returns the lines of OUT/RANK.jsonl, by rank."""

    def run(script, ranks, out, *arguments, eager=False):
        start = toy_commands.command(os.fspath(HERE / script))
        command = [*toy.horovodrun(ranks), *start, *map(os.fspath, (out, *arguments))]
        environment = toy.environment(out) | ({EAGER: "1"} if eager else {})
        done = toy.Run(command, out, environment).finished()
        assert done.returncode == 0, done.stdout + done.stderr
        texts = ((out / f"{rank}.jsonl").read_text(encoding="utf-8") for rank in range(ranks))
        return [[json.loads(line) for line in text.splitlines()] for text in texts]

    return run


@pytest.fixture(scope="session")
def train_until(toy_commands):
    """As `toy_commands.train`, but after a step, before it is logged, each rank gets a signal.

    Or, with `in_evaluation`, once the step is saved and evaluated, before its scores are written.
    """

    def train(
        step, *options, cwd, ranks=1, eager=False, number=signal.SIGKILL, in_evaluation=False
    ):
        launcher = toy.horovodrun(ranks) if ranks > 1 else []
        environment = toy.environment(cwd) | {"LAST_STEP": str(step), "SIGNAL": str(int(number))}
        environment |= {EAGER: "1"} if eager else {}
        environment["IN_EVALUATION"] = "1" * in_evaluation
        command = [*launcher, *toy_commands.command(UNTIL), *options]
        return toy.Run(command, cwd, environment).finished()

    return train

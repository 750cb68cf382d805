"""With fixed groups, 3 ranks give the same bits each time, killed and resumed or not.

With two ranks the order of a sum cannot matter: `test_resume.py`; `test_faults.py` has four.
"""

import re

import pytest

import toy

PROGRAM = """
import os, signal, sys
from hvd_nmt import train
from hvd_nmt.training import gradient_sums, step_log

gradient_sums.GROUP_BYTES = 4096  # several groups of a tiny model

def after_step(self, step, logs, real=step_log.StepLog.after_step):
    real(self, step, logs)
    if step == int(os.environ["DIES"]) and os.environ["HOROVOD_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)

step_log.StepLog.after_step = after_step
sys.exit(train.main())
"""
OPTIONS = ("--checkpoints.every-steps", "5", "--evaluation.sentences", "2")


@pytest.mark.long
def test_a_killed_run_ends_at_the_weights_of_one_that_was_not(toy_commands, toy_data, tmp_path):
    def run(name, cycle_ms, dies=0):
        options = toy.train_options(toy_data, name, 12, *OPTIONS)
        command = [*toy.horovodrun(3), *toy_commands.command(PROGRAM), *options]
        # So long Horovod collects gradients before it sums what is there.
        more = {"HOROVOD_CYCLE_TIME": cycle_ms, "DIES": str(dies)}
        return toy.Run(command, tmp_path, toy.environment(tmp_path) | more).finished()

    whole = run("whole", "1")
    killed = run("killed", "7", dies=11)
    resumed = run("killed", "7")

    assert "Exit code: 137" in killed.stderr
    assert re.search(r"from killed/model\.ckpt-(5|10)\n", resumed.stdout)
    found, wanted = (
        re.findall(r"checksum (0x\w+) equal", done.stdout) for done in (resumed, whole)
    )
    assert len(found) == 1, resumed.stderr
    assert found == wanted

"""Worker of test_exchanges_between_hosts.py: runs of hvd_nmt.train in one process, to save starts.

    horovodrun -np 2 -H v100a:1,v100b:1 python exchanging_runs.py OUT DATA

What a rank prints and returns becomes one JSON line of OUT/runs-RANK.jsonl for each run.
"""

import io
import json
import shutil
import sys
from pathlib import Path

import hvd_nmt  # noqa: F401 - first: picks tf_keras

# isort: split
import numpy as np

import toy
from hvd_nmt import train
from hvd_nmt.training import callbacks, horovod, step_log

callbacks.ReplicaCheck.EVERY_STEPS = 7

DROPOUT_0 = ("--model.dropout", "0")
PLAIN = ("--training.learning-rate", "0.1", *DROPOUT_0)
FLOAT16 = (*PLAIN, "--training.exchange", "float16")
ISLANDS = ("--training.exchange", "islands", "--training.sync-every", "4", "--training.clip-norm",
           "5", "--training.ema-decay", "0.9", "--checkpoints.every-steps", "10",
           "--evaluation.sentences", "2", *DROPOUT_0)  # fmt: skip
NARROW = (*ISLANDS, "--training.precision", "float16")
RUNS = [
    # name, steps, options, hosts' steps with a broken weight; -again: the run before from step 12
    ("plain", 40, PLAIN, {}),
    ("float16", 40, FLOAT16, {}),
    ("in-float16", 24, NARROW, {}),
    ("islands", 24, ISLANDS, {"v100b": [6]}),
    ("islands-again", 24, ISLANDS, {}),
    ("broken", 12, ISLANDS, {"v100b": [5]}),
]


def main(out, data):
    rank = horovod.init(2, with_groups=True)
    # Each `main` would end Horovod for good; the next run needs it.
    horovod.shutdown, shutdown = (lambda: None), horovod.shutdown
    with open(out / f"runs-{rank.index}.jsonl", "w", encoding="utf-8") as file:
        for name, steps, options, broken in RUNS:
            if name.endswith("-again"):
                if rank.index == 0:
                    shutil.copytree(out / name.removesuffix("-again"), out / name)
                    for path in (out / name).glob("model.ckpt-2*"):
                        path.unlink()
                horovod.gather(0)
            code, said = run(rank, toy.train_options(data, out / name, steps, *options), broken)
            file.write(json.dumps({"name": name, "code": code, "said": said}) + "\n")
            file.flush()
    shutdown()


def run(rank, options, broken):
    """The exit code of a run and what it said."""

    before = step_log.StepLog.after_step

    def after_step(self, result):
        before(self, result)
        if result.step in broken.get(rank.host, ()):
            weight = self.model.trainable_variables[0]
            weight.assign(np.full(weight.shape, np.nan, np.float32))

    step_log.StepLog.after_step = after_step
    printed = io.StringIO()
    try:
        with toy.printing_to(printed, printed):
            return train.main(options), printed.getvalue()
    finally:
        step_log.StepLog.after_step = before


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

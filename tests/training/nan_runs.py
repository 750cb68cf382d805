"""Worker of test_nan_injections.py: runs of hvd_nmt.train with NaN in a random rank and step.

    horovodrun -np 2 -H localhost:2 python nan_runs.py OUT DATA RUNS SEED

Each run has NaN in one step of one rank; every third has it twice in one epoch, and ends. What
`main` returned becomes one JSON line of OUT/RANK.jsonl; the run directories are OUT/NUMBER.
"""

import io
import json
import random
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# isort: split
import faulty_runs

import toy
from hvd_nmt import train
from hvd_nmt.training import horovod

STEPS = 22


def main(out, data, runs, seed):
    signal.alarm(0)  # a fork ends after 600 s, of which many runs take more
    rank = horovod.init(2)
    horovod.shutdown, shutdown = (lambda: None), horovod.shutdown
    chance = random.Random(seed)
    with open(out / f"{rank.index}.jsonl", "w", encoding="utf-8") as file:
        for number in range(runs):
            places = [(chance.randrange(2), chance.randint(1, STEPS - 3))]
            if number % 3 == 2:
                places.append((chance.randrange(2), chance.randint(places[0][1] + 2, STEPS)))
            options = [*faulty_runs.OPTIONS, "--data.directory", str(data)]
            options += ["--run-dir", str(out / str(number)), "--training.max-steps", str(STEPS)]
            options += ["--evaluation.every-steps", "1000", "--telemetry.no-report"]
            printed = io.StringIO(), io.StringIO()
            with faulty_runs.nan_at(*places), toy.printing_to(*printed):
                code = train.main(options)
            answer = {"places": places, "code": code, "err": printed[1].getvalue()}
            file.write(json.dumps(answer) + "\n")
            file.flush()
    shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))

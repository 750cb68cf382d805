"""Worker of test_lost_rank.py: hvd_nmt.train in which one rank begins to loop after a step.

horovodrun -np 3 -H localhost:3 python looping_rank.py RANK STEP options of hvd_nmt.train
"""

import os
import sys

import hvd_nmt  # noqa: F401 - first: picks tf_keras

# isort: split
from hvd_nmt import train
from hvd_nmt.training import callbacks


def main(rank, last_step, options):
    after_step = callbacks.NoteStep.after_step

    def loop_forever(self, step, logs):
        after_step(self, step, logs)
        while step == last_step and os.environ["HOROVOD_RANK"] == rank:
            pass

    callbacks.NoteStep.after_step = loop_forever
    return train.main(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))

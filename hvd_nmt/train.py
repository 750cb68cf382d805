"""Train a Transformer on all ranks; the same command again resumes.

    python -m hvd_nmt.train                                          the demo, on one rank
    python -m hvd_nmt.train --preset multi30k --data.directory data/mine --run-dir runs/mine
    python -m hvd_nmt.launch train --preset small                    a rank for each GPU
    python -m hvd_nmt.launch -H v100a:2,v100b:2 train --preset base  two hosts, unattended
    horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.train      two hosts
    python -m hvd_nmt.train --init-from runs/x --run-dir runs/y --config mine.yaml

Run: --run-dir --data.directory --data.corpus --training.init-from --training.seed
Model: --model.encoder-layers --model.decoder-layers --model.width --model.heads
    --model.feed-forward-width --model.dropout
Steps and learning rate: --training.max-steps --training.tokens-per-step --training.learning-rate
    --training.decay --training.warmup-steps --training.max-hours
Evaluations: --evaluation.every-steps --evaluation.best-by --evaluation.stop-after
    --evaluation.stop-when-trained
Checkpoints: --checkpoints.every-steps --checkpoints.keep --checkpoints.keep-best
Hardware and network: --ranks --training.device --training.precision --training.micro-batches
    --training.exchange --training.sync-every
"""

import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_nmt.common import signals, tensorflow_import
from hvd_nmt.common.errors import outliving_readers
from hvd_nmt.config import Config, command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    tensorflow_import.wait_as_spare(_import)
    with signals.restored(), outliving_readers("hvd_nmt.train"):
        if not (sys.argv[1:] if argv is None else argv) and command_line.is_first_rank():
            local = command_line.LOCAL_FILE
            what = local if local.exists() else "the preset demo (minutes on two CPU cores)"
            print(f"No option is given: this trains {what}. --help shows the options.")
        return train(argv)


def start(config: Config) -> None:
    """Trains, and explains the run; what files tell is said before TensorFlow is imported."""
    from hvd_nmt.training import resume  # brings NumPy; --help needs none

    if done := resume.ended_by_files(config):
        print(done)
        return
    _import()
    from hvd_nmt.training import run

    run.train(config, write_report)


train = command_line.command("hvd_nmt.train", Config, __doc__)(start)


def _import() -> None:
    tensorflow_import.import_tensorflow()
    from hvd_nmt.training import run  # noqa: F401 - with all that it needs


def write_report(run_dir: Path, in_background: bool = False) -> None:
    """Explain the run, however it ended, if it has begun; what goes wrong here spoils no training.

    In the background a process that belongs to nobody does it, so that no launcher kills it.
    """
    from hvd_nmt.checkpoints.run_files import RunDirectory  # brings NumPy; --help needs none

    if not RunDirectory(run_dir).metrics.exists():
        return
    if in_background:
        code = "import pathlib, sys, hvd_nmt.train as t; t.write_report(pathlib.Path(sys.argv[1]))"
        subprocess.Popen(
            [sys.executable, "-c", code, run_dir], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return
    try:
        with signals.restored():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            from hvd_nmt.records.read import read_run
            from hvd_nmt.reporting import render, run_summary

            render.write(run_summary.RunSummary(read_run(run_dir), ended=True), run_dir)
    except (Exception, KeyboardInterrupt) as error:
        print(
            f"The report could not be written ({type(error).__name__}: {error}); "
            f"python -m hvd_nmt.report {shlex.quote(str(run_dir))} tries again.",
            file=sys.stderr,
        )


if __name__ == "__main__":
    code = main()
    # horovodrun asks the ranks that are left to end when one has: each keeps its own exit code.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)

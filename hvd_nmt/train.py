"""Train a Transformer on all ranks; the same command again resumes.

For example:

    python -m hvd_nmt.train                                                  one rank
    horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.train              two hosts
    python -m hvd_nmt.launch -H v100a:2,v100b:2 train --preset base          unattended
    horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.train --preset base --run-dir runs/x
    python -m hvd_nmt.train --init-from runs/x --run-dir runs/y --config mine.yaml
"""

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
        return train(argv)


@command_line.command("hvd_nmt.train", Config, __doc__)
def train(config: Config) -> None:
    """Trains, and explains the run."""
    _import()
    from hvd_nmt.training import run

    run.train(config, write_report)


def _import() -> None:
    tensorflow_import.import_tensorflow()
    from hvd_nmt.training import run  # noqa: F401 - with all that it needs


def write_report(run_dir: Path, in_background: bool = False) -> None:
    """Explain the run, however it ended, if it has begun; what goes wrong here spoils no training.

    In the background a process that belongs to nobody does it, so that no launcher kills it.
    """
    from hvd_nmt.telemetry.events import METRICS_FILE  # brings TensorBoard; --help needs none

    if not (run_dir / METRICS_FILE).exists():
        return
    if in_background:
        code = "import pathlib, sys; from hvd_nmt import train; "
        code += "train.write_report(pathlib.Path(sys.argv[1]))"
        subprocess.Popen(
            [sys.executable, "-c", code, run_dir], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return
    try:
        with signals.restored():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            from hvd_nmt.records.read import read_run
            from hvd_nmt.reporting import render

            render.write(read_run(run_dir), run_dir, ended=True)
    except (Exception, KeyboardInterrupt) as error:
        print(
            f"The report could not be written ({type(error).__name__}: {error}); "
            f"python -m hvd_nmt.report {run_dir} tries again.",
            file=sys.stderr,
        )


if __name__ == "__main__":
    code = main()
    # horovodrun asks the ranks that are left to end when one has: each keeps its own exit code.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)

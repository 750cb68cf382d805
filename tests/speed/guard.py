"""Compare the speed of the working tree with that of another commit, in turn: `make bench-guard`.

    python tests/speed/guard.py 10fe6c3
    python tests/speed/guard.py ../other-checkout --rounds 3 --only train

For each tree one process stays alive (`resident.py`, the tree's own if it has one) and does the
same pieces of work, now the one, now the other, so that a machine whose speed drifts slows both.
What is compared is work per CPU second of one thread. Nothing else may run meanwhile. Ends with 1
if the median ratio of any workload is below --least.
"""

import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RESIDENT = Path("tests", "speed", "resident.py")
WORKLOADS = (
    *(f"train/{precision}/{n}" for precision in ("float32", "bfloat16") for n in (16, 64, 128)),
    "decode/float32/32", "decode/bfloat16/32", "score/float32/64", "input", "ctranslate2/int8/32",
)  # fmt: skip
"""the newest last: a tree without it ends the comparison there"""
BLOCK_S = 1.0
"""CPU seconds of a block, of the faster tree; a block has at least one piece of work"""


class Block(NamedTuple):
    """A piece of work, done some times in a row."""

    units: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Units a CPU second."""
        return self.units / self.cpu_s


class Resident:
    """The process of one tree, a checkout; `log` gets what it has to say."""

    def __init__(self, tree: Path, log: Path) -> None:
        own = tree / RESIDENT
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, own if own.exists() else ROOT / RESIDENT], cwd=tree, text=True,
                env={**os.environ, "PYTHONPATH": os.fspath(tree)}, stderr=errors,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip

    def do(self, workload: str, times: int) -> Block:
        """A block of work, to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(workload, times, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().split()
        if not answer:
            lines = self._log.read_text(errors="replace").splitlines()
            sys.exit("\n".join([f"{workload}: the process ended. Its last lines:", *lines[-12:]]))
        return Block(*map(float, answer))

    def end(self) -> None:
        """Let the process go."""
        self._process.communicate()


def main() -> int:
    """Compare; 1 where the working tree is slower."""
    options = _options()
    slowest = math.inf
    with checkout(options.base) as base, tempfile.TemporaryDirectory(prefix="speed-logs-") as logs:
        ours, theirs = (
            Resident(tree, Path(logs, name)) for tree, name in ((ROOT, "ours"), (base, "base"))
        )
        print(f"{'working tree : ' + options.base:24} units per CPU s         ratio   (min to max)")
        for workload in [w for w in WORKLOADS if w.startswith(options.only)]:
            pairs = in_turn(ours, theirs, workload, options.rounds)
            ratios = sorted(our.rate / their.rate for our, their in pairs)
            ratio = statistics.median(ratios)
            slowest = min(slowest, ratio)
            print(
                f"{workload:24} {_median(our for our, _ in pairs):10,.0f}"
                f" : {_median(their for _, their in pairs):<10,.0f} {ratio:5.2f}"
                f"   ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                + ("   SLOWER" if ratio < options.least else ""),
                flush=True,
            )
        ours.end()
        theirs.end()
    return int(slowest < options.least)


def _median(blocks: Iterable[Block]) -> float:
    return statistics.median(block.rate for block in blocks)


def in_turn(
    ours: Resident, theirs: Resident, workload: str, rounds: int
) -> list[tuple[Block, Block]]:
    """Blocks of the same work in both, first the one, then the other, then the other way round."""
    once_s = min(side.do(workload, 1).cpu_s for side in (ours, theirs))
    times = max(1, round(BLOCK_S / once_s))
    pairs = []
    for number in range(rounds):
        order = (theirs, ours) if number % 2 else (ours, theirs)
        blocks = {side: side.do(workload, times) for side in order}
        pairs.append((blocks[ours], blocks[theirs]))
    return pairs


@contextlib.contextmanager
def checkout(base: str) -> Iterator[Path]:
    """The tree of a commit for a while, or a directory as it is."""
    if Path(base).is_dir():
        if not Path(base, "hvd_nmt").is_dir():  # Python would take the installed one: this tree
            sys.exit(f"{base} holds no hvd_nmt: give a checkout or a commit.")
        yield Path(base).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="speed-base-") as folder:
        git = ["git", "-C", os.fspath(ROOT), "archive", base]
        archive = subprocess.run(git, capture_output=True, check=False)
        if archive.returncode:
            sys.exit(f"{base} is no directory and no commit: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def _options() -> argparse.Namespace:
    description, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", help="a commit, or another checkout")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of blocks; 5 by default")
    parser.add_argument("--least", type=float, default=0.95, help="ratio; 0.95 by default")
    parser.add_argument("--only", default="", help="workloads that begin so, such as train/float32")
    options = parser.parse_args()
    if options.rounds < 1 or not any(name.startswith(options.only) for name in WORKLOADS):
        parser.error(f"give --rounds 1 or more, and --only the beginning of one of {WORKLOADS}")
    return options


if __name__ == "__main__":
    sys.exit(main())

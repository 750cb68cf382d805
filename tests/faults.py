"""Faults of ranks and hosts while hvd_nmt.launch trains: what is done, and how long it is felt."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

import toy
from hvd_nmt.checkpoints.names import PRIVATE
from hvd_nmt.common.rank_environment import START_ID
from launched import events

STEPS_OF_A_START = (6, 30)
"""after which a fault comes, at random: at least and at most"""
LOOP = signal.SIGUSR1
SITE = f"""
import signal

def loop(*_):
    while True:
        pass

signal.signal(signal.Signals({int(LOOP)}), loop)
"""
"""of a sitecustomize.py: how every Python of the run answers to `LOOP`"""


@dataclasses.dataclass
class Felt:
    """What became of a fault."""

    kind: str
    rank: int
    step: int
    """the last that was recorded before it"""
    gone_s: float = float("nan")
    """until no process of that start was left on any host"""
    on_s: float = float("nan")
    """until the next start had done a step"""


class Faults:
    """Does them to a run, one after the other; each waits for a start that trains.

    Args:
        run: the launcher, on the first host.
        run_dir: run directory.
        seed: of what is left to chance.
        cut: pulls the cable between the hosts, in one of several ways.
        heal: plugs it in.
    """

    def __init__(
        self, run: toy.Run, run_dir: Path, seed: int,
        cut: dict[str, Callable[[], Any]] | None = None, heal: Callable[[], Any] | None = None,
    ) -> None:  # fmt: skip
        self._run, self._run_dir = run, run_dir
        self._chance = random.Random(seed)
        self._cut, self._heal = cut or {}, heal
        self.felt: list[Felt] = []

    def do(self, kind: str) -> Felt:
        """One of kill, saving, evaluating (killed meanwhile), stop, loop, or the name of a cut."""
        start_id = self._wait_for_steps()
        self._wait_for_moment(kind)
        ranks = self._run.ranks()
        rank = self._chance.randrange(len(ranks))
        felt = Felt(kind, rank, toy.steps_done(self._run_dir))
        began_s = time.monotonic()
        if kind in self._cut:
            self._cut[kind]()
        else:
            number = {"stop": signal.SIGSTOP, "loop": LOOP}.get(kind, signal.SIGKILL)
            with contextlib.suppress(psutil.NoSuchProcess):
                ranks[rank].send_signal(number)
        self._run.wait_for(lambda: not list(_of_start(start_id)))
        felt.gone_s = time.monotonic() - began_s
        self._run.wait_for(lambda: self._steps_of_newest(start_id))
        felt.on_s = time.monotonic() - began_s
        if kind in self._cut and self._heal is not None:
            self._heal()
        self.felt.append(felt)
        return felt

    def _wait_for_steps(self) -> str:
        """Until the newest start has done some; its id."""
        wanted = self._chance.randint(*STEPS_OF_A_START)
        self._run.wait_for(lambda: self._steps_of_newest() >= wanted)
        return str(events_of(self._run_dir, "start")[-1]["start_id"])

    def _wait_for_moment(self, kind: str) -> None:
        if kind == "saving":
            self._wait(lambda: any(self._run_dir.glob(f"{PRIVATE}model*")))
        elif kind == "evaluating":
            self._wait((self._run_dir / "evaluating.json").exists)
            time.sleep(self._chance.random() * 0.3)

    def _wait(self, what: Callable[[], Any]) -> None:
        """As `Run.wait_for`, for what lasts some milliseconds."""
        deadline = time.monotonic() + 300
        while not what():
            assert time.monotonic() < deadline
            assert self._run.process.poll() is None, self._run.stderr
            time.sleep(0.0005)

    def _steps_of_newest(self, other_than: str = "") -> int:
        """How many steps the newest start has done; 0 if it is the other one."""
        started = events_of(self._run_dir, "start")[-1:]
        if not started or started[0]["start_id"] == other_than:
            return 0
        if not (self._run_dir / "metrics.jsonl").exists():
            return 0
        begun = toy.metrics(self._run_dir, "start")[-1:]
        if not begun or begun[0].get("start_id") != started[0]["start_id"]:
            return 0
        return toy.steps_done(self._run_dir) + 1 - int(begun[0]["first_step"])


def events_of(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """What the launcher has recorded of a kind."""
    return [event for event in events(run_dir) if event["kind"] == kind]


def _of_start(start_id: str) -> Iterator[psutil.Process]:
    """Every process of a start, on both hosts, its helpers included."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if (
                process.environ().get(START_ID) == start_id
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                yield process

"""Ranks are killed at bad moments, and hvd_nmt.launch finishes the run as if nothing had been.

    HVD_NMT_FAULTS="kill=70 saving=20 evaluating=10 stop=10 loop=10" pytest -s -k unkilled FILE
    HVD_NMT_CUTS=10 pytest -s -k without_the_other_host FILE

Half a minute for each; without the variables there is one. HVD_NMT_FAULTS_SEED chooses others.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

import toy
from hvd_nmt.checkpoints.names import PRIVATE
from hvd_nmt.common.rank_environment import START_ID
from hvd_nmt.explain.coverage import coverage
from hvd_nmt.records.read import read_run
from launched import events

FAULTS = os.environ.get("HVD_NMT_FAULTS", "saving=1")
CUTS = int(os.environ.get("HVD_NMT_CUTS", "1"))
SEED = int(os.environ.get("HVD_NMT_FAULTS_SEED", "1"))
INTERVAL, STUCK_S = 10, 8
EVALUATED_EVERY = "25" if "evaluating" in FAULTS else "100000"
FOUR = "v100a:2,v100b:2"
PATIENCE_S = 15
"""from the limit of a section, or from a kill, until no process is left"""
STEPS_FOR_A_FAULT = 20
SAME_BITS = (
    "--training.wire", "float32", "--training.hierarchical", "off",
    "--training.islands", "off",
)  # fmt: skip
"""on four ranks, and whatever the link was measured to be at first"""

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


def kinds(text: str) -> list[str]:
    """Such as ["kill", "stop", "kill"] of "kill=2 stop=1"."""
    pairs = (word.split("=") for word in text.split())
    found = [kind for kind, number in pairs for _ in range(int(number))]
    random.Random(SEED).shuffle(found)
    return found


def options(data, steps: int) -> tuple[str, ...]:
    return toy.train_options(
        data, "run", steps, "--checkpoints.every-steps", str(INTERVAL),
        "--evaluation.every-steps", EVALUATED_EVERY,
        "--training.stuck-after-s", str(STUCK_S), *SAME_BITS,
    )  # fmt: skip


def launch(two_hosts, hosts, cwd, data, steps, *words) -> toy.Run:
    """Ranks that loop when they are told to."""
    (cwd / "site").mkdir(parents=True)
    (cwd / "site" / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    found_first = f"{cwd / 'site'}:{toy.environment(cwd)['PYTHONPATH']}"
    command = (
        "python", "-m", "hvd_nmt.launch", "-H", hosts, "--restarts-per-hour", "1000", *words,
        "train", *options(data, steps),
    )  # fmt: skip
    return two_hosts.start(command, cwd, PYTHONPATH=found_first)


def suffered(run: toy.Run, faults: Faults, wanted: list[str]) -> str:
    """Do the faults and wait for the end of the run; what it printed."""
    try:
        for number, kind in enumerate(wanted, 1):
            print(number, faults.do(kind), flush=True)
        done = run.finished(3600)
        left = run.left_behind(PATIENCE_S)
    finally:
        run.kill()
    assert done.returncode == 0, done.stderr
    assert left == []
    return done.stdout


def checksum(stdout: str) -> str:
    return re.findall(r"weights     checksum (0x[0-9a-f]+) equal on", stdout)[-1]


def test_it_ends_at_the_weights_of_an_unkilled_run(two_hosts, host_commands, toy_data, tmp_path):
    wanted = kinds(FAULTS)
    steps = STEPS_FOR_A_FAULT * len(wanted) + 40
    train = (*host_commands.command("hvd_nmt.train"), *options(toy_data, steps))
    unkilled = two_hosts.run((*two_hosts.horovodrun(FOUR), *train), tmp_path, 3600)
    run_dir = tmp_path / "killed" / "run"
    run = launch(two_hosts, FOUR, tmp_path / "killed", toy_data, steps)
    stdout = suffered(run, Faults(run, run_dir), wanted)
    assert checksum(stdout) == checksum(unkilled.stdout)
    ends = events_of(run_dir, "end")
    assert len(ends) == len(wanted) + 1
    lost = [end["step"] - (end["saved_step"] or 0) for end in ends if "step" in end]
    print("steps lost:", sorted(lost))
    assert max(lost) <= 2 * INTERVAL  # one may have been being written
    assert coverage(read_run(run_dir)).faults == ()


def test_it_goes_on_without_the_other_host_and_takes_it_in_again(two_hosts, toy_data, tmp_path):
    wanted = ["cut", "kill"] * CUTS
    run_dir = tmp_path / "run"
    steps = STEPS_FOR_A_FAULT * len(wanted) + 40
    words = ("--min-ranks", "1", "--timeout-s", "10")
    run = launch(two_hosts, "v100a:1,v100b:1", tmp_path, toy_data, steps, *words)
    suffered(run, Faults(run, run_dir, two_hosts), wanted)
    both, alone = {"v100a": 1, "v100b": 1}, {"v100a": 1}
    started = [event["hosts"] for event in events_of(run_dir, "start")]
    assert started == [both, *[alone, both] * CUTS]
    assert coverage(read_run(run_dir)).faults == ()


class Faults:
    """Does them to a run, one after the other; each waits for a start that trains.

    Args:
        run: the launcher, on the first host.
        run_dir: run directory.
        two_hosts: whose cable is pulled.
    """

    def __init__(self, run: toy.Run, run_dir: Path, two_hosts: Any = None) -> None:
        self._run, self._run_dir, self._two_hosts = run, run_dir, two_hosts
        self._chance = random.Random(SEED)

    def do(self, kind: str) -> str:
        """One of kill, saving, evaluating (killed meanwhile), stop, loop, cut; what became of it.

        No process of that start may be left on any host after a while.
        """
        start_id = self._wait_for_steps()
        self._wait_for_moment(kind)
        ranks = self._run.ranks()
        rank = self._chance.randrange(len(ranks))
        step = toy.steps_done(self._run_dir)
        began_s = time.monotonic()
        if kind == "cut":
            self._two_hosts.cut()
        else:
            number = {"stop": signal.SIGSTOP, "loop": LOOP}.get(kind, signal.SIGKILL)
            with contextlib.suppress(psutil.NoSuchProcess):
                ranks[rank].send_signal(number)
        self._run.wait_for(lambda: not list(_of_start(start_id)))
        gone_s = time.monotonic() - began_s
        limit_s = {"stop": 2 * STUCK_S, "loop": 2 * STUCK_S, "cut": 600}.get(kind, 0) + PATIENCE_S
        assert gone_s <= limit_s, (kind, rank, step)
        self._run.wait_for(lambda: self._steps_of_newest(start_id))
        on_s = time.monotonic() - began_s
        if kind == "cut":
            self._two_hosts.heal()
        return f"{kind} of rank {rank} after step {step}: gone in {gone_s:.1f} s, on in {on_s:.1f}"

    def _wait_for_steps(self) -> str:
        """Until the newest start has done some; its id."""
        wanted = self._chance.randint(*STEPS_OF_A_START)
        self._run.wait_for(lambda: self._steps_of_newest() >= wanted)
        return str(events_of(self._run_dir, "start")[-1]["start_id"])

    def _wait_for_moment(self, kind: str) -> None:
        """For what lasts some milliseconds."""
        when = {
            "saving": lambda: any(self._run_dir.glob(f"{PRIVATE}model*")),
            "evaluating": (self._run_dir / "evaluating.json").exists,
        }.get(kind, lambda: True)
        deadline = time.monotonic() + 600
        while not when():
            assert time.monotonic() < deadline
            assert self._run.process.poll() is None, self._run.stderr
            time.sleep(0.0005)
        if kind == "evaluating":
            time.sleep(self._chance.random() * 0.3)

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

"""Ranks are killed at bad moments, and hvd_nmt.launch finishes the run as if nothing had been.

    HVD_NMT_FAULTS="kill=70 saving=20 evaluating=10 stop=10 loop=10" pytest -s -k unkilled FILE
    HVD_NMT_CUTS="cut=10 hole=10" pytest -s -k without_the_other_host FILE

Half a minute for each; without the variables there are a few. HVD_NMT_FAULTS_SEED chooses others.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import pytest

import toy
from faults import SITE, Faults, events_of
from hvd_nmt.explain.coverage import coverage
from hvd_nmt.records.read import read_run

pytestmark = pytest.mark.rig

FAULTS = os.environ.get("HVD_NMT_FAULTS", "saving=1")
CUTS = os.environ.get("HVD_NMT_CUTS", "cut=1")
SEED = int(os.environ.get("HVD_NMT_FAULTS_SEED", "1"))
INTERVAL, STUCK_S = 10, 8
PATIENCE_S = 15
"""from the limit of a section, or from a kill, until no process is left"""
STEPS_FOR_A_FAULT = 20
SAME_BITS = (
    "--training.wire", "float32", "--training.hierarchical", "off",
    "--training.islands", "off",
)  # fmt: skip
"""on four ranks, and whatever the link was measured to be at first"""


def kinds(text: str) -> list[str]:
    """Such as ["kill", "stop", "kill"] of "kill=2 stop=1"."""
    pairs = (word.split("=") for word in text.split())
    found = [kind for kind, number in pairs for _ in range(int(number))]
    random.Random(SEED).shuffle(found)
    return found


def options(data, steps: int) -> tuple[str, ...]:
    return toy.train_options(
        data, "run", steps, "--checkpoints.every-steps", str(INTERVAL),
        "--evaluation.every-steps", "25", "--training.stuck-after-s", str(STUCK_S), *SAME_BITS
    )  # fmt: skip


def launch(two_hosts, cwd, data, steps, *words) -> toy.Run:
    """Two ranks on each host, which loop when they are told to."""
    (cwd / "site").mkdir(parents=True)
    (cwd / "site" / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    environment = toy.environment(cwd) | {"PATH": os.environ["PATH"], "VENV": sys.prefix}
    environment["PYTHONPATH"] = f"{cwd / 'site'}:{environment['PYTHONPATH']}"
    command = two_hosts.command(
        sys.executable, "-m", "hvd_nmt.launch", "-H", "v100a:2,v100b:2", "--restarts-per-hour",
        "1000", *words, "train", *options(data, steps),
    )  # fmt: skip
    return toy.Run(command, cwd, environment)


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


def test_it_ends_at_the_weights_of_an_unkilled_run(two_hosts, toy_data, tmp_path):
    wanted = kinds(FAULTS)
    steps = STEPS_FOR_A_FAULT * len(wanted) + 40
    whole = launch(two_hosts, tmp_path / "whole", toy_data, steps)
    unkilled = suffered(whole, Faults(whole, tmp_path / "whole" / "run", SEED), [])
    run_dir = tmp_path / "killed" / "run"
    run = launch(two_hosts, tmp_path / "killed", toy_data, steps)
    faults = Faults(run, run_dir, SEED)
    stdout = suffered(run, faults, wanted)
    assert checksum(stdout) == checksum(unkilled)
    for felt in faults.felt:
        limit_s = 2 * STUCK_S if felt.kind in ("stop", "loop") else 0
        assert felt.gone_s <= limit_s + PATIENCE_S, felt
    ends = events_of(run_dir, "end")
    assert len(ends) == len(wanted) + 1
    lost = [end["step"] - (end["saved_step"] or 0) for end in ends if "step" in end]
    print("steps lost:", sorted(lost))
    assert max(lost) <= 2 * INTERVAL  # one may have been being written
    found = coverage(read_run(run_dir))
    assert found.faults == ()


def test_it_goes_on_without_the_other_host_and_takes_it_in_again(two_hosts, toy_data, tmp_path):
    wanted = [kind for cut in kinds(CUTS) for kind in (cut, "kill")]
    run_dir = tmp_path / "run"
    steps = STEPS_FOR_A_FAULT * len(wanted) + 40
    run = launch(two_hosts, tmp_path, toy_data, steps, "--min-ranks", "2", "--timeout-s", "10")
    cuts = {"cut": two_hosts.cut, "hole": lose_all}
    two_hosts.changed = True
    suffered(run, Faults(run, run_dir, SEED, cuts, lambda: mend(two_hosts)), wanted)
    both, alone = {"v100a": 2, "v100b": 2}, {"v100a": 2}
    started = [event["hosts"] for event in events_of(run_dir, "start")]
    assert started == [both, *[alone, both] * (len(wanted) // 2)]
    assert coverage(read_run(run_dir)).faults == ()


def lose_all() -> None:
    """Every packet between the hosts, of which neither is told: nobody has that address."""
    for host, other in ("v100a", "10.77.0.2"), ("v100b", "10.77.0.1"):
        words = ("lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
        subprocess.run(["ip", "-n", host, "neigh", "replace", other, *words], check=True)


def mend(two_hosts) -> None:
    for host in two_hosts.names:
        words = ("neigh", "flush", "dev", "eth0", "nud", "permanent")
        subprocess.run(["ip", "-n", host, *words], check=True)
    two_hosts.heal()

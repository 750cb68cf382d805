"""Faults at random ranks and times, and a table of what became of them.

    sudo .venv/bin/python tests/faults.py kill=20 stop=10 loop=10 saving=10 evaluating=10 \\
        launcher=10 agent=10 ssh=10
    sudo .venv/bin/python tests/faults.py link=10
    sudo .venv/bin/python tests/faults.py kill=3 --each-s 120 --steps 15000 --every 100

Two hosts on this machine (launch/two-hosts-on-one.sh), two ranks on each, and a run directory of
its own on each. `hvd_nmt.launch` has to finish the run as an undisturbed one ends (weights, scores,
best models, answers), to name the right culprit each time, and to leave no process. --seed N draws
other ranks and times, --each-s N lets the run alone for so long before each fault, --steps N makes
it as long, --every N saves so often, and evaluates in every fifth of these steps.

kill        SIGKILL of a rank
saving      the same while a checkpoint is written
evaluating  the same in an evaluation
stop        SIGSTOP of a rank
loop        a rank in an endless loop of Python
launcher    SIGKILL of the launcher; the same command goes on
agent       SIGKILL of the agent of a host
ssh         SIGKILL of the ssh to the other host
link        the cable between the hosts is out for 5 to 28 s: nothing may end; not with stop, loop
"""

import contextlib
import dataclasses
import itertools
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import toy
from hvd_nmt import open_run
from hvd_nmt.checkpoints import find
from hvd_nmt.checkpoints.names import PRIVATE, SUFFIXES
from hvd_nmt.common.rank_environment import START_ID
from hvd_nmt.explain.goodput import STEPS
from hvd_nmt.launching.culprit import LOST_HOST_S
from launched import checksum, events

RIG = toy.ROOT / "launch" / "two-hosts-on-one.sh"
STATE = Path("/run/hvd_nmt-two-hosts")
HOSTS, INTERVAL, STUCK_S, GRACE_S = ("v100a", "v100b"), 10, 8, 20
KINDS = ("kill", "saving", "evaluating", "stop", "loop", "launcher", "agent", "ssh", "link")
STEPS_FOR_A_FAULT, STEPS_AT_LAST = 40, 40
MORE_LOST = 10
STEPS_OF_A_START = (6, 30)
"""after which a fault comes, at random: at least and at most"""
TIMELESS = (2, 3, 6, 7, 8, 9)
"""questions about a run whose answers hold no times"""
LOOP = signal.SIGUSR1
SITE = f"""
import signal, time

def loop(*_):
    while True:
        pass

signal.signal(signal.Signals({int(LOOP)}), loop)
"""
"""of a sitecustomize.py: how every Python of the run answers to `LOOP`"""


@dataclass(frozen=True)
class Done:
    """What became of a fault."""

    kind: str
    what: str
    named: bool
    """the launcher said who was the first, and named no other"""
    gone_s: float
    """until no process of the start was left on any host"""
    on_s: float
    """until the first new step"""
    limit_s: float
    lost_steps: int
    orphans: int
    counted_s: float = 0.0
    wall_s: float = 0.0
    """from the fault before; of it `counted_s` in steps that counted"""


class Faulted:
    """A run to which faults are done, one after the other.

    Args:
        folder: a new folder, of which each host sees its own.
        data: prepared.
        steps: of the run.
        seed: draws ranks and times.
        rig: runs the rig's script.
        stuck_s: of `--training.stuck-after-s`.
        every: steps between checkpoints; a fifth as many evaluations.
    """

    def __init__(
        self, folder: Path, data: Path, steps: int, seed: int, rig: Callable[..., object],
        stuck_s: int = STUCK_S, every: int = INTERVAL,
    ) -> None:  # fmt: skip
        self._rig, self._chance, self._every = rig, random.Random(seed), every
        self.work = folder / "work"
        self._others = folder / HOSTS[1]
        for path in (self.work, self._others):
            path.mkdir(parents=True)
        in_its_namespace = ["nsenter", "-m", "-t", (STATE / f"{HOSTS[1]}.pid").read_text().strip()]
        subprocess.run([*in_its_namespace, "mount", "--bind", self._others, self.work], check=True)
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
        self.run_dir = self.work / "run"
        self._options = options(data, steps, stuck_s, every)
        self._environment = toy.environment(folder) | {
            "PATH": os.environ["PATH"], "VENV": sys.prefix, "HVD_NMT_GRACE_S": str(GRACE_S),
            "PYTHONPATH": f"{site}:{toy.environment(folder)['PYTHONPATH']}",
        }  # fmt: skip
        self.run = self._launch()

    def _launch(self) -> toy.Run:
        words = ("-H", "v100a:2,v100b:2", "--restarts-per-hour", "10000")
        command = ("python", "-m", "hvd_nmt.launch", *words, "train", *self._options)
        return toy.Run([os.fspath(RIG), "run", *command], self.work, self._environment)

    def do(self, kind: str) -> Done:
        """One of `KINDS`."""
        start_id = self._wait_for_steps()
        self._wait_for_moment(kind)
        rank = self._chance.randrange(4)
        host = HOSTS[rank // 2] if kind != "ssh" else HOSTS[1]
        step, said_before = toy.steps_done(self.run_dir), len(self.run.stderr)
        began_s = time.monotonic()
        if kind == "link":
            return self._cut(start_id, step)
        self._strike(kind, rank, host, start_id)
        if kind == "launcher":
            self.run.left_behind(600)
        self.run.wait_for(lambda: not list(of_start(start_id)))
        gone_s = time.monotonic() - began_s
        reached = toy.steps_done(self.run_dir)
        if kind == "launcher":
            self.run.process.wait()
            self.run, said_before = self._launch(), 0
        self.run.wait_for(lambda: self._steps_of_newest(start_id))
        on_s = time.monotonic() - began_s
        begun = toy.metrics(self.run_dir, "start")[-1]
        culprit = {
            "stop": f"rank {rank} on {host} is stopped", "loop": f"rank {rank} on {host} hangs",
            "agent": f"{host} is lost: ", "ssh": f"{host} is lost: ", "launcher": "",
        }.get(kind, f"rank {rank} on {host} was killed by SIGKILL")  # fmt: skip
        patience_s = {"stop": 2 * STUCK_S, "loop": 2 * STUCK_S, "launcher": GRACE_S,
                      "ssh": LOST_HOST_S}  # fmt: skip
        limit_s = patience_s.get(kind, 0) + 5.0
        return Done(
            kind, f"rank {rank} on {host} after step {step}",
            _names(self.run.stderr[said_before:], culprit), gone_s, on_s, limit_s,
            max(0, reached - (begun["first_step"] - 1)), len(list(of_start(start_id))),
        )  # fmt: skip

    def _strike(self, kind: str, rank: int, host: str, start_id: str) -> None:
        number = {"stop": signal.SIGSTOP, "loop": LOOP}.get(kind, signal.SIGKILL)
        if kind in ("launcher", "agent", "ssh"):
            (victim,) = (
                process for process in self.run.processes()
                if _is(process, kind) and (kind != "agent" or _host_of(process) == host)
            )  # fmt: skip
        else:
            victim = self.run.ranks(start_id=start_id)[rank]
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(number)

    def _cut(self, start_id: str, step: int) -> Done:
        seconds = self._chance.uniform(5, 28)
        self._rig("cut")
        began_s = time.monotonic()
        time.sleep(seconds)
        self._rig("heal")
        before = toy.steps_done(self.run_dir)
        self.run.wait_for(lambda: toy.steps_done(self.run_dir) > before + 1)
        on_s = time.monotonic() - began_s
        same = events_of(self.run_dir, "start")[-1]["start_id"] == start_id
        what = f"for {seconds:.0f} s after step {step}"
        return Done("link", what, same, 0.0, on_s - seconds, 0.0, 0, 0)

    def _wait_for_steps(self) -> str:
        """Until the newest start has done some; its id."""
        wanted = self._chance.randint(*STEPS_OF_A_START)
        self.run.wait_for(lambda: self._steps_of_newest() >= wanted)
        return str(events_of(self.run_dir, "start")[-1]["start_id"])

    def _wait_for_moment(self, kind: str) -> None:
        """For what lasts some milliseconds."""
        when = {
            "saving": lambda: any(self.run_dir.glob(f"{PRIVATE}model*")),
            "evaluating": self._is_evaluating,
            # A section that has not ended once may take half an hour.
            "loop": lambda: 2 <= toy.steps_done(self.run_dir) % self._every <= 6,
        }.get(kind, lambda: True)
        self.run.wait_for(when, every_s=0.0005)
        time.sleep(self._chance.random() * 0.05)

    def _is_evaluating(self) -> bool:
        """Whether the newest step is evaluated, and the evaluation is not logged yet."""
        done = toy.steps_done(self.run_dir)
        evaluated = [line["step"] for line in toy.metrics(self.run_dir, "eval")]
        return done > 0 and done % (5 * self._every) == 0 and done not in evaluated

    def _steps_of_newest(self, other_than: str = "") -> int:
        """How many steps the newest start has done; 0 if it is the other one."""
        begun = toy.metrics(self.run_dir, "start")[-1] if toy.steps_done(self.run_dir) else {}
        if begun.get("start_id", other_than) == other_than:
            return 0
        return toy.steps_done(self.run_dir) + 1 - int(begun["first_step"])


def options(
    data: Path, steps: int, stuck_s: int = STUCK_S, every: int = INTERVAL
) -> tuple[str, ...]:
    """Of a run with a checkpoint every so many steps, whose bits depend on nothing."""
    return toy.train_options(
        data, "run", steps, "--checkpoints.every-steps", str(every),
        "--evaluation.every-steps", str(5 * every), "--evaluation.sentences", "4",
        "--training.stuck-after-s", str(stuck_s),
    )  # fmt: skip


def kinds(words: Sequence[str], seed: int) -> list[str]:
    """Such as ["kill", "stop", "kill"] of "kill=2" and "stop=1"."""
    pairs = (word.split("=") for word in words)
    found = [kind for kind, number in pairs for _ in range(int(number))]
    assert set(found) <= set(KINDS), found
    random.Random(seed).shuffle(found)
    return found


def events_of(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """What the launcher has recorded of a kind."""
    return [event for event in events(run_dir) if event["kind"] == kind]


def of_start(start_id: str) -> Iterator[psutil.Process]:
    """Every process of a start, on both hosts, its helpers included."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if (
                process.environ().get(START_ID) == start_id
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                yield process


def changed(run_dir: Path, undisturbed: Path) -> dict[str, tuple[object, object]]:
    """What a run recorded, kept and answers otherwise than an undisturbed one, and that one's."""
    ours, theirs = _outcome(run_dir), _outcome(undisturbed)
    return {name: (x, theirs[name]) for name, x in ours.items() if x != theirs[name]}


def _outcome(run_dir: Path) -> dict[str, object]:
    """What no fault may change."""
    run = open_run(run_dir)
    of_clocks = dict.fromkeys(("time_s", "seconds", "keep_s", "goodput"))
    kept = (*find.best_first(run_dir), *find.newest_first(run_dir))
    return {
        "evaluations": [dataclasses.replace(e, **of_clocks) for e in run.evaluations],
        "losses": [(interval.step, interval.loss) for interval in run.intervals],
        "checkpoints": [(one.prefix.name, one.manifest.files[SUFFIXES[0]]) for one in kept],
        "state": str(run.state),
    } | {a.question: (a.answer, a.evidence) for a in run.answers if a.number in TIMELESS}


def table(done: Sequence[Done]) -> str:
    """Of the faults, by kind."""
    lines = [
        "| kind | faults | right culprit | nothing left after s, median (longest) | limit s | "
        "next step after s, median (longest) | steps lost, most | orphans | goodput |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        these = [one for one in done if one.kind == kind]
        if these:
            gone, on = ([getattr(one, name) for one in these] for name in ("gone_s", "on_s"))
            lines.append(
                f"| {kind} | {len(these)} | {sum(one.named for one in these)} | "
                f"{statistics.median(gone):.1f} ({max(gone):.1f}) | {these[0].limit_s:.0f} | "
                f"{statistics.median(on):.1f} ({max(on):.1f}) | "
                f"{max(one.lost_steps for one in these)} | {sum(one.orphans for one in these)} | "
                f"{sum(one.counted_s for one in these) / sum(one.wall_s for one in these):.0%} |"
            )
    return "\n".join(lines)


def _names(said: str, culprit: str) -> bool:
    """Whether that one alone is named in what the launcher said."""
    named = re.findall(r"hvd_nmt\.launch: ((?:rank \d+ on \S+|\S+ is lost).*)", said)
    return bool(culprit == "" or (named and all(one.startswith(culprit) for one in named)))


def _is(process: psutil.Process, kind: str) -> bool:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        if kind == "ssh":
            return os.path.basename(words[0]) == "ssh"
        module = {"launcher": "hvd_nmt.launch", "agent": "hvd_nmt.hosts.agent"}[kind]
        return words[1:3] == ["-m", module]
    return False


def _host_of(process: psutil.Process) -> str:
    done = subprocess.run(
        ["nsenter", "-u", "-t", str(process.pid), "hostname"], capture_output=True, text=True
    )
    return done.stdout.strip()


def main(words: Sequence[str]) -> int:
    """Do them all, print the table, compare the weights."""
    given = dict(itertools.pairwise(words))
    seed, each_s = int(given.get("--seed", 1)), float(given.get("--each-s", 0))
    every = int(given.get("--every", INTERVAL))
    wanted = kinds([word for word in words if "=" in word], seed)
    steps = int(given.get("--steps", STEPS_FOR_A_FAULT * len(wanted) + STEPS_AT_LAST))

    def rig(*arguments: str) -> str:
        environment = {**os.environ, "VENV": sys.prefix}
        return subprocess.check_output([RIG, *arguments], env=environment, text=True)

    found_up = rig("status") != "down\n"
    rig("up")
    os.environ["PATH"] = f"{toy.BIN}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        data = toy.toy_data(Path(folder) / "data")
        began_s, done = time.monotonic(), []
        stuck_s = 120 if "link" in wanted else STUCK_S  # a link that is out looks like a hang
        faulted = Faulted(Path(folder) / "faulted", data, steps, seed, rig, stuck_s, every)
        try:
            for number, kind in enumerate(wanted, 1):
                time.sleep(max(0.0, began_s + number * each_s - time.monotonic()))
                one, spent = faulted.do(kind), open_run(faulted.run_dir).goodput
                counted_s = spent.parts.get(STEPS, 0.0) - sum(before.counted_s for before in done)
                wall_s = spent.wall_s - sum(before.wall_s for before in done)
                one = dataclasses.replace(one, counted_s=counted_s, wall_s=wall_s)
                done.append(one)
                print(f"{number}/{len(wanted)} {one}", flush=True)
            ended = faulted.run.finished(3600)
            assert ended.returncode == 0, ended.stderr
            assert faulted.run.left_behind(5) == []
        finally:
            faulted.run.kill()
            if not found_up:
                rig("down")
        print(table(done))
        print(f"steps {steps:,}, goodput {open_run(faulted.run_dir).goodput}")
        alone = toy.run_train(
            *options(data, steps, every=every), ranks=4, cwd=Path(folder) / "alone"
        )
        same = checksum(ended.stdout) == checksum(alone.stdout)
        print(f"weights equal to those of an undisturbed run: {same}")
        other = changed(faulted.run_dir, Path(folder) / "alone" / "run")
        print("scores, checkpoints and answers: " + ("equal" if not other else f"OTHER: {other}"))
    right = all(
        one.named and not one.orphans and one.lost_steps <= every + MORE_LOST for one in done
    )
    return 0 if same and not other and right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The hosts that were named, and asking all of them at once.

A host is asked over ssh as horovodrun would reach it, but never with a prompt; this machine is
asked without ssh. Each host has its own thread and its own time limit, so one that hangs costs its
limit and nothing more.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.rank_environment import gpus_of_all_hosts, passed
from hvd_nmt.diagnosis.probe import CLOCK, MARK

SSH_FAILED = 255
"""ssh's exit code where ssh itself failed, not the command"""
PROBE = "hvd_nmt.diagnosis.probe"
_CLOCK_ROUNDS = 5
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Host:
    """A host that was asked for."""

    name: str
    slots: int
    """ranks to run there"""


@dataclass(frozen=True)
class Answer:
    """What asking one host gave."""

    host: Host
    facts: dict[str, Any] = field(default_factory=dict)
    """what `probe.facts` says there; {} if there was no answer"""
    error: str | None = None
    """why there was none, in words"""
    reached: bool = True
    """False: the host was not even reached; True with an error: the probe did not run there"""
    seconds: float = 0.0
    """until the answer or the failure"""
    clock_offset_s: float | None = None
    """the host's clock minus ours"""
    clock_error_s: float | None = None
    """how far that may be wrong: half of the shortest round trip"""


def parse(text: str) -> list[Host]:
    """The hosts of "v100a:2,v100b:2"; one slot where none is given.

    Raises:
        ConfigError: a word that is no host, or a host twice.
    """
    found = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, colon, slots = word.partition(":")
        counted = slots.isdecimal() and int(slots) > 0
        if not (_NAME.fullmatch(name) and (counted or not colon)):
            raise ConfigError(
                f"-H has {word!r}: write NAME:SLOTS with commas between, as in v100a:2,v100b:2."
            )
        found.append(Host(name, int(slots or 1)))
    return _each_once(found, "-H")


def read_hostfile(path: Path) -> list[Host]:
    """The hosts of a file with lines "NAME slots=RANKS".

    Raises:
        ConfigError: it cannot be read, or a line is something else, or a host stands twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"The host file {path} cannot be read: {error}.") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = words[1].removeprefix("slots=") if len(words) == 2 else ""
        if not (_NAME.fullmatch(words[0]) and slots.isdecimal() and int(slots)):
            raise ConfigError(
                f"{path} line {number} is {line.strip()!r}, expected: NAME slots=RANKS."
            )
        found.append(Host(words[0], int(slots)))
    return _each_once(found, str(path))


def _each_once(hosts: list[Host], where: str) -> list[Host]:
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{where} names {twice[0]} twice: give its slots in one entry.")
    if not hosts:
        raise ConfigError(f"{where} names no host.")
    inward = [name for name in names if name == "localhost" or name.startswith("127.")]
    if inward and len(hosts) > 1:
        raise ConfigError(
            f"{where} names {inward[0]} beside other hosts, and on each of them that is another "
            "machine: give this one's own name."
        )
    return hosts


def ask(
    hosts: Sequence[Host], request: dict[str, Any], timeout_s: float, module: str = PROBE
) -> list[Answer]:
    """Ask all hosts at the same time what they are.

    Args:
        hosts: whom to ask.
        request: what `probe.facts` gets; the names of all hosts are added.
        timeout_s: for each host, from the start of ssh to the whole answer.
        module: what is run there; it answers by `probe.serve`.

    Returns:
        One answer per host, in their order; a host that hangs has an error.
    """
    answers: dict[str, Answer] = {}
    started: list[subprocess.Popen[str]] = []
    over = threading.Event()
    request = request | {"hosts": [host.name for host in hosts], "deadline_s": 0.7 * timeout_s}

    def one(host: Host) -> None:
        command = command_there(host.name, module, timeout_s)
        answers[host.name] = _ask_one(host, command, request, timeout_s, started, over)

    # Threads that nobody has to wait for: resolving a name cannot be interrupted.
    threads = [threading.Thread(target=one, args=(host,), daemon=True) for host in hosts]
    deadline_s = time.monotonic() + timeout_s + 2.0
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
    finally:
        over.set()
        for process in started:  # none is left, unless the person has had enough
            if process.returncode is None:
                _kill(process)
    late = f"no answer within {timeout_s:g} s"
    return [answers.get(host.name) or Answer(host, {}, late, False, timeout_s) for host in hosts]


def _ask_one(
    host: Host,
    command: list[str],
    request: dict[str, Any],
    timeout_s: float,
    started: list[subprocess.Popen[str]],
    over: threading.Event,
) -> Answer:
    started_s = time.monotonic()
    with tempfile.TemporaryFile() as errors_file:
        try:
            process = subprocess.Popen(
                command, env=passed(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors_file, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Answer(host, error=f"{command[0]}: {error.strerror}", reached=False)
        started.append(process)
        if over.is_set():  # meanwhile: nobody else ends it
            _kill(process)
        timer = threading.Timer(timeout_s, _kill, [process])
        timer.daemon = True
        timer.start()
        clock, facts = None, None
        try:
            clock = _compare_clocks(process)
            facts = _exchange(process, json.dumps(request))
        finally:
            timed_out = not timer.is_alive() and facts is None
            timer.cancel()
            code = _end(process, at_once=facts is not None)
        seconds = time.monotonic() - started_s
        if isinstance(facts, dict) and clock is not None:
            return Answer(host, facts, None, True, seconds, *clock)
        errors_file.seek(0)
        words = errors_file.read().decode(errors="replace").strip().splitlines()
    if timed_out:
        return Answer(host, {}, f"no answer within {timeout_s:g} s", False, seconds)
    reason = words[-1].strip() if words else f"exit code {code}"
    return Answer(host, {}, reason, code != SSH_FAILED, seconds)


def command_there(name: str, module: str, timeout_s: float) -> list[str]:
    """The command that runs a module on a host: directory, Python, environment as of a rank."""
    if is_here(name):
        return [sys.executable, "-m", module]
    variables = passed(os.environ)
    if gpus_of_all_hosts(variables) is None:
        variables.pop("CUDA_VISIBLE_DEVICES", None)
    words = ["env", *(f"{variable}={value}" for variable, value in variables.items())]
    program = shlex.join([*words, sys.executable, "-m", module])
    there = f"cd {shlex.quote(os.getcwd())} && {program}"
    return [
        "ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(timeout_s // 2))}",
        "-o", "ConnectionAttempts=1", name, there,
    ]  # fmt: skip


def is_here(name: str) -> bool:
    """Whether a name is this machine's, as horovodrun sees it: it resolves to an own address."""
    if name in {"localhost", socket.gethostname(), socket.gethostname().partition(".")[0]}:
        return True
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(name, None)}
    except OSError:
        return False
    own = {address.address for nic in psutil.net_if_addrs().values() for address in nic}
    return bool(addresses & own)


def _compare_clocks(process: subprocess.Popen[str]) -> tuple[float, float] | None:
    """The other clock minus ours and half of the round trip, of the shortest of some rounds."""
    best: tuple[float, float] | None = None
    _exchange(process, CLOCK)  # includes the start of ssh and Python
    for _ in range(_CLOCK_ROUNDS):
        sent_s, before_s = time.time(), time.monotonic()
        answer = _exchange(process, CLOCK)
        half_s = (time.monotonic() - before_s) / 2
        if not isinstance(answer, dict):
            return None
        if best is None or half_s < best[1]:
            best = answer["time_s"] - (sent_s + half_s), half_s
    return best


def _exchange(process: subprocess.Popen[str], line: str) -> Any:
    """Send a line and read the answer to it; None if the other end is gone.

    Lines without the mark are skipped: a host's shell may greet.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
        while answer := process.stdout.readline():
            if answer.startswith(MARK):
                return json.loads(answer.removeprefix(MARK))
    except (OSError, ValueError):
        pass
    return None


def _end(process: subprocess.Popen[str], at_once: bool) -> int:
    """Close the pipes, wait a moment for a process that is failing by itself; its exit code."""
    for stream in filter(None, (process.stdin, process.stdout)):
        with contextlib.suppress(OSError):
            stream.close()
    try:
        return process.wait(timeout=0.5 if at_once else 2.0)
    except subprocess.TimeoutExpired:
        _kill(process)
        return process.wait()


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)

"""One start of the ranks: horovodrun, until it ends, with the signals that are passed on to it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, final

from hvd_nmt.common.rank_environment import LAUNCHER, START_ID, rank_environment
from hvd_nmt.diagnosis.hosts import Host

_HOROVODRUN = Path(__file__).with_name("horovodrun.py")
_SENTENCE = re.compile(rb"hvd_nmt[\w.]*: .+")
_STDERR = 2
_LAST_WORDS_S = 5.0
"""for what was written before the end to be read; somebody else may hold the pipe open"""


@final
class StopSignals:
    """SIGTERM, SIGINT, SIGHUP: passed on to the ranks; where there are none, they interrupt."""

    def __init__(self) -> None:
        self.requested = False
        """whether one has come"""
        self._interrupts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._interrupting = False

    @property
    def at_once(self) -> bool:
        """Whether SIGINT has come a second time: whoever sent it does not want to wait."""
        return self._interrupts > 1

    def listen(self) -> None:
        """From now on."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) == signal.SIG_DFL:  # no nohup
                signal.signal(number, self._ask)

    @contextlib.contextmanager
    def passed_on(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """In the block, to a process."""
        self._process = process
        if self.requested:  # it came just before
            process.terminate()
        try:
            yield
        finally:
            self._process = None

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """In the block they raise KeyboardInterrupt, at its beginning if one has come before."""
        self._interrupting = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._interrupting = False

    def _ask(self, number: int, frame: Any) -> None:
        self.requested = True
        self._interrupts += number == signal.SIGINT
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
        elif self._interrupting or self.at_once:
            raise KeyboardInterrupt


def words(hosts: Sequence[Host], nic: str, command: Sequence[str]) -> list[str]:
    """The words of horovodrun; the number of slots is exactly that of ranks.

    Args:
        hosts: hosts and their ranks.
        nic: network card of one name on all of them; without, horovodrun would look for one with
            services that listen on every address.
        command: what every rank runs.
    """
    return [
        sys.executable, os.fspath(_HOROVODRUN), "-np", str(sum(host.slots for host in hosts)),
        "-H", named(hosts), "--disable-cache", "--network-interface", nic, *command,
    ]  # fmt: skip


def named(hosts: Sequence[Host]) -> str:
    """Hosts and slots, as for -H."""
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def environment(hosts: Sequence[Host], start_id: str) -> dict[str, str]:
    """All variables of a start: those that a rank may get, and which start it is."""
    return rank_environment(sum(host.slots for host in hosts)) | {START_ID: start_id}


def run(words: Sequence[str], environment: dict[str, str], stop: StopSignals) -> tuple[int, str]:
    """Start horovodrun and wait for its end.

    It has a session of its own: Ctrl-C reaches it once, through `stop`.

    Args:
        words: its command line.
        environment: all its variables.
        stop: passes signals on.

    Returns:
        Its exit code, as shells say it, and the sentence that it said last, "" if none.
    """
    process = subprocess.Popen(
        words, env=environment | {LAUNCHER: str(os.getpid())}, stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    said: list[str] = []
    with stop.passed_on(process):
        assert process.stderr is not None
        copier = threading.Thread(target=_copy, args=(process.stderr, said), daemon=True)
        copier.start()
        code = process.wait()
    copier.join(_LAST_WORDS_S)
    return code if code >= 0 else 128 - code, said[-1] if said else ""


def _copy(lines: IO[bytes], said: list[str]) -> None:
    """Lines to this process's stderr; keeps sentences, which ranks' own lines are not."""
    for line in lines:
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(_STDERR, line)
        if _SENTENCE.match(line):
            said[:] = [line.decode(errors="replace").strip()]

"""Ends a rank that is stuck, or that launcher or peers have left behind: a process beside it.

A rank that is stopped, or waits in NCCL or for a file server that is gone, cannot end itself, and
keeps its GPU and the run's lock. On other hosts horovodrun ends only its ssh, of which the rank
learns nothing.

    python -I -S watchdog.py PAGE GRACE_S RANK PARENT ...    process ids: the rank's, its ancestors'

PAGE is the number of an open file, in which the rank's `Heartbeat` says until when it must have
come further. A rank that has not prints where each of its threads is, and is killed.

Where one of the ancestors has ended, up to the launcher, SIGTERM asks the rank to save and end. A
rank that is there GRACE_S later, or so long after a connection with a peer has ended, is killed.
Standard input is a socket: its end says that the rank has ended, its messages bring connections.
A rank that Gloo aborts because a peer is gone cannot pass that on; its watchdog does it then.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import math
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_LOOK_S = 1.0
"""how often the ancestors are looked at"""
_FROZEN_S = 10.0
"""between two looks: this process did not run meanwhile"""
_LAUNCHER = "horovodrun"
_SHELLS = {"sh", "ash", "bash", "busybox", "csh", "dash", "ksh", "tcsh", "zsh"}
_CONNECTIONS, _NONE = b"C", b"0"
_CONNECTIONS_IN_MESSAGE = 100
"""the kernel takes 253"""
_MESSAGE_BYTES = 1024
_STDERR = 2
_NEWS_S = 0.5
"""from the end of a rank, until an end of a peer that was its cause is noticed here"""

PAGE_BYTES = 512
DEADLINES = struct.Struct("ddd")
"""at the beginning of the page, on the monotonic clock: when the rank must have come further, when
it must if it is stopped, and when it came to where it is; what to say then follows"""
SECONDS = "SECONDS"
"""in what to say: place of the time that has passed"""
_STACKS = signal.SIGUSR2
"""has a rank print where its threads are"""
_STACKS_S = 0.5

Connection = tuple[socket.socket, bytes]
"""with a peer, and the note that tells others of its end; all notes have one length"""


class Watchdog:
    """The process that watches this one, until this one ends.

    Args:
        grace_s: what this process has to end by itself, once it is left behind.
    """

    def __init__(self, grace_s: float) -> None:
        line = [os.getpid(), *_ancestors(os.getpid())]
        faulthandler.register(_STACKS, file=_STDERR)
        page = os.memfd_create("heartbeat")
        os.truncate(page, PAGE_BYTES)
        self.page = mmap.mmap(page, PAGE_BYTES)
        """see `Heartbeat`"""
        self.page[: DEADLINES.size] = DEADLINES.pack(math.inf, math.inf, 0.0)
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            # Its session is its own: whoever stops the rank with Ctrl-Z does not stop it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *map(str, (page, grace_s, *line))],
                cwd="/", stdin=its.fileno(), stdout=subprocess.DEVNULL, pass_fds=[page],
                start_new_session=True,
            )  # fmt: skip
        os.close(page)

    def watch(self, connections: Sequence[Connection]) -> None:
        """The connections with peers, in place of earlier ones; none: peers may end."""
        with contextlib.suppress(OSError):  # somebody has ended the watchdog
            self._control.send(_NONE)
            for first in range(0, len(connections), _CONNECTIONS_IN_MESSAGE):
                some = connections[first : first + _CONNECTIONS_IN_MESSAGE]
                files, notes = zip(*((link.fileno(), note) for link, note in some), strict=True)
                socket.send_fds(self._control, [_CONNECTIONS, *notes], list(files))


def _ancestors(pid: int) -> list[int]:
    """Parent, its parent and so on, up to the launcher: horovodrun, else the first but a shell.

    That is sshd on other hosts than horovodrun's. An sshd further above is of a login.
    """
    pids: list[int] = []
    names: list[str] = []
    while pid > 1 and _LAUNCHER not in names:
        pid = _parent(pid)
        pids.append(pid)
        names.append(_name(pid))
    if _LAUNCHER in names:
        return pids
    others = (index for index, name in enumerate(names) if name not in _SHELLS)
    # No launcher is process 1, which outlives them all and takes over their children.
    return [pid for pid in pids[: next(others, -1) + 1] if pid > 1]


def _parent(pid: int) -> int:
    """Process id of the parent; 0: there is none, or none that can be seen."""
    facts = _facts(pid)
    return int(facts[1]) if facts else 0


def _facts(pid: int) -> list[str]:
    """State, parent and so on of a process; none where it cannot be seen."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return text.rpartition(")")[2].split()  # the name before may hold anything
    return []


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def _main(page: mmap.mmap, grace_s: float, line: list[int]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its rank
    control = socket.socket(fileno=0)
    connections: list[Connection] = []
    orphan, ends_s = False, None
    patience = _Patience(page, line)
    while ends_s is None or time.monotonic() < ends_s:
        ready = _ready(control, connections if ends_s is None else [], _LOOK_S)
        if control in ready:
            message, files, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, _CONNECTIONS_IN_MESSAGE)
            if not message:
                _tell_the_others(connections)
                os._exit(0)  # at once: peers see no end of the connections before
            length = (len(message) - 1) // max(1, len(files))
            for index, file in enumerate(files):
                note = message[1 + index * length :][:length]
                connections.append((socket.socket(fileno=file), note))
            if message == _NONE:
                connections, ready = [], []
                ends_s = ends_s if orphan else None
        elif ready and ends_s is None:
            ends_s = time.monotonic() + grace_s
        if not orphan and _has_lost_its_parent(line):
            orphan = True
            _signal(line[0], signal.SIGTERM)
            ends_s = ends_s or time.monotonic() + grace_s
        if patience.has_ended():
            _signal(line[0], _STACKS)
            time.sleep(_STACKS_S)
            _say(f"hvd_nmt.train: {patience.text}")
            break
    _signal(line[0], signal.SIGKILL)


class _Patience:
    """Whether the rank has not come further for longer than its page allows.

    Args:
        page: of its heartbeat.
        line: process ids of the rank and its ancestors.
    """

    def __init__(self, page: mmap.mmap, line: list[int]) -> None:
        self.text = ""
        """what there is to say"""
        self._page, self._rank, self._launchers = page, line[0], line[1:]
        self._deadline_s, self._looked_s = math.inf, time.monotonic()
        self._stopped_s = 0.0

    def has_ended(self) -> bool:
        """Look; to be called about every `_LOOK_S`."""
        deadline_s, if_stopped_s, began_s = DEADLINES.unpack(self._page[: DEADLINES.size])
        before_s, self._looked_s = self._looked_s, time.monotonic()
        if deadline_s != self._deadline_s:  # seen twice, it was not read while it was written
            self._deadline_s, self._stopped_s = deadline_s, 0.0
            return False
        passed_s = self._looked_s - before_s
        # By a person, who may let the run go on; or this process was itself, with all of them.
        if any(map(_is_stopped, self._launchers)) or passed_s > _FROZEN_S:
            self._stopped_s += passed_s
        text = self._page[DEADLINES.size :].rstrip(b"\0").decode(errors="replace")
        self.text = text.replace(SECONDS, f"{self._looked_s - began_s:,.0f} s")
        # Others wait for it in the same section, until the later deadline.
        deadline_s = if_stopped_s if _is_stopped(self._rank) else deadline_s
        return self._looked_s > deadline_s + self._stopped_s


def _is_stopped(pid: int) -> bool:
    return _facts(pid)[:1] == ["T"]


def _say(text: str) -> None:
    """On the rank's stderr, of which nobody may read any more."""
    words = threading.Thread(target=os.write, args=(_STDERR, text.encode() + b"\n"), daemon=True)
    words.start()
    words.join(1.0)


def _has_lost_its_parent(line: list[int]) -> bool:
    """Whether the kernel gave any of them another parent, as it does when one ends."""
    return any(_parent(pid) not in (above, 0) for pid, above in itertools.pairwise(line))


def _tell_the_others(connections: list[Connection]) -> None:
    """The rank has ended: of a peer that ended before."""
    if len(connections) > 1 and (ended := _ready(None, connections, _NEWS_S)):
        note = next(note for link, note in connections if link is ended[0])
        for link, _ in connections:
            with contextlib.suppress(OSError):
                link.send(note, socket.MSG_DONTWAIT)


def _ready(
    control: socket.socket | None, connections: list[Connection], timeout_s: float
) -> list[socket.socket]:
    """The control, if it has something to say, and ended connections; within the time, or none."""
    poll = select.poll()
    sockets = [link for link, _ in connections]
    for link in sockets:
        poll.register(link, select.POLLRDHUP)  # what a peer says is for the rank
    if control is not None:
        sockets.append(control)
        poll.register(control, select.POLLIN)
    files = {file for file, _ in poll.poll(timeout_s * 1000)}
    return [one for one in sockets if one.fileno() in files]


def _signal(rank: int, number: int) -> None:
    """The rank is this process's parent for as long as it lives: another may get its number."""
    if os.getppid() == rank:
        os.kill(rank, number)


if __name__ == "__main__":
    numbers = [int(word) for word in (sys.argv[1], *sys.argv[3:])]
    _main(mmap.mmap(numbers[0], PAGE_BYTES), float(sys.argv[2]), numbers[1:])

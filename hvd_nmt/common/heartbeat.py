"""What a rank does, and until when it may, on a page for its agent: one that hangs says nothing."""

import contextlib
import faulthandler
import math
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from hvd_nmt.common.rank_environment import HEARTBEAT

START, INPUT, STEP, CALLBACKS = "start-up", "input of a step", "step", "callbacks after a step"
CHECKPOINT, EVALUATION, EXCHANGE, END = "checkpoint", "evaluation", "exchange", "end"
COMPILATION = "step in which XLA compiles a program"
LOST = "loss of another rank"
"""the last section of a rank that ends because another did"""
STACKS = signal.SIGUSR2
"""has a rank print where its threads are, once its page has a section"""
SHORTEST_S, LONGEST_S = 120.0, 1800.0
MEMORY = "heartbeat"
"""name of the open file of a page"""
PAGE = struct.Struct("3d?62pB")
"""layout of a `RankState`, `asked` last: agents of earlier versions read the rest"""
_FACTOR = 10.0
_PATIENCE_WITH_OTHERS = 2.0
"""multiple of the limit of a rank that waits: the one it waits for reaches its limit first"""


class RankState(NamedTuple):
    """What a page says; times are of the host's monotonic clock."""

    deadline_s: float
    """time when the rank must have come further"""
    stopped_deadline_s: float
    """the same, if it is stopped"""
    began_s: float
    """time when it came to where it is"""
    waits: bool
    """whether it waits for other ranks"""
    section: str
    """name of the section; "" before the first"""
    asked: int
    """number of the signal that asked it to stop, 0: none has"""


def read(page: mmap.mmap) -> RankState:
    """What a page says; never half of it."""
    data = page[: PAGE.size]
    while data != (again := page[: PAGE.size]):
        data = again
    *values, section, asked = PAGE.unpack(data)
    return RankState._make([*values, section.decode(errors="replace"), asked])


class Heartbeat:
    """The signs of life of this rank."""

    def __init__(self) -> None:
        self.limit_s: float | None = 0.0
        """limit of a section that has ended once; 0: none, as outside of a run; None: learned"""
        self.asked = 0
        """number of the signal that asked this rank to stop, 0: none has"""
        self._page: mmap.mmap | None = None
        self._section, self._waits, self._began_s = START, False, time.monotonic()
        self._longest_s: dict[str, float] = {}
        self._ended: set[str] = set()

    @property
    def is_read(self) -> bool:
        """Whether an agent reads it, which then also says why a run ends."""
        return self._page is not None

    def begin(self) -> None:
        """Use the page that an agent has given to this process, if one has."""
        if self._page is None and HEARTBEAT in os.environ:
            file = int(os.environ.pop(HEARTBEAT))
            if not os.path.realpath(f"/proc/self/fd/{file}").startswith(f"/memfd:{MEMORY}"):
                return  # it was given to the process that started this one
            self._page = mmap.mmap(file, PAGE.size)
            os.close(file)
            faulthandler.register(STACKS)
            self.sign()

    def enter(self, section: str, waits: bool = False) -> None:
        """A section begins, in which this rank may wait for others; the one before has ended."""
        if section != self._section:
            self._ended.add(self._section)
        self._go_on_in(section, waits)

    def sign(self) -> None:
        """A sign of life: the time of the section begins again."""
        self.enter(self._section, self._waits)

    @contextlib.contextmanager
    def limited(self, limit_s: float | None) -> Iterator[None]:
        """The block is a run, which begins with its start-up; for `limit_s` see the attribute."""
        self.limit_s = limit_s
        self.enter(START)
        try:
            yield
        finally:
            self.limit_s = LONGEST_S if self.is_read else 0.0  # the process may live on
            self.sign()

    @contextlib.contextmanager
    def section(self, name: str, waits: bool = False) -> Iterator[None]:
        """A section inside of another, which continues after the block."""
        outer = self._section, self._waits
        self._go_on_in(name, waits)
        try:
            yield
        finally:
            self.enter(*outer)

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """In the block this rank waits for others, in the section that it is in."""
        return self.section(self._section, waits=True)

    def _go_on_in(self, section: str, waits: bool) -> None:
        now_s = time.monotonic()
        longest_s = self._longest_s.get(self._section, 0.0)
        self._longest_s[self._section] = max(longest_s, now_s - self._began_s)
        self._section, self._waits, self._began_s = section, waits, now_s
        if self._page is None:
            return
        limit_s = self._limit_s()
        patience = _PATIENCE_WITH_OTHERS if waits else 1.0
        stopped_s = limit_s if self.limit_s == 0 else min(limit_s, self.limit_s or SHORTEST_S)
        times_s = now_s + limit_s * patience, now_s + stopped_s, now_s
        self._page[: PAGE.size] = PAGE.pack(*times_s, waits, section.encode(), self.asked)

    def _limit_s(self) -> float:
        """The longest until a section has ended once; file servers stall, XLA's programs differ."""
        if self.limit_s == 0:
            return math.inf
        learned_s = _FACTOR * self._longest_s.get(self._section, 0.0)
        limit_s = self.limit_s or min(max(SHORTEST_S, learned_s), LONGEST_S)
        stalls = self._section == CHECKPOINT and self.limit_s is None
        if stalls or self._section == COMPILATION or self._section not in self._ended:
            limit_s = max(limit_s, LONGEST_S)
        return limit_s

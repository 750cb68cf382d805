"""What a rank does, and until when it may: written into a page that its watchdog reads.

A rank that hangs, in a loop, in a driver or on a file server that is gone, cannot say so, and the
others wait for it without end. So each section of a run has a limit, learned from the run itself:

    10 times the longest it took before in this start, at least 2 minutes and at most 30
    30 minutes until it has ended once, and of a checkpoint always, for file servers stall, and of
    a step in which XLA compiles, for programs differ
    twice that where a rank waits for others, so that the one they wait for is found first: one that
    is stopped (SIGSTOP) has no longer than if it did not wait

Every collective outside of a step is a sign of life: the time of its section begins anew.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import time
from collections.abc import Iterator

from hvd_nmt.training.watchdog import DEADLINES, PAGE_BYTES, SECONDS

START, INPUT, STEP, CALLBACKS = "start-up", "input of a step", "step", "callbacks after a step"
CHECKPOINT, EVALUATION, EXCHANGE, END = "checkpoint", "evaluation", "exchange", "end"
COMPILATION = "step in which XLA compiles a program"
_TEXT_BYTES = PAGE_BYTES - DEADLINES.size
_FACTOR, _SHORTEST_S, _LONGEST_S = 10.0, 120.0, 1800.0
_PATIENCE_WITH_OTHERS = 2.0


class Heartbeat:
    """The signs of life of this rank; without a page nobody is told of them."""

    def __init__(self) -> None:
        self.page: mmap.mmap | None = None
        """shared with the watchdog"""
        self.limit_s: float | None = 0.0
        """of each section that has ended once; 0: none, as outside of a run. None: it is learned"""
        self.who = "A rank"
        """rank and host, as a sentence begins"""
        self._section, self._waits, self._began_s = START, False, time.monotonic()
        self._longest_s: dict[str, float] = {}
        self._ended: set[str] = set()

    def enter(self, section: str, waits: bool = False) -> None:
        """A section begins, and the one before has ended.

        Args:
            section: its name.
            waits: whether this rank waits for others in it.
        """
        if section != self._section:
            self._ended.add(self._section)
        self._go_on_in(section, waits)

    def sign(self) -> None:
        """A sign of life: the time of the section begins anew."""
        self.enter(self._section, self._waits)

    @contextlib.contextmanager
    def limited(self, limit_s: float | None) -> Iterator[None]:
        """The block is a run, which begins with its start-up.

        Args:
            limit_s: of each section that has ended once; 0: none. None: it is learned.
        """
        self.limit_s = limit_s
        self.enter(START)
        try:
            yield
        finally:
            self.limit_s = 0.0  # whoever called may live on
            self.sign()

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """A section inside of another, which goes on after the block."""
        outer, waits = self._section, self._waits
        self._go_on_in(name, waits=False)
        try:
            yield
        finally:
            self.enter(outer, waits)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """In the block this rank waits for others, whatever its section is."""
        waits = self._waits
        self.enter(self._section, waits=True)
        try:
            yield
        finally:
            self.enter(self._section, waits)

    def _go_on_in(self, section: str, waits: bool) -> None:
        now_s = time.monotonic()
        longest_s = self._longest_s.get(self._section, 0.0)
        self._longest_s[self._section] = max(longest_s, now_s - self._began_s)
        self._section, self._waits, self._began_s = section, waits, now_s
        if self.page is None:
            return
        limit_s = self._limit_s()
        patience = _PATIENCE_WITH_OTHERS if waits else 1.0
        times_s = now_s + limit_s * patience, now_s + limit_s, now_s
        self.page[: DEADLINES.size] = DEADLINES.pack(*times_s)
        if limit_s < math.inf:
            text = (
                f"{self.who} has done nothing for {SECONDS} in the section {section!r}, "
                "where it should long be done: it counts as stuck and is killed."
            ).encode()
            self.page[DEADLINES.size :] = text[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")

    def _limit_s(self) -> float:
        if self.limit_s == 0:
            return math.inf
        learned_s = _FACTOR * self._longest_s.get(self._section, 0.0)
        limit_s = self.limit_s or min(max(_SHORTEST_S, learned_s), _LONGEST_S)
        stalls = self._section == CHECKPOINT and self.limit_s is None
        if stalls or self._section == COMPILATION or self._section not in self._ended:
            limit_s = max(limit_s, _LONGEST_S)
        return limit_s

"""JSON lines between the launcher and an agent: who sends never waits, who listens has a thread."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable
from typing import IO, Any

Message = dict[str, Any]


class Channel:
    """Both directions of a connection.

    Args:
        incoming: what the other side writes.
        outgoing: what it reads.
        hear: gets each message; None: the other side is gone. Called in one thread.
    """

    def __init__(
        self,
        incoming: IO[bytes],
        outgoing: IO[bytes],
        hear: Callable[[Message | None], None],
    ) -> None:
        self._incoming, self._outgoing, self._hear = incoming, outgoing, hear
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message) -> None:
        """Send it when the other side reads; nothing happens where that is gone."""
        self._unsent.put(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """The other side sees the end of this one, after what was sent."""
        self._unsent.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until both sides have ended, but not for longer."""
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._incoming:
                with contextlib.suppress(ValueError):  # a host's shell may greet
                    message = json.loads(line)
                    if isinstance(message, dict):
                        self._hear(message)
        self._incoming.close()
        self._hear(None)

    def _write(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (line := self._unsent.get()) is not None:
                self._outgoing.write(line)
                self._outgoing.flush()
        with contextlib.suppress(OSError, ValueError):
            self._outgoing.close()

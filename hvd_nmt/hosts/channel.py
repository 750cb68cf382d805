"""Messages between two processes: JSON objects, one a line, read and written in threads."""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable
from typing import IO, Any, final

Message = dict[str, Any]


@final
class Channel:
    """Both directions; `receive` gets each message in a thread, None: the other side has ended."""

    def __init__(
        self, incoming: IO[bytes], outgoing: IO[bytes], receive: Callable[[Message | None], None]
    ) -> None:
        self._incoming, self._outgoing, self._receive = incoming, outgoing, receive
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message) -> None:
        """Send a message once the other side reads; it is lost if that has ended."""
        self._unsent.put(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """End this side, after what was sent."""
        self._unsent.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until both sides have ended, but no longer than `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._incoming:
            for line in self._incoming:
                with contextlib.suppress(ValueError):  # a host's shell may greet
                    message = json.loads(line)
                    if isinstance(message, dict):
                        self._receive(message)
        self._receive(None)

    def _write(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._outgoing:
            while (line := self._unsent.get()) is not None:
                self._outgoing.write(line)
                self._outgoing.flush()

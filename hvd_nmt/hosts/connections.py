"""The connections of a command to its hosts, and what all hosts report when they are asked."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, final

from hvd_nmt.hosts.channel import Message
from hvd_nmt.hosts.connection import Connection
from hvd_nmt.hosts.facts import HostFacts
from hvd_nmt.hosts.host_list import Host
from hvd_nmt.hosts.transport import SILENCE_S


@final
class Connections(contextlib.AbstractContextManager["Connections"]):
    """One to each host, opened when it is needed.

    Args:
        timeout_s: seconds from the start of a connection to an answer.
        receive: see `Connection`.
    """

    def __init__(
        self,
        timeout_s: float,
        receive: Callable[[Connection, Message | None], None] = lambda connection, message: None,
    ) -> None:
        self.timeout_s = timeout_s
        self._receive = receive
        self._by_host: dict[str, Connection] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._keep_alive, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for connection in self._by_host.values():
            connection.close()

    def to(self, host: Host) -> Connection:
        """The connection to a host; ClusterError: there is no ssh here."""
        connection = self._by_host.get(host.name)
        if connection is None or not connection.is_open:
            connection = Connection(host, self.timeout_s, self._receive)
            self._by_host[host.name] = connection
        return connection

    def drop(self, name: str) -> None:
        """Forget a host's agent: the next question starts another."""
        if connection := self._by_host.pop(name, None):
            connection.kill()

    def ask(self, hosts: Sequence[Host], request: dict[str, Any]) -> list[HostFacts]:
        """Ask all hosts at once: an answer per host, in their order, with an error if it hangs."""
        until_s = time.monotonic() + self.timeout_s
        names = [host.name for host in hosts]
        request = request | {"hosts": names, "deadline_s": 0.7 * self.timeout_s}
        replies = [self.to(host).request("facts", request=request) for host in hosts]
        return [
            self._facts(host, reply, until_s) for host, reply in zip(hosts, replies, strict=True)
        ]

    def _facts(self, host: Host, reply: Future[Message], until_s: float) -> HostFacts:
        try:
            message = reply.result(max(0.0, until_s - time.monotonic()))
            facts = message["facts"]
            if "error" in facts:
                raise ConnectionError(facts["error"])
        except (ConnectionError, TimeoutError) as error:
            self.drop(host.name)
            return HostFacts(host, {}, str(error) or f"no answer within {self.timeout_s:g} s")
        return HostFacts(host, facts, clock_differs_s=abs(message["received_s"] - facts["time_s"]))

    def _keep_alive(self) -> None:
        """In a thread: an agent that receives nothing takes its launcher for lost."""
        while not self._closed.wait(5.0):
            for connection in list(self._by_host.values()):
                if connection.is_remote:
                    connection.tell("alive", limit_s=SILENCE_S)

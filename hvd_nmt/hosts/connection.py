"""Connections of a command to the agents of its hosts, which start with them."""

import contextlib
import itertools
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, final

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.common.rank_environment import are_numbers, passed
from hvd_nmt.common.signals import signal_name
from hvd_nmt.hosts.channel import Channel, Message
from hvd_nmt.hosts.facts import HostFacts
from hvd_nmt.hosts.host_list import Host
from hvd_nmt.hosts.transport import SILENCE_S, transport_to

AGENT = f"{__package__}.agent"
_END_S = 2.0
"""seconds for an agent to end"""
# Its environment comes on standard input: any user can read command lines. It reads one line and no
# byte more. A choice of GPUs that the host has is kept.
_BECOME_AGENT = (
    "import json,os,sys;"
    'line=b"".join(iter(lambda:os.read(0,1)or b"\\n",b"\\n"));'
    "own={n:v for n,v in os.environ.items() if n=='CUDA_VISIBLE_DEVICES'};"
    f'os.execve(sys.executable,[sys.executable,"-m","{AGENT}"],'
    "{**os.environ,**json.loads(line),**own})"
)
Receive = Callable[["Connection", Message | None], None]


@final
class Connection:
    """An agent on a host, until `close`; the transport has `timeout_s` to connect.

    `receive` gets what the agent sends unasked, in a thread; None: it has ended.
    """

    def __init__(self, host: Host, timeout_s: float, receive: Receive) -> None:
        self.host = host
        self.is_open = True
        self.received_s = time.monotonic()
        """time of its last message, on the monotonic clock"""
        self.why_ended = ""
        """the reason of its end, in words"""
        self._receive = receive
        self._numbers = itertools.count()
        self._unanswered: dict[int, Future[Message]] = {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        transport, variables = transport_to(host.name), passed(os.environ)
        become_agent = shlex.join([sys.executable, "-c", _BECOME_AGENT])
        shell_line = f"cd {shlex.quote(os.getcwd())} && exec {become_agent}"
        command = transport.command(host.name, shell_line, timeout_s)
        self.is_remote = transport.is_remote
        self._program = command[0] if self.is_remote else "agent"
        try:
            self._process = subprocess.Popen(
                command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ClusterError(f"{command[0]} cannot be started: {error.strerror}.") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._channel = Channel(self._process.stdout, self._process.stdin, self._sort)
        if not are_numbers(variables.get("CUDA_VISIBLE_DEVICES", "")):  # names of GPUs here
            variables.pop("CUDA_VISIBLE_DEVICES")
        self._channel.send(variables)

    def tell(self, do: str, **values: Any) -> None:
        """Send a request that has no answer."""
        self._channel.send({"do": do, **values})

    def request(self, do: str, **values: Any) -> Future[Message]:
        """Ask without waiting; the answer, or a ConnectionError with the reason for none."""
        answer: Future[Message] = Future()
        number = next(self._numbers)
        self._unanswered[number] = answer
        self._channel.send({"do": do, "id": number, **values})
        if not self.is_open:
            self._fail_all()
        return answer

    def close(self) -> None:
        """Let the agent end what it started, and itself; no one waits for what takes long."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        if self.is_remote or self._process.returncode is not None:
            self.kill()  # the transport; the agent continues

    def kill(self) -> None:
        """End the agent, or the transport to it, at once."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()
        self._channel.join(_END_S)
        self._errors.close()

    def _sort(self, message: Message | None) -> None:
        """An answer goes to its request, all else to `receive`."""
        self.received_s = time.monotonic()
        if message is None:
            self.why_ended = self._reason_of_end()
            self.is_open = False
            self._fail_all()
        elif "id" in message:
            answer = self._unanswered.pop(message["id"], None)
            if answer is not None:
                answer.set_result(message | {"received_s": time.time()})
            return
        self._receive(self, message)

    def _reason_of_end(self) -> str:
        """The last line on stderr of the transport or the agent, or the exit code."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "the connection was closed"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="backslashreplace").strip().splitlines()
        if lines and code > 0:
            return lines[-1].strip()
        if code < 0:
            return f"its {self._program} was killed by {signal_name(-code)}"
        return f"its agent ended with code {code}"

    def _fail_all(self) -> None:
        while self._unanswered:
            with contextlib.suppress(KeyError):  # another thread does the same
                _, answer = self._unanswered.popitem()
                answer.set_exception(ConnectionError(self.why_ended))


@final
class Connections(contextlib.AbstractContextManager["Connections"]):
    """One to each host, when it is needed; it has `timeout_s` until an answer is there."""

    def __init__(self, timeout_s: float, receive: Receive = lambda *_: None) -> None:
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
        names = [host.name for host in hosts]
        request = request | {"hosts": names, "deadline_s": 0.7 * self.timeout_s}
        replies = [self.to(host).request("facts", request=request) for host in hosts]
        wait(replies, self.timeout_s)
        return [self._facts(host, reply) for host, reply in zip(hosts, replies, strict=True)]

    def _facts(self, host: Host, reply: Future[Message]) -> HostFacts:
        try:
            message = reply.result(0)
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

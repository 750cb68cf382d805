"""A host that can be asked: an agent runs there, as a child of this process or through ssh.

What the agent gets, variables too, comes on standard input: any user can read command lines.
"""

import contextlib
import itertools
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import IO, Any

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.common.rank_environment import are_numbers, passed
from hvd_nmt.common.signals import signal_name
from hvd_nmt.diagnosis.hosts import Host, HostFacts, is_here

AGENT = "hvd_nmt.launching.agent"
SILENCE_S = 360.0
"""after which a host is lost; Gloo gives its peers 300 s"""
_END_S = 2.0
# Reads one line with its environment and no byte more, and becomes the agent.
_BECOME_AGENT = (
    "import json,os,sys;"
    'line=b"".join(iter(lambda:os.read(0,1)or b"\\n",b"\\n"));'
    "own={n:v for n,v in os.environ.items() if n=='CUDA_VISIBLE_DEVICES'};"
    f'os.execve(sys.executable,[sys.executable,"-m","{AGENT}"],'
    "{**os.environ,**json.loads(line),**own})"
)

Message = dict[str, Any]
Hear = Callable[["Link", Message | None], None]


class Channel:
    """JSON lines both ways, in threads; `hear` gets each message, None: the other side is gone."""

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


class Link:
    """An agent on a host, from now until `close`; ssh has `timeout_s` to connect.

    `hear` gets what the agent tells unasked, in a thread; None: it is gone.
    """

    def __init__(self, host: Host, timeout_s: float, hear: Hear) -> None:
        self.host = host
        self.is_open = True
        self.is_remote = not is_here(host.name)
        self.heard_s = time.monotonic()
        """when it last told anything"""
        self.why_ended = ""
        """in words, once it has"""
        self._hear = hear
        self._numbers = itertools.count()
        self._unanswered: dict[int, Future[Message]] = {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        variables = passed(os.environ)
        words = _words(host.name, timeout_s) if self.is_remote else [sys.executable, "-m", AGENT]
        try:
            self._process = subprocess.Popen(
                words, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ClusterError(f"{words[0]} cannot be started: {error.strerror}.") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._channel = Channel(self._process.stdout, self._process.stdin, self._receive)
        if self.is_remote:
            if not are_numbers(variables.get("CUDA_VISIBLE_DEVICES", "")):  # it keeps its own
                variables.pop("CUDA_VISIBLE_DEVICES", None)
            self._channel.send(variables)

    def tell(self, do: str, **values: Any) -> None:
        """A request that has no answer."""
        self._channel.send({"do": do, **values})

    def request(self, do: str, **values: Any) -> Future[Message]:
        """Ask without waiting; the answer, or a ConnectionError that says why there is none."""
        answer: Future[Message] = Future()
        number = next(self._numbers)
        self._unanswered[number] = answer
        self._channel.send({"do": do, "id": number, **values})
        if not self.is_open:
            self._fail_all()
        return answer

    def close(self) -> None:
        """The agent ends what it started, and itself; where that takes long, nobody waits."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        if self.is_remote or self._process.returncode is not None:
            self.kill()  # of ssh; the agent goes on with what it does

    def kill(self) -> None:
        """End the agent, or the ssh to it, at once."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()
        self._channel.join(_END_S)
        self._errors.close()

    def _note_end(self) -> None:
        """Why: the last that ssh or the agent said, or its exit code."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.why_ended = "the connection was closed"
            return
        self._errors.seek(0)
        said = self._errors.read().decode(errors="backslashreplace").strip().splitlines()
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with code {code}"
        who = "ssh" if self.is_remote and code < 0 else "agent"
        self.why_ended = said[-1].strip() if said and code > 0 else f"its {who} {how}"

    def _receive(self, message: Message | None) -> None:
        self.heard_s = time.monotonic()
        if message is None:
            self._note_end()
            self.is_open = False
            self._fail_all()
        elif "id" in message:
            answer = self._unanswered.pop(message["id"], None)
            if answer is not None:
                answer.set_result(message | {"heard_at_s": time.time()})
            return
        self._hear(self, message)

    def _fail_all(self) -> None:
        while self._unanswered:
            with contextlib.suppress(KeyError):  # another thread does the same
                _, answer = self._unanswered.popitem()
                answer.set_exception(ConnectionError(self.why_ended))


class Links(contextlib.AbstractContextManager["Links"]):
    """Agents, started when their hosts are asked; `timeout_s` is from ssh's start to the answer."""

    def __init__(self, timeout_s: float, hear: Hear = lambda link, message: None) -> None:
        self.timeout_s = timeout_s
        self._hear = hear
        self._links: dict[str, Link] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._keep_in_touch, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for link in self._links.values():
            link.close()

    def to(self, host: Host) -> Link:
        """The agent of a host; ClusterError: there is no ssh here."""
        link = self._links.get(host.name)
        if link is None or not link.is_open:
            link = self._links[host.name] = Link(host, self.timeout_s, self._hear)
        return link

    def _keep_in_touch(self) -> None:
        """In a thread: an agent that hears nothing counts its launcher as lost."""
        while not self._closed.wait(5.0):
            for link in list(self._links.values()):
                if link.is_remote:
                    link.tell("alive", limit_s=SILENCE_S)

    def drop(self, name: str) -> None:
        """Forget a host's agent: the next question starts another."""
        link = self._links.pop(name, None)
        if link is not None:
            link.kill()

    def ask(self, hosts: Sequence[Host], request: dict[str, Any]) -> list[HostFacts]:
        """Ask all hosts at once: an answer per host, in their order, with an error if it hangs."""
        until_s = time.monotonic() + self.timeout_s
        names = [host.name for host in hosts]
        request = request | {"hosts": names, "deadline_s": 0.7 * self.timeout_s}
        replies = [self.to(host).request("facts", request=request) for host in hosts]
        return [
            self._answer(host, reply, until_s) for host, reply in zip(hosts, replies, strict=True)
        ]

    def _answer(self, host: Host, reply: Future[Message], until_s: float) -> HostFacts:
        try:
            message = reply.result(max(0.0, until_s - time.monotonic()))
            facts = message["facts"]
            if "error" in facts:
                raise ConnectionError(facts["error"])
        except (ConnectionError, TimeoutError) as error:
            self.drop(host.name)
            return HostFacts(host, {}, str(error) or f"no answer within {self.timeout_s:g} s")
        return HostFacts(host, facts, clock_differs_s=abs(message["heard_at_s"] - facts["time_s"]))


def _words(name: str, timeout_s: float) -> list[str]:
    """What starts the agent of another host, with the variables that it reads first."""
    program = shlex.join([sys.executable, "-c", _BECOME_AGENT])
    return [
        "ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(timeout_s // 2))}",
        "-o", "ConnectionAttempts=1", "-o", "ControlPath=none",
        "-o", "ServerAliveInterval=15", "-o", f"ServerAliveCountMax={int(SILENCE_S / 15)}",
        name, f"cd {shlex.quote(os.getcwd())} && exec {program}",
    ]  # fmt: skip

"""Commands and ranks that start in milliseconds: forks of a process that has imported TensorFlow.

What a test or horovodrun starts is a small client. It asks the server for a fork, hands it its
environment, its working directory and its output, and ends as that fork ends; if the client is
killed, so is the fork. For tests of what ranks do; those of how they start and die use real
processes (`toy.start_train`). Reach it as `toy_commands`.

Each host has a server of its own, as network namespaces are hosts, too: a fork is on the host of
the client that asks.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import toy


class Forks:
    """The servers, as a context manager.

    Args:
        folder: an existing folder of its own, with a short path.
        hosts: name of a host -> the words before a command that run it there and become it.
    """

    def __init__(self, folder: Path, hosts: Mapping[str, Sequence[str]] | None = None) -> None:
        self._folder, self._client = folder, folder / "client.py"
        self._client.write_text(_CLIENT, encoding="utf-8")
        self._hosts = hosts or {socket.gethostname(): ()}

    def __enter__(self) -> "Forks":
        env = toy.environment(self._folder)
        self._servers = [
            subprocess.Popen(
                [*there, sys.executable, "-c", _SERVER, os.fspath(self._folder)], env=env,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for there in self._hosts.values()
        ]  # fmt: skip
        deadline = time.monotonic() + 600
        while not all((self._folder / f"{host[:40]}.socket").exists() for host in self._hosts):
            assert all(server.poll() is None for server in self._servers), "a server of forks ended"
            assert time.monotonic() < deadline, "the servers of forks do not start"
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.terminate()
            server.wait(600)

    def command(self, module: str) -> list[str]:
        """The words in place of `python -m MODULE`, or `python MODULE` for the path of a script.

        MODULE may also be the source of a script. Its options follow.
        """
        return [sys.executable, "-S", os.fspath(self._client), os.fspath(self._folder), module]

    def run(
        self, module: str, *options: str, cwd: Path, input: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run([sys.executable, "-m", module, *options])`.

        Args:
            module: as for `command`.
            options: its command line.
            cwd: its working directory; made if missing.
            input: its standard input.
        """
        cwd.mkdir(parents=True, exist_ok=True)
        return subprocess.run(
            [*self.command(module), *options], cwd=cwd, env=toy.environment(cwd), input=input,
            capture_output=True, encoding="utf-8", errors="backslashreplace",
        )  # fmt: skip

    def train(
        self, *options: str, cwd: Path, ranks: int = 1, eager: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """As `toy.run_train`.

        Args:
            options: its command line.
            cwd: its working directory.
            ranks: of this machine.
            eager: without graphs, in half the time; for what does not depend on how a step is run.
        """
        launcher = toy.horovodrun(ranks) if ranks > 1 else []
        command = [*launcher, *self.command("hvd_nmt.train"), *options]
        environment = toy.environment(cwd) | ({EAGER: "1"} if eager else {})
        environment["HVD_NMT_RANKS"] = str(ranks)  # so ranks decide how to start, not files alone
        return toy.Run(command, cwd, environment).finished()


EAGER = "HVD_NMT_TOY_EAGER"


_CLIENT = """
import contextlib, json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(f"{sys.argv[1]}/{socket.gethostname()[:40]}.socket")
job = json.dumps({"argv": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
socket.send_fds(link, [len(job).to_bytes(4, "big")], [0, 1, 2])
link.sendall(job)
pid = int.from_bytes(link.recv(4), "big") or sys.exit("the server of forks ended")
def pass_on(number, _):
    with contextlib.suppress(ProcessLookupError):  # it has just ended, with a code of its own
        os.kill(pid, number)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, pass_on)
code = int.from_bytes(link.recv(2) or bytes([0, 1]), "big", signed=True)
if code < 0:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""

_SERVER = """
import importlib, json, logging, os, runpy, select, signal, socket, sys
import hvd_nmt  # first: picks tf_keras
import tensorflow, sacrebleu, hvd_nmt.train, hvd_nmt.translate
from hvd_nmt.checkpoints import saver, weights
from hvd_nmt.training import run

def become(job, files):
    signal.alarm(600)  # what hangs ends
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, 1, encoding="utf-8", closefd=False) for number, mode in enumerate("rww")
    )
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"], TF_USE_LEGACY_KERAS="1")
    if "HVD_NMT_TOY_EAGER" in os.environ:
        tensorflow.config.run_functions_eagerly(True)
        logging.getLogger("tensorflow").setLevel("ERROR")  # it warns that tf.data has graphs
    sys.argv = job["argv"]
    if "\\n" in sys.argv[0]:
        source, sys.argv[0] = sys.argv[0], "script"
        exec(compile(source, "script", "exec"), {"__name__": "__main__"})
        sys.exit()
    if sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    sys.exit(importlib.import_module(sys.argv[0]).main())

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.socket(socket.AF_UNIX)
place = f"{sys.argv[1]}/{socket.gethostname()[:40]}"
listener.bind(f"{place}.new")
listener.listen(16)
os.rename(f"{place}.new", f"{place}.socket")  # whoever sees it can connect
while True:
    link, _ = listener.accept()
    if os.fork():
        link.close()
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, files, *_ = socket.recv_fds(link, 4, 3)
    text = b""
    while len(text) < int.from_bytes(head, "big"):
        text += link.recv(1 << 16)
    pid = os.fork()
    if pid == 0:
        listener.close()
        link.close()
        become(json.loads(text), files)
    link.sendall(pid.to_bytes(4, "big"))
    ended = os.pidfd_open(pid)
    if ended not in select.select([link, ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)  # the client is gone
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    link.sendall(code.to_bytes(2, "big", signed=True))
    os._exit(0)
"""

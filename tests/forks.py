"""Commands and ranks that start in milliseconds: forks of a process that has imported TensorFlow.

What a test or horovodrun starts is a small client. It asks the server for a fork, hands it its
environment, its working directory and its output, and ends as that fork ends. For tests of what
ranks do; those of how they start and die use real processes (`toy.start_train`). Reach it as
`toy_commands`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import toy


class Forks:
    """The server, as a context manager.

    Args:
        folder: an existing folder of its own, with a short path.
    """

    def __init__(self, folder: Path) -> None:
        self._socket, self._client = folder / "socket", folder / "client.py"
        self._client.write_text(_CLIENT, encoding="utf-8")

    def __enter__(self) -> Forks:
        env = toy.environment(self._socket.parent)
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, os.fspath(self._socket)], env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while not self._socket.exists():
            assert self._server.poll() is None, "the server of forks ended"
            assert time.monotonic() < deadline, "the server of forks does not start"
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.terminate()
        self._server.wait(10)

    def command(self, module: str) -> list[str]:
        """The words in place of `python -m MODULE`, or `python MODULE` for the path of a script.

        MODULE may also be the source of a script. Its options follow.
        """
        return [sys.executable, "-S", os.fspath(self._client), os.fspath(self._socket), module]

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
        return toy.Run(command, cwd, environment).finished()


EAGER = "HVD_NMT_TOY_EAGER"


_CLIENT = """
import json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
job = json.dumps({"argv": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
socket.send_fds(link, [len(job).to_bytes(4, "big")], [0, 1, 2])
link.sendall(job)
pid = int.from_bytes(link.recv(4), "big")
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int.from_bytes(link.recv(2) or bytes([0, 1]), "big", signed=True)
if code < 0:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""

_SERVER = """
import importlib, json, logging, os, runpy, signal, socket, sys
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
listener.bind(sys.argv[1])
listener.listen(16)
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
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    link.sendall(code.to_bytes(2, "big", signed=True))
    os._exit(0)
"""

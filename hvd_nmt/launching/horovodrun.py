"""Horovod's horovodrun with better ends for its ranks; the options are the same.

    python hvd_nmt/launching/horovodrun.py -np 4 -H v100a:2,v100b:2 COMMAND...

It is run by its path: below it a rank finds its launcher by that name. `hvd_nmt.launch` and
launch/horovodrun.sh start it.

- A rank that failed: its sentence comes last, and its exit code is the launcher's, where Horovod's
  own ends with a traceback and always with 1.
- SIGTERM and Ctrl-C: the ranks of this host get HVD_NMT_GRACE_S seconds, 60 by default, to save a
  checkpoint, where Horovod's own kills them after 5, and where /bin/sh is bash, which becomes the
  rank that it starts, signals none. A second Ctrl-C kills them at once.
- Nobody reads its output any more: it goes on reading its ranks, which else wait for ever.
- Whether Horovod was built with Gloo is read from its library; Horovod's own imports TensorFlow
  twice to ask, for some seconds.
- `hvd_nmt.launch`, if that started it, ends in any way: it ends as by SIGTERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO, cast

import psutil
from horovod.runner import gloo_run, launch
from horovod.runner.common.util import safe_shell_exec
from horovod.runner.util import remote

sys.path.pop(0)  # this folder, whose files are not meant to be imported by their bare names
sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[2]))

from hvd_nmt.common import horovod_build, signals
from hvd_nmt.common.errors import reported
from hvd_nmt.common.rank_environment import LAUNCHER
from hvd_nmt.common.standard_streams import outliving_readers

_SENTENCE = re.compile(r"<stderr>:(hvd_nmt[\w.]*: .*)")
_NO_SSH = re.compile(r"ssh not successful for host (\S+?):\s*(.*)", re.DOTALL)
_END = re.compile(r"Process (\d+) exit with status code (-?\d+)")
_OF_SSH = "255"
_PR_SET_PDEATHSIG = 1


class Remembering:
    """A text stream that passes everything on and keeps what a pattern finds.

    Args:
        stream: where the text goes.
        pattern: searched for in each text that is written; horovodrun writes line by line.
    """

    def __init__(self, stream: TextIO, pattern: re.Pattern[str]) -> None:
        self.found: dict[tuple[str, ...], None] = {}
        """the groups of each match, in order, each once"""
        self._stream, self._pattern = stream, pattern

    def write(self, text: str) -> int:
        """Pass it on; how many characters that was."""
        if match := self._pattern.search(text):
            self.found[match.groups()] = None
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run() -> int:
    """horovodrun with the command line of this process; returns the exit code."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("horovodrun")  # as which others look for it
    ssh = Remembering(sys.stdout, _NO_SSH)
    ends = Remembering(cast(TextIO, ssh), _END)
    sentences = Remembering(sys.stderr, _SENTENCE)
    with contextlib.redirect_stdout(ends), contextlib.redirect_stderr(sentences):
        try:
            launch.run_commandline()
        except RuntimeError as error:
            failure = str(error)
        else:
            return 0
    # Where the launcher ends ssh, it has its own code, whatever the rank behind it ends with.
    by_rank = [(rank, _as_shells_do(int(code))) for rank, code in ends.found if code != _OF_SSH]
    said = [sentence for (sentence,) in sentences.found]
    for host, why in ssh.found:
        reason = f" ({why.strip().splitlines()[-1]})" if why.strip() else ""
        said.append(f"ssh to {host} does not work{reason}: mend it, until `ssh {host} true` does.")
    if by_rank and not said:
        said.append("rank {} ended with code {}; what it said is above.".format(*by_rank[0]))
    if ends.found and not said:
        said.append("ssh has ended: see whether the other hosts are still there.")
    sys.stdout.flush()
    for sentence in said or [failure]:
        own = "" if sentence.startswith("hvd_nmt") else f"{_name}: "
        print(own + sentence, file=sys.stderr)
    return by_rank[0][1] if by_rank else int(_OF_SSH) if ends.found else 1


def _as_shells_do(code: int) -> int:
    """Python says -9 where a shell says 137."""
    return code if code >= 0 else 128 - code


def end_with(launcher: int) -> None:
    """Have the kernel send SIGTERM to this process when its parent ends, however it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != launcher:  # it has ended before
        os.kill(os.getpid(), signal.SIGTERM)


def end_rank(shell_pid: int) -> None:
    """SIGTERM to a rank, and SIGKILL to whatever is left of it after the grace.

    Args:
        shell_pid: of the /bin/sh that was to start the rank.
    """
    try:
        shell = psutil.Process(shell_pid)
        family = [shell, *shell.children(recursive=True)]
        for process in shell.children() if _is_shell(shell) else [shell]:
            process.terminate()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        pass  # another user's, as of sudo: the kill below may not work either
    # Not `psutil.wait_procs`: it would take the exit code from Horovod, which then reads 0.
    deadline = time.monotonic() + signals.grace_s()
    while (alive := [each for each in family if _is_alive(each)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    _kill([each for process in alive for each in (*_descendants(process), process)])


def register_signals() -> Any:
    """As Horovod's: an event that SIGTERM and SIGINT set; the second SIGINT kills."""
    event = _register_signals()
    handler: Any = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: Any) -> None:
        if event.is_set():
            _kill(_descendants(psutil.Process()))
            said = f"{_name}: interrupted; what was saved before is complete.\n"
            with contextlib.suppress(OSError):
                os.write(2, said.encode())
            os._exit(130)
        handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    return event


def _is_shell(process: psutil.Process) -> bool:
    """Whether it still is the shell that was started, and not what that became."""
    try:
        return Path(process.exe()).resolve() == Path("/bin/sh").resolve()
    except psutil.AccessDenied:
        return False


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


launch.gloo_built = lambda verbose=False: horovod_build.built_with()["gloo"]
launch.mpi_built = lambda verbose=False: horovod_build.built_with()["mpi"]
# Horovod spawns a process for each rank, which runs this file again, so it happens there, too.
safe_shell_exec.terminate_executor_shell_and_children = end_rank
# A shared connection would outlive horovodrun, and a rank could not tell that it is left behind.
# And ssh to a host that was switched off would wait for hours.
remote.SSH_COMMAND_PREFIX += (
    " -o ControlPath=none -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
)
_register_signals = gloo_run.register_shutdown_event
gloo_run.register_shutdown_event = register_signals

_launcher = os.environ.pop(LAUNCHER, None)
_name = "hvd_nmt.launch" if _launcher else "launch/horovodrun.sh"

if __name__ == "__main__":
    if _launcher:
        end_with(int(_launcher))
    with outliving_readers("horovodrun"), reported(_name) as outcome:
        signals.grace_s()  # a wrong one is said before ranks start
        outcome.exit_code = run()
    sys.exit(outcome.exit_code)

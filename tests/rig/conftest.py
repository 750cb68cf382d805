"""Two hosts on this machine: everything that needs them is in this folder, and runs alone.

One file is for each commit; the others take too long, and are marked so here.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import forks
import toy

RIG = toy.ROOT / "launch" / "two-hosts-on-one.sh"
LOCK = Path("/run/lock/hvd_nmt-two-hosts.lock")
FOR_EACH_COMMIT = "test_two_host_training.py"


class TwoHosts:
    """Hosts v100a and v100b on this machine (launch/two-hosts-on-one.sh), linked by eth0."""

    names = ("v100a", "v100b")

    def __init__(self) -> None:
        self.changed = False
        """the link is not as it was"""

    def start(self, command: Sequence[str], cwd: Path, **variables: str) -> toy.Run:
        """Starts a command on v100a, with this Python's programs first on PATH."""
        return toy.Run([os.fspath(RIG), "run", *command], cwd, _environment(cwd) | variables)

    def run(
        self, command: Sequence[str], cwd: Path, timeout_s: float = 600.0
    ) -> subprocess.CompletedProcess[str]:
        """The same, to its end."""
        return self.start(command, cwd).finished(timeout_s)

    @contextlib.contextmanager
    def running(self, command: Sequence[str], cwd: Path, **variables: str) -> Iterator[toy.Run]:
        """Starts it, and kills what is left of it on both hosts when the block ends."""
        run = self.start(command, cwd, **variables)
        try:
            yield run
        finally:
            run.kill()

    def on(self, host: str) -> list[str]:
        """The words before those that run on a host; the process becomes theirs."""
        ip = shutil.which("ip") or "ip"  # not on every PATH
        name = ("unshare", "--uts", "bash", "-c", 'hostname "$0" && exec "$@"', host)
        return [ip, "netns", "exec", host, *name]

    def horovodrun(self, hosts: str) -> list[str]:
        """The words that start a command on the ranks of hosts, such as v100a:2,v100b:1."""
        ranks = sum(int(host.split(":")[1]) for host in hosts.split(","))
        return [*toy.HOROVODRUN, "-np", str(ranks), "-H", hosts]

    def do(self, *words: str) -> None:
        """Has the script of the rig do something."""
        self.changed = True
        _rig(*words)

    def limit(self, rate: str) -> None:
        """Makes the link slow, each way; `rate` as for tc, such as 200mbit."""
        self.changed = True
        _rig("limit", rate)

    def unlimit(self) -> None:
        """Makes the link fast again."""
        _rig("unlimit")

    def cut(self) -> None:
        """Pulls the cable between the hosts."""
        self.changed = True
        _rig("cut")

    def heal(self) -> None:
        """Plugs the cable in and waits until the hosts reach each other."""
        _rig("heal")

    def mend(self) -> None:
        """Makes the link what it is at first."""
        self.unlimit()
        self.heal()
        self.changed = False


@pytest.fixture(scope="session")
def two_hosts() -> Iterator[TwoHosts]:
    """The rig, up; skipped with the reason where it cannot be."""
    if os.geteuid() != 0:
        pytest.skip("needs root for network namespaces")
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2 (apt-get install iproute2)")
    with LOCK.open("w") as lock:  # one session at a time: host names are the machine's
        _wait_for(lock.fileno())
        found_up = _rig("status") != "down\n"
        _rig("up")
        hosts = TwoHosts()
        hosts.mend()
        yield hosts
        if not found_up:
            _rig("down")


@pytest.fixture(scope="session")
def host_commands(
    two_hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[forks.Forks]:
    """As `toy_commands`: a fork on the host where its command is started."""
    hosts = {host: two_hosts.on(host) for host in two_hosts.names}
    with forks.Forks(tmp_path_factory.mktemp("f"), hosts) as started:
        yield started


@pytest.fixture(autouse=True)
def _mend_the_link(two_hosts: TwoHosts) -> Iterator[None]:
    """After Ctrl-C, too, when pytest has forgotten what the test asked for."""
    yield
    if two_hosts.changed:
        two_hosts.mend()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for the tests of this folder alone."""
    item.add_marker("rig")
    if item.path.name != FOR_EACH_COMMIT:
        item.add_marker("long")


def _rig(*arguments: str) -> str:
    done = subprocess.run(
        [RIG, *arguments], env=_environment(Path("/")), capture_output=True, text=True, timeout=600,
        start_new_session=True,  # Ctrl-C would end the hosts before the link is mended
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _environment(home: Path) -> dict[str, str]:
    return toy.environment(home) | {"PATH": os.environ["PATH"], "VENV": sys.prefix}


def _wait_for(lock: int, timeout_s: float = 3600.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                pytest.fail(f"another test session has held {LOCK} for {timeout_s} s")
            time.sleep(1.0)

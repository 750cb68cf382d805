"""What the launcher takes for progress, and when it no longer waits."""

import os
import signal
import time
from unittest.mock import Mock

import pytest

from hvd_nmt.common import signals
from hvd_nmt.common.errors import ClusterError
from hvd_nmt.config import Config
from hvd_nmt.hosts.connection import Connections
from hvd_nmt.hosts.host_list import Host
from hvd_nmt.launching import preflight, supervision
from hvd_nmt.launching.attempt import Attempt, AttemptOutcome
from hvd_nmt.launching.job import Job, LaunchOptions
from hvd_nmt.launching.preflight import Outlook
from launched import events

HOST = Host("gpu", 2)


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    """A function: the launcher's code where starts end so, with these steps saved."""

    def run(codes, steps, pause=lambda seconds: None, hindrances=(), held_by=()):
        pairs = zip(codes, steps, strict=True)
        ends = iter([AttemptOutcome(code, "", step) for code, step in pairs])
        holders = iter(held_by)

        def ask_hosts(job, connections, known_step=-1, is_restart=False):
            hinders = hindrances if is_restart else ()
            return Outlook((HOST,), "lo", hinders, (), {}, known_step, next(holders, ""))

        monkeypatch.setattr(preflight, "ask_hosts", ask_hosts)
        monkeypatch.setattr(Attempt, "run", lambda *_: next(ends))
        monkeypatch.setattr(Connections, "to", Mock())
        monkeypatch.setattr(supervision, "time", Mock(wraps=time, sleep=pause))
        options = LaunchOptions(wait_for_hosts_h=0.0, restarts_per_hour=100)
        job = Job(("python",), Config(run_dir=tmp_path), (HOST,), 2, 2, options)
        with signals.restored():
            return supervision.supervise(job)

    return run


def test_starts_without_a_new_checkpoint_end_it(supervised):
    assert supervised([137] * 5, [-1] * 5) == 137
    assert supervised([137] * 7, [-1, 10, 10, 10, 10, 10, 10]) == 137
    assert supervised([137] * 6 + [0], [10, 10, 20, -1, 20, 30, 60]) == 0


def test_a_signal_between_two_starts_ends_the_launcher(supervised, tmp_path):
    """Whose pause may be of an hour."""
    assert supervised([137], [5], lambda seconds: os.kill(os.getpid(), signal.SIGTERM)) == 75
    assert [event["kind"] for event in events(tmp_path)] == ["start", "end", "restart", "stopped"]


def test_hosts_are_waited_for_so_long_and_no_longer(supervised, tmp_path):
    with pytest.raises(ClusterError, match="could not be used for 0 hours"):
        supervised([137], [5], hindrances=("b: ssh: gone.",))
    assert [event["kind"] for event in events(tmp_path)][-2:] == ["waiting", "given up"]


def test_ranks_of_a_killed_launcher_are_waited_for(supervised, capfd):
    assert supervised([0], [5], held_by=["process 7"] * 3) == 0
    lines = capfd.readouterr().err.splitlines()
    assert sum("another run (process 7) is in the run directory: waits 70" in x for x in lines) == 1


def test_an_event_is_recorded_once_its_disk_has_room(supervised, tmp_path, monkeypatch):
    errors = iter([OSError(28, "No space left on device")])

    def file(path, real=supervision.JsonlFile):
        for error in errors:
            raise error
        return real(path)

    monkeypatch.setattr(supervision, "JsonlFile", file)
    supervised([137, 0], [5, 6])
    assert [event["kind"] for event in events(tmp_path)][:2] == ["start", "end"]

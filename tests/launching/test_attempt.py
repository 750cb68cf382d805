"""What is decided of a host that has fallen silent while ranks of others wait."""

import time
from types import SimpleNamespace

import pytest

from hvd_nmt.common import heartbeat
from hvd_nmt.hosts.connection import Connections
from hvd_nmt.hosts.host_list import Host
from hvd_nmt.launching import attempt
from hvd_nmt.launching.attempt import Attempt, Events
from hvd_nmt.launching.job import Job
from hvd_nmt.launching.rank_output import RankOutput
from hvd_nmt.launching.stop_signals import StopSignals

HOSTS = (Host("a", 1), Host("b", 1))


@pytest.fixture
def silent(monkeypatch):
    """A start whose host b has reported before its silence that its rank is in Python."""
    for name, seconds in {"_SETTLE_S": 0.1, "_SETTLE_STUCK_S": 0.1, "_LOST_S": 2.0}.items():
        monkeypatch.setattr(attempt, name, seconds)
    start = Attempt(
        Job((), None, HOSTS, 2, 2), HOSTS, "", "1", "2",
        Connections(1.0), Events(), RankOutput(), StopSignals(),
    )  # fmt: skip
    start._host_of = {0: "a", 1: "b"}
    state = {"section": heartbeat.STEP, "seconds": 9.0, "waits": False, "stopped": False}
    for rank, host in enumerate(HOSTS):
        connection = SimpleNamespace(host=host, is_open=True, received_s=time.monotonic())
        start._open[host.name] = connection
        states = {rank: state | {"stuck": rank == 0, "waits": rank == 0}}
        start._note(connection, {"tell": "states", "start_id": "1", "states": states})
    start._open["a"].received_s = time.monotonic() + 60  # it reports further
    return start


def test_its_rank_is_not_blamed_for_what_it_did_last(silent, monkeypatch):
    monkeypatch.setattr(attempt, "_FRESH_S", 0.1)
    assert silent._judge().sentence.startswith("b is lost: it does not answer")


def test_while_it_answers_its_rank_is(silent):
    assert silent._judge().sentence.startswith("rank 1 on b hangs in the section 'step'")

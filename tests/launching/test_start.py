"""What is decided of a host that has fallen silent while ranks of others wait."""

import socket
import time
from types import SimpleNamespace

import psutil
import pytest

from hvd_nmt.common import heartbeat
from hvd_nmt.hosts.connections import Connections
from hvd_nmt.hosts.host_list import Host
from hvd_nmt.launching import start
from hvd_nmt.launching.preflight import Job
from hvd_nmt.launching.rank_output import RankOutput
from hvd_nmt.launching.start import Attempt, Events, Rendezvous, StopSignals

HOSTS = (Host("a", 1), Host("b", 1))


@pytest.fixture
def silent(monkeypatch):
    """A start whose host b has told before its silence that its rank is in Python."""
    for name, seconds in {"_SETTLE_S": 0.1, "_SETTLE_STUCK_S": 0.1, "_ANSWER_S": 2.0}.items():
        monkeypatch.setattr(start, name, seconds)
    job, told = (
        Job((), None, HOSTS, 2, 2),
        (Connections(1.0), Events(), RankOutput(), StopSignals()),
    )
    start_ = Attempt(job, HOSTS, "", "1", "2", *told)
    start_._host_of = {0: "a", 1: "b"}
    state = {"section": heartbeat.STEP, "seconds": 9.0, "waits": False, "stopped": False}
    for rank, host in enumerate(HOSTS):
        connection = SimpleNamespace(host=host, is_open=True, received_s=time.monotonic())
        start_._open[host.name] = connection
        states = {rank: state | {"stuck": rank == 0, "waits": rank == 0}}
        start_._note(connection, {"tell": "states", "start_id": "1", "states": states})
    start_._open["a"].received_s = time.monotonic() + 60  # it goes on to tell
    return start_


def test_its_rank_is_not_blamed_for_what_it_did_last(silent, monkeypatch):
    monkeypatch.setattr(start, "_FRESH_S", 0.1)
    assert silent._judge().sentence.startswith("b is lost: it does not answer")


def test_while_it_answers_its_rank_is(silent):
    assert silent._judge().sentence.startswith("rank 1 on b hangs in the section 'step'")


def test_ranks_of_one_machine_meet_on_its_loopback_and_strangers_print_nothing(capfd, caplog):
    ((of_rank,),) = Rendezvous().variables([Host("a", 1)], "lo").values()
    port = int(of_rank["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    assert of_rank["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
    listening = [c.laddr.ip for c in psutil.Process().net_connections() if c.laddr.port == port]
    assert listening == ["127.0.0.1"]
    answers = []
    for path in ("/global/key", "/a\x1b[2Jrank-1-was-killed", "/a/b\x1b[2J"):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            answers.append(client.recv(100).split()[1])
    assert answers == [b"404", b"400", b"400"]
    assert tuple(capfd.readouterr()) == ("", "")
    assert caplog.text == ""

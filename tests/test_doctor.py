"""The doctor: hosts asked, judged, measured; one table, one exit code."""

import re
import socket

import pytest

from hvd_nmt import doctor
from hvd_nmt.common.errors import ClusterError
from hvd_nmt.diagnosis import prediction
from hvd_nmt.diagnosis.prediction import Measurement
from hvd_nmt.hosts import facts as host_facts
from hvd_nmt.hosts.connection import Connections
from hvd_nmt.hosts.facts import HostFacts
from hvd_nmt.hosts.host_list import Host


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Every host answers like this machine, or with its error; and what was measured."""
    monkeypatch.chdir(tmp_path)
    errors, measured = {}, []

    def ask(connections, wanted, request):
        names = [host.name for host in wanted]
        facts = host_facts.gather(request | {"hosts": names})
        facts["names"] = {name: ["192.0.2.7"] for name in (*names, facts["host"])}
        facts["routes"] = dict.fromkeys(names, "eth9")
        facts["nics"]["eth9"] = {"is_up": True, "link_mbit_per_s": 10_000}
        failed = {name: ({}, error) for name, error in errors.items()}
        return [HostFacts(host, *failed.get(host.name, (facts,))) for host in wanted]

    def measure(run):
        measured.append(run)
        return Measurement(0.2, 0.001, 0.3, 4096.0)

    monkeypatch.setattr(Connections, "ask", ask)
    monkeypatch.setattr(prediction, "measure", measure)
    return errors, measured


@pytest.mark.parametrize("argv", [[], ["-H", f"{socket.gethostname()}:2", "--no-measure"]])
def test_one_rank_or_who_does_not_want_it_is_not_measured(capsys, cluster, argv):
    assert doctor.main(argv) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert socket.gethostname() in said.out
    assert said.out.rstrip().endswith("0 failures: a run will start.")
    assert cluster[1] == []


def test_hosts_are_measured_and_told_what_to_expect(capsys, cluster):
    _, measured = cluster
    assert doctor.main(["-H", "v100a:2,v100b:2"]) == 0
    said = capsys.readouterr().out
    found = "43.1 MB/s (344 Mbit/s) where eth9 allows 10,000 Mbit/s"
    assert re.search(rf"^WARN +all-reduce +{re.escape(found)}", said, re.MULTILINE)
    assert "\nstep        0.500 s, of which a rank computes 0.300 s; 8,192 source and" in said
    assert "\nverdict     network-bound" in said
    assert [answer.host for answer in measured[0].answers] == [Host("v100a", 2), Host("v100b", 2)]
    assert measured[0].gradient_bytes == 4 * 1_435_136


def test_a_failure_is_the_exit_code_of_a_cluster_error_and_stops_the_measurement(capsys, cluster):
    errors, measured = cluster
    errors["v100b"] = "v100b: Permission denied (publickey)."
    assert doctor.main(["-H", "v100a:2,v100b:2", "--preset", "base"]) == ClusterError.exit_code == 5
    text = capsys.readouterr().out
    assert measured == []
    assert "FAIL  ssh" in text
    assert "not measured: ssh of v100b fails" in text
    assert "ssh-copy-id v100b" in text
    assert "data/wmt16-en-de does not exist" in text
    assert "a run would not start or not be right" in text


def test_a_failed_all_reduce_is_a_failed_check(capsys, cluster, monkeypatch):
    def measure(run):
        raise ClusterError("The measurement failed (exit code 1): no route.")

    monkeypatch.setattr(prediction, "measure", measure)
    assert doctor.main(["-H", "v100a:2,v100b:2"]) == 5
    assert "FAIL  all-reduce" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--timeout-s", "0"], "--timeout-s is 0.0: it must be above 0"),
        (["--preset", "bse"], "did you mean 'base'"),
    ],
)
def test_what_cannot_work_is_one_sentence(refused, cluster, argv, sentence):
    assert sentence in refused(2, doctor, *argv)

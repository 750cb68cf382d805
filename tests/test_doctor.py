"""The doctor: hosts asked, judged, measured; one table, one exit code."""

import copy
import re
import socket
from pathlib import Path

import pytest

from hvd_nmt import doctor
from hvd_nmt.common.errors import ClusterError
from hvd_nmt.diagnosis import measurement, probe
from hvd_nmt.diagnosis.hosts import Answer, Host
from hvd_nmt.diagnosis.link import Links
from hvd_nmt.diagnosis.measurement import Measurement

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Every host answers like this machine; changes to `facts[name]` make it different."""
    monkeypatch.chdir(tmp_path)
    facts, measured = {}, []

    def ask(links, wanted, request):
        names = {"hosts": [host.name for host in wanted]}
        answers, here = [], probe.facts(request | names)
        for host in wanted:
            found = copy.deepcopy(here) | {"host": host.name}
            found["names"] = {name: ["192.0.2.7"] for name in names["hosts"]}
            found["routes"] = dict.fromkeys(names["hosts"], "eth9")
            card = {"is_up": True, "is_loopback": False, "link_mbit_per_s": 10_000}
            found["nics"]["eth9"] = card
            changes = facts.get(host.name, {})
            if "error" in changes:
                answers.append(Answer(host, {}, changes["error"], reached=False))
            else:
                answers.append(Answer(host, found | changes, None, True, 0.3))
        return answers

    def measure(run):
        measured.append(run)
        return Measurement(0.2, 0.001, 0.3, None)

    monkeypatch.setattr(Links, "ask", ask)
    monkeypatch.setattr(measurement, "measure", measure)
    return facts, measured


def test_without_hosts_it_looks_at_this_machine_and_measures_nothing(capsys, cluster):
    _, measured = cluster
    assert doctor.main([]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert socket.gethostname() in said.out
    assert said.out.rstrip().endswith("0 failures: a run will start.")
    assert measured == []


def test_hosts_are_measured_at_the_gradient_s_size_and_told_what_to_expect(
    capsys, cluster, golden_page
):
    _, measured = cluster
    two = ["-H", "v100a:2,v100b:2"]
    said = []
    for title, argv in (
        ("two hosts", two),  # 8.6 MB in 0.2 s is 43 MB/s of 1,250
        ("one host", ["-H", "v100a:2"]),
    ):
        assert doctor.main(argv) == 0
        checks, prediction = re.split(r"\n(?=all-reduce )", capsys.readouterr().out)
        (row,) = re.findall(r"^\w+ +all-reduce .*", checks, re.MULTILINE)
        found, number = re.fullmatch(r"(.*)  \[(\d+)\]", row).groups()
        (remedy,) = re.findall(rf"^\[{number}\] .*", checks, re.MULTILINE)
        # Of this machine are the widths and numbers above, and the count in the last line.
        prediction = prediction.rstrip().rpartition("\n")[0].rstrip()
        remedy = remedy.partition(" ")[2]
        said.append("\n".join([f"# {title}", " ".join(found.split()), remedy, prediction]))
    golden_page("doctor-measured.txt", "\n\n".join(said) + "\n")
    assert [answer.host for answer in measured[0].answers] == [Host("v100a", 2), Host("v100b", 2)]
    assert measured[0].gradient_bytes == 4 * 1_435_136


def test_the_preset_decides_the_gradient_and_no_measurement_need_be(capsys, cluster):
    _, measured = cluster
    doctor.main(["-H", "v100a:2,v100b:2", "--preset", "base"])
    assert measured.pop().gradient_bytes == 243_523_584
    assert "data/wmt16-en-de does not exist" in capsys.readouterr().out
    assert doctor.main(["-H", "v100a:2", "--no-measure"]) == 0
    assert measured == []
    assert "all-reduce" not in capsys.readouterr().out


def test_a_failure_is_the_exit_code_of_a_cluster_error_and_stops_the_measurement(capsys, cluster):
    facts, measured = cluster
    facts["v100b"] = {"error": "v100b: Permission denied (publickey)."}
    assert doctor.main(["-H", "v100a:2,v100b:2"]) == ClusterError.exit_code == 5
    text = capsys.readouterr().out
    assert measured == []
    assert "FAIL  ssh" in text
    assert "not measured: ssh of v100b fails" in text
    assert "ssh-copy-id v100b" in text
    assert "a run would not start or not be right" in text


def test_a_failed_all_reduce_is_a_failed_check(capsys, cluster, monkeypatch):
    def measure(run):
        raise ClusterError("The measurement failed (exit code 1): no route.")

    monkeypatch.setattr(measurement, "measure", measure)
    assert doctor.main(["-H", "v100a:2,v100b:2"]) == 5
    assert "FAIL  all-reduce" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("slices", "asked", "row"),
    [(4, "auto", "OK "), (4, "2", "WARN"), (0, "auto", "FAIL")],
)
def test_what_the_trial_of_the_widest_step_says(capsys, cluster, monkeypatch, slices, asked, row):
    found = Measurement(0.2, 0.001, 0.3, slices)
    monkeypatch.setattr(measurement, "measure", lambda run: found)
    doctor.main(["-H", "a:2", "--training.micro-batches", asked])
    assert re.search(rf"^{row} +memory ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["-H", "v100a:x"], "write NAME:SLOTS"),
        (["-H", "a:1", "--hostfile", "f"], "not with both"),
        (["--hostfile", "nowhere"], "host file nowhere cannot be read"),
        (["--timeout-s", "0"], "timeout_s is 0.0: it must be above 0"),
        (["--preset", "bse"], "did you mean 'base'"),
    ],
)
def test_what_cannot_work_is_one_sentence(capsys, cluster, argv, sentence):
    assert doctor.main(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_the_host_files_of_the_repository_are_read(cluster):
    config = doctor.DoctorConfig(hostfile=ROOT / "hostfiles" / "v100", measure=False)
    assert {check.host for check in doctor.diagnose(config)[0]} == {"v100a", "v100b"}

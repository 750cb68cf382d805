"""The doctor: hosts asked, judged, measured; one table, one exit code, JSON on demand."""

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
            route = {"source": "192.0.2.7", "nic": "eth9"}
            found["routes"] = dict.fromkeys(names["hosts"], route)
            card = {"is_up": True, "is_loopback": False, "link_mbit_per_s": 10_000}
            found["nics"]["eth9"] = card
            changes = facts.get(host.name, {})
            if "error" in changes:
                answers.append(Answer(host, {}, changes["error"], reached=False))
            else:
                answers.append(Answer(host, found | changes, None, True, 0.3, 0.0, 0.001))
        return answers

    def measure(wanted, request, nic):
        measured.append((wanted, request.n_bytes, nic))
        names = [host.name for host in wanted for _ in range(host.slots)]
        return Measurement([0.2, 0.1, 0.3], 0.001, 0.3, 1, names, [0] * len(names))

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
    assert measured[0] == ([Host("v100a", 2), Host("v100b", 2)], 4 * 1_435_136, "eth9")


def test_the_measurement_can_be_left_out(capsys, cluster):
    _, measured = cluster
    assert doctor.main(["-H", "v100a:2", "--no-measure"]) == 0
    assert measured == []
    assert "all-reduce" not in capsys.readouterr().out


def test_the_preset_decides_the_gradient(capsys, cluster):
    _, measured = cluster
    doctor.main(["-H", "v100a:2,v100b:2", "--preset", "base"])
    assert measured[0][1] == 243_523_584
    assert "data/wmt16-en-de does not exist" in capsys.readouterr().out


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
    def measure(*arguments):
        raise ClusterError("The measurement failed (exit code 1): no route.")

    monkeypatch.setattr(measurement, "measure", measure)
    assert doctor.main(["-H", "v100a:2,v100b:2"]) == 5
    assert "FAIL  all-reduce" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("slices", "asked", "row"),
    [(1, "auto", "OK "), (4, "auto", "OK "), (4, "2", "WARN"), (0, "auto", "FAIL")],
)
def test_what_the_trial_of_the_widest_step_says(capsys, cluster, monkeypatch, slices, asked, row):
    found = Measurement([0.2], 0.001, 0.3, slices, ["a", "a"], [1, 1])
    monkeypatch.setattr(measurement, "measure", lambda *arguments: found)
    doctor.main(["-H", "a:2", "--training.micro-batches", asked])
    assert re.search(rf"^{row} +memory ", capsys.readouterr().out, re.MULTILINE)


def test_a_gpu_for_which_cudnn_has_no_code(capsys, cluster, nvml_library, monkeypatch, tmp_path):
    """The GPU speaks through nvidia-ml-py, cuDNN through what pip wrote of it."""
    nvml_library.gpus = 1
    installed = tmp_path / "site" / "nvidia_cudnn_cu12-9.12.0.46.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Name: nvidia-cudnn-cu12\nVersion: 9.12.0.46\n")
    monkeypatch.syspath_prepend(installed.parent)
    doctor.main(["-H", "v100a:1,v100b:1"])
    text = capsys.readouterr().out
    assert "cuDNN 9.12.0.46 has no code for Tesla V100-SXM2-16GB (7.0)" in text
    assert "TF=2.18 make install on every host" in text


def test_gpus_that_tensorflow_does_not_see(cluster):
    facts, _ = cluster
    cards = [{"index": i, "name": "V100", "uuid": f"GPU-{i}", "capability": [7, 0], "error": None,
              "memory_total_bytes": 16 * 10**9, "memory_used_bytes": 0}
             for i in range(2)]  # fmt: skip
    for name in ("v100a", "v100b"):
        facts[name] = {"gpu": {"gpus": cards, "driver": "1", "unavailable": None, "problems": [],
                               "visible_devices": None}}  # fmt: skip
    config = doctor.DoctorConfig(hosts="v100a:2,v100b:2")
    blind = [c for c in doctor.diagnose(config).checks if c.name == "TensorFlow"]
    assert [(check.host, check.status) for check in blind] == [("v100a", "fail"), ("v100b", "fail")]


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
    path = ROOT / "hostfiles" / "v100"
    config = doctor.DoctorConfig(hostfile=path, measure=False)
    named = {check.host for check in doctor.diagnose(config).checks}
    assert named == {"v100a", "v100b"}

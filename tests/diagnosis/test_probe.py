"""What a host says about itself, and that no single question can spoil the answer."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import wait

from hvd_nmt.data import corpus
from hvd_nmt.diagnosis import probe

ANSWER = """
import json, sys
from hvd_nmt.diagnosis import probe
print(json.dumps(probe.facts(json.load(sys.stdin))))
"""


def test_a_process_answers_the_request_without_tensorflow(tmp_path):
    hosts = ["localhost", "no-such-host.invalid"]
    request = {"hosts": hosts, "run_dir": str(tmp_path / "runs" / "x")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "importtime", "-c", ANSWER],
        input=json.dumps(request),
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["host"] == socket.gethostname()
    assert found["problems"] == {}
    assert found["packages"]["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["packages"]["numpy"] is not None
    assert len(found["code"]) == 64
    assert found["cpu"]["cores"] == len(os.sched_getaffinity(0))
    assert found["nics"]["lo"]["is_loopback"]
    assert found["names"]["localhost"]
    assert found["names"]["no-such-host.invalid"] == []
    assert found["routes"] == {"localhost": "lo", "no-such-host.invalid": None}
    assert found["disk"]["free_bytes"] > 0
    assert found["run_dir"]["error"] is None
    assert found["data"] is None
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in
                done.stderr.splitlines() if line.startswith("import time:")}  # fmt: skip
    assert not imported & {"tensorflow", "horovod", "tf_keras"}
    assert not (tmp_path / "runs").exists()


def test_a_question_that_fails_or_hangs_costs_nothing_but_its_answer(monkeypatch):
    never = threading.Event()
    questions = {
        "cpu": lambda request: 8, "gpu": lambda request: 1 / 0,
        "names": lambda request: never.wait(600),
    }  # fmt: skip
    monkeypatch.setattr(probe, "_QUESTIONS", questions)
    monkeypatch.setattr(probe, "wait", lambda answers, limit_s: wait([*answers][:2], limit_s))
    found = probe.facts({"deadline_s": 600.0})
    never.set()
    assert found.pop("time_s") > 0
    problems = {
        "gpu": "ZeroDivisionError: division by zero", "names": "no answer within 600 s"
    }  # fmt: skip
    assert found == {"cpu": 8, "gpu": None, "names": None, "problems": problems}


def test_gpus_tell_what_they_are_and_whether_they_answer(nvml_library, monkeypatch):
    nvml_library.gpus, nvml_library.dead = 2, 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = probe.gpu({})
    assert found["gpus"] == [{
        "index": 0, "name": "Tesla V100-SXM2-16GB", "uuid": found["gpus"][0]["uuid"],
        "capability": [7, 0], "error": None,
    }]  # fmt: skip
    assert (found["driver"], found["visible_devices"]) == ("535.161.08", "0")
    assert found["problems"] == ["GPU 1 does not answer: GPU is lost"]
    nvml_library.lost_after = {0: nvml_library.questions["UtilizationRates", 0]}
    (lost,) = probe.gpu({})["gpus"]
    assert (lost["error"], lost["capability"]) == ("GPU is lost", None)


def test_a_run_directory_that_cannot_be_made_or_is_held(tmp_path):
    (tmp_path / "file").write_text("")
    for run_dir, error in (tmp_path / "file/run", "file: Not a directory"), ("/proc/sys", "/sys: "):
        assert error in probe._run_dir({"run_dir": str(run_dir)})["error"]
    (tmp_path / "model.ckpt-5.index").write_bytes(b"12345")
    (tmp_path / "best_models").mkdir()
    (tmp_path / "best_models" / "x").write_bytes(b"123")
    with (tmp_path / ".lock").open("w") as lock:
        lock.write("process 77 on v100a\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = probe._run_dir({"run_dir": str(tmp_path)})
        assert (found["held_by"], found["held_bytes"]) == ("process 77 on v100a", 8)
    assert probe._run_dir({"run_dir": str(tmp_path)})["held_by"] is None


def test_what_is_said_of_data(toy_data, tmp_path):
    found, manifest = probe._data({"data": str(toy_data)}), corpus.read_manifest(toy_data)
    assert (found["error"], found["verified"], found["hash"]) == (None, True, manifest.hash)
    assert found["target_tokens"] == manifest.parts["train"].target.tokens
    missing = probe._data({"data": str(tmp_path / "nothing")})
    assert "does not exist" in missing["error"]
    assert not missing["exists"]
    copy = shutil.copytree(toy_data, tmp_path / "data")
    content = (copy / "spm.model").read_bytes()
    (copy / "spm.model").write_bytes(bytes([content[0] ^ 1]) + content[1:])
    damaged = probe._data({"data": str(copy)})
    assert "is damaged" in damaged["error"]
    assert damaged["exists"]

"""What a host says about itself, and that no single question can spoil the answer."""

import fcntl
import json
import os
import shutil
import socket
import sys
import threading

from hvd_nmt.data import corpus
from hvd_nmt.hosts import facts
from toy import python

ANSWER = """
import json, sys
from hvd_nmt.hosts import facts
print(json.dumps(facts.gather(json.load(sys.stdin))))
"""


def test_a_process_answers_the_request_without_tensorflow(tmp_path):
    hosts = ["localhost", "no-such-host.invalid"]
    request = {"hosts": hosts, "run_dir": str(tmp_path / "runs" / "x")}
    done = python("-W", "error", "-X", "importtime", "-c", ANSWER, input=json.dumps(request))
    found = json.loads(done.stdout)
    assert found["host"] == socket.gethostname()
    assert found["packages"]["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["packages"]["tensorflow"] is not None
    assert len(found["code"]) == 64
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert "lo" in found["nics"]
    assert found["names"]["localhost"]
    assert found["names"]["no-such-host.invalid"] == []
    assert found["routes"] == {"localhost": "lo", "no-such-host.invalid": None}
    assert found["run_dir"]["free_bytes"] > 0
    assert found["run_dir"]["error"] is None
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in
                done.stderr.splitlines() if line.startswith("import time:")}  # fmt: skip
    assert not imported & {"tensorflow", "horovod", "tf_keras"}
    assert not (tmp_path / "runs").exists()


def test_a_question_that_fails_or_hangs_is_the_answer(monkeypatch):
    held = threading.Event()
    for question, error in (
        (lambda request: 1 / 0, "names: ZeroDivisionError: division by zero"),
        (lambda request: held.wait(600), "names: no answer within 0.2 s"),
    ):
        monkeypatch.setattr(facts, "_FACTS", {"cores": lambda request: 8, "names": question})
        assert facts.gather({"deadline_s": 0.2}) == {"error": error}
    held.set()


def test_gpus_tell_what_they_are_and_whether_they_answer(nvml_library, monkeypatch):
    nvml_library.gpus, nvml_library.dead = 2, 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = facts.gpu({})
    good, dead = found["gpus"]
    assert (good["name"], good["uuid"][-1], good["error"]) == ("Tesla V100-SXM2-16GB", "0", None)
    assert (dead["name"], dead["uuid"], dead["error"]) == ("GPU", "", "GPU is lost")
    assert found["visible_devices"] == "0"
    assert facts.gpu({"device": "cpu"})["gpus"] == []


def test_a_run_directory_that_cannot_be_made_or_is_held(tmp_path):
    (tmp_path / "file").write_text("")
    for run_dir, error in (tmp_path / "file/run", "file: Not a directory"), ("/proc/sys", "/sys: "):
        assert error in facts._run_dir({"run_dir": str(run_dir)})["error"]
    (tmp_path / "model.ckpt-5.index").write_bytes(b"12345")
    (tmp_path / "best_models").mkdir()
    (tmp_path / "best_models" / "x").write_bytes(b"123")
    with (tmp_path / ".lock").open("w") as lock:
        lock.write("process 77 on v100a\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = facts._run_dir({"run_dir": str(tmp_path)})
        assert (found["held_by"], found["held_bytes"]) == ("process 77 on v100a", 8)
    assert facts._run_dir({"run_dir": str(tmp_path)})["held_by"] is None


def test_what_is_said_of_data(toy_data, tmp_path):
    found, manifest = facts._data({"data": str(toy_data)}), corpus.read_manifest(toy_data)
    assert (found["error"], found["hash"]) == (None, manifest.hash)
    assert found["pairs"] == manifest.parts["train"].pairs
    missing = facts._data({"data": str(tmp_path / "nothing")})
    assert "does not exist" in missing["error"]
    assert not missing["exists"]
    copy = shutil.copytree(toy_data, tmp_path / "data")
    (copy / "spm.model").write_bytes(b"cut")
    damaged = facts._data({"data": str(copy)})
    assert "spm.model is not the file that was prepared" in damaged["error"]
    assert damaged["exists"]

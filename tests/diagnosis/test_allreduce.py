"""The timed all-reduce: its command, its result, and its failures; once for real on two ranks."""

import json
import os
import sys

import pytest

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.diagnosis import allreduce
from hvd_nmt.diagnosis.hosts import Host

LOCAL = [Host("localhost", 2)]


def test_the_command_gives_every_slot_a_rank_and_names_the_card():
    far = [Host("192.0.2.1", 2), Host("192.0.2.2", 3)]
    command = allreduce.launch_command(far, 400, "eth0")
    assert os.path.basename(command[0]) == "horovodrun"
    text = " ".join(command[1:])
    assert text.startswith("-np 5 -H 192.0.2.1:2,192.0.2.2:3 --disable-cache")
    assert " --network-interface eth0 " in text
    assert text.endswith(f"{sys.executable} -m hvd_nmt.diagnosis.allreduce 400")
    assert "--network-interface" not in allreduce.launch_command(far, 400, None)
    assert "--network-interface lo" in " ".join(allreduce.launch_command(LOCAL, 400, None))


def test_ranks_get_no_secret_and_no_other_job_s_horovod(monkeypatch):
    given = {"MY_TOKEN": "canary", "HOROVOD_RANK": "7", "HVD_NMT_RANKS": "9", "NCCL_DEBUG": "WARN",
             "CUDA_VISIBLE_DEVICES": "1", "HOROVOD_CYCLE_TIME": "7"}  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    say = f"import json, os; print({allreduce.MARK!r} + json.dumps(dict(os.environ)))"
    script = [sys.executable, "-c", say]
    monkeypatch.setattr(allreduce, "launch_command", lambda *arguments: script)
    seen = allreduce.measure(LOCAL, 400, None, timeout_s=600)
    assert "canary" not in seen.values()
    assert "HOROVOD_RANK" not in seen
    assert (seen["NCCL_DEBUG"], seen["HOROVOD_CYCLE_TIME"]) == ("WARN", "7")
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["HVD_NMT_RANKS"]) == ("1", "2")
    assert seen["PATH"].endswith(f":{os.environ['PATH']}")


def test_the_result_is_found_among_other_lines():
    result = {"bytes": 4, "seconds": [0.1], "latency_s": 0.01, "hosts": ["a"], "gpus": [0]}
    said = f"[1,1]<stderr>:noise\n[1,0]<stdout>:{allreduce.MARK}{json.dumps(result)}\n"
    assert allreduce.result_in(said, 0) == result


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("[1,1]<stderr>:hvd_nmt.diagnosis.allreduce: v100b runs 2 ranks but TensorFlow sees 1\n"
         "Process 1 exit with status code 5.\n", "v100b runs 2 ranks but TensorFlow sees 1"),
        ("RuntimeError: Horovod cannot ssh\n", "RuntimeError: Horovod cannot ssh"),
        ("", "it said nothing"),
    ],
)  # fmt: skip
def test_a_failure_says_why(said, reason):
    with pytest.raises(ClusterError) as raised:
        allreduce.result_in(said, 1)
    assert str(raised.value) == f"The all-reduce failed (exit code 1): {reason}"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["sleep", "600"], r"did not end within 0\.5 s: .*firewall"),
        (["/no/horovodrun"], "cannot be started"),
    ],
)
def test_a_launcher_that_hangs_or_is_not_there(monkeypatch, command, reason):
    monkeypatch.setattr(allreduce, "launch_command", lambda *arguments: command)
    with pytest.raises(ClusterError, match=reason):
        allreduce.measure(LOCAL, 400, None, timeout_s=0.5)


def test_the_number_of_bytes_must_be_one(capsys):
    assert allreduce.main(["many"]) == 2
    assert allreduce.main([]) == 2
    assert "number of bytes" in capsys.readouterr().err


@pytest.mark.long
def test_two_ranks_for_real():
    pytest.importorskip("horovod")
    result = allreduce.measure(LOCAL, 2_000_000, None, timeout_s=600)
    assert result["bytes"] == 2_000_000
    assert len(result["hosts"]) == len(result["gpus"]) == 2
    assert len(set(result["hosts"])) == 1
    assert len(result["seconds"]) >= 2
    assert min(result["seconds"]) > 0
    assert result["latency_s"] > 0

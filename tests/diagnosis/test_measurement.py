"""What ranks measure: the command, its result, its failures; once for real on two ranks."""

import dataclasses
import json
import os
import sys

import pytest

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.config import Config, ModelConfig, TrainingConfig, as_plain
from hvd_nmt.diagnosis import measurement
from hvd_nmt.diagnosis.hosts import Host
from hvd_nmt.diagnosis.measurement import Measurement, Request

LOCAL = [Host("localhost", 2)]
SMALL = ModelConfig(
    encoder_layers=1, decoder_layers=1, width=16, heads=2, feed_forward_width=32, max_length=32
)  # fmt: skip
CONFIG = Config(model=SMALL, training=TrainingConfig(precision="float32", device="cpu"))
REQUEST = Request(as_plain(CONFIG), 2_000_000, 64, 0, (8, 6, 5))
RESULT = Measurement([0.1], 0.01, 0.5, 1, ["a"], [0])


def test_the_command_gives_every_slot_a_rank_and_names_the_card():
    far = [Host("192.0.2.1", 2), Host("192.0.2.2", 3)]
    command = measurement.launch_command(far, REQUEST, "eth0")
    assert os.path.basename(command[0]) == "horovodrun"
    text = " ".join(command[1:])
    assert text.startswith("-np 5 -H 192.0.2.1:2,192.0.2.2:3 --disable-cache")
    assert " --network-interface eth0 " in text
    assert f"{sys.executable} -m hvd_nmt.diagnosis.measurement " in text
    assert Request(**json.loads(command[-1])).n_bytes == 2_000_000
    assert "--network-interface" not in measurement.launch_command(far, REQUEST, None)
    assert "--network-interface lo" in " ".join(measurement.launch_command(LOCAL, REQUEST, None))


def test_ranks_get_no_secret_and_no_other_job_s_horovod(monkeypatch):
    given = {"MY_TOKEN": "canary", "HOROVOD_RANK": "7", "HVD_NMT_RANKS": "9", "NCCL_DEBUG": "WARN",
             "CUDA_VISIBLE_DEVICES": "1", "HOROVOD_CYCLE_TIME": "7"}  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    say = f"import json, os; print({measurement.MARK!r} + json.dumps(dict(os.environ)))"
    script = [sys.executable, "-c", say]
    monkeypatch.setattr(measurement, "Measurement", dict)
    monkeypatch.setattr(measurement, "launch_command", lambda *arguments: script)
    seen = measurement.measure(LOCAL, REQUEST, None)
    assert "canary" not in seen.values()
    assert "HOROVOD_RANK" not in seen
    assert (seen["NCCL_DEBUG"], seen["HOROVOD_CYCLE_TIME"]) == ("WARN", "7")
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["HVD_NMT_RANKS"]) == ("1", "2")
    assert seen["PATH"].endswith(f":{os.environ['PATH']}")


def test_the_result_is_found_among_other_lines():
    line = measurement.MARK + json.dumps(dataclasses.asdict(RESULT))
    said = f"[1,1]<stderr>:noise\n[1,0]<stdout>:{line}\n"
    assert measurement.result_in(said, 0) == RESULT


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("[1,1]<stderr>:hvd_nmt.diagnosis.measurement: v100b runs 2 ranks but TensorFlow sees 1\n"
         "Process 1 exit with status code 5.\n", "v100b runs 2 ranks but TensorFlow sees 1"),
        ("RuntimeError: Horovod cannot ssh\n", "RuntimeError: Horovod cannot ssh"),
        ("", "it said nothing"),
    ],
)  # fmt: skip
def test_a_failure_says_why(said, reason):
    with pytest.raises(ClusterError) as raised:
        measurement.result_in(said, 1)
    assert str(raised.value) == f"The measurement failed (exit code 1): {reason}"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["sleep", "600"], r"did not end within 0\.5 s: .*firewall"),
        (["/no/horovodrun"], "cannot be started"),
    ],
)
def test_a_launcher_that_hangs_or_is_not_there(monkeypatch, command, reason):
    monkeypatch.setattr(measurement, "launch_command", lambda *arguments: command)
    monkeypatch.setattr(measurement, "_TIMEOUT_S", 0.5)
    with pytest.raises(ClusterError, match=reason):
        measurement.measure(LOCAL, REQUEST, None)


@pytest.mark.long
def test_two_ranks_for_real():
    pytest.importorskip("horovod")
    result = measurement.measure(LOCAL, REQUEST, None)
    assert len(result.hosts) == len(result.gpus) == 2
    assert len(set(result.hosts)) == 1
    assert len(result.seconds) >= 2
    assert min(*result.seconds, result.latency_s, result.compute_s) > 0
    assert result.slices == 1

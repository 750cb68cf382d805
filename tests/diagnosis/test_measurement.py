"""What ranks measure: the command, its result, its failures; once for real on two ranks."""

import dataclasses
import json
import os
import sys

import pytest

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.config import Config, ModelConfig, TrainingConfig
from hvd_nmt.diagnosis import measurement
from hvd_nmt.diagnosis.hosts import Answer, Host
from hvd_nmt.diagnosis.measurement import Measurement
from hvd_nmt.diagnosis.planned_run import PlannedRun

MODEL = ModelConfig(1, 1, 16, 2, 32, max_length=32)
CONFIG = Config(model=MODEL, training=TrainingConfig(precision="float32", device="cpu"))
LOCAL = PlannedRun(CONFIG, [Answer(Host("localhost", 2))])
RESULT = Measurement(0.1, 0.01, 0.5, None)


def starting(words):
    """Instead of horovodrun."""
    return lambda run: [sys.executable, "-c", words]


def test_the_command_gives_every_slot_a_rank_and_names_the_card():
    names = {"192.0.2.1": 2, "192.0.2.2": 3}
    facts = {"routes": dict.fromkeys(names, "eth0")}
    far = PlannedRun(CONFIG, [Answer(Host(name, n), facts) for name, n in names.items()])
    command = measurement._launch_command(far)
    assert os.path.basename(command[0]) == "horovodrun"
    text = " ".join(command[1:])
    assert text.startswith("-np 5 -H 192.0.2.1:2,192.0.2.2:3 --disable-cache")
    assert " --network-interface eth0 " in text
    assert f"{sys.executable} -m hvd_nmt.diagnosis.measurement " in text
    assert json.loads(command[-1])["config"]["model"]["width"] == 16
    assert "--network-interface lo" in " ".join(measurement._launch_command(LOCAL))


def test_ranks_get_no_secret_and_no_other_job_s_horovod(monkeypatch):
    given = {"MY_TOKEN": "canary", "HOROVOD_RANK": "7", "HVD_NMT_RANKS": "9", "NCCL_DEBUG": "WARN",
             "WANDB_BASE_URL": "canary", "CUDA_VISIBLE_DEVICES": "1"}  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    say = f"import json, os; print({measurement.MARK!r} + json.dumps(dict(os.environ)))"
    monkeypatch.setattr(measurement, "Measurement", dict)
    monkeypatch.setattr(measurement, "_launch_command", starting(say))
    seen = measurement.measure(LOCAL)
    assert "canary" not in seen.values()
    assert "HOROVOD_RANK" not in seen
    assert (seen["NCCL_DEBUG"], seen["CUDA_VISIBLE_DEVICES"]) == ("WARN", "1")
    assert seen["HVD_NMT_RANKS"] == "2"
    assert seen["PATH"].endswith(f":{os.environ['PATH']}")


def test_the_result_is_found_among_other_lines():
    line = measurement.MARK + json.dumps(dataclasses.asdict(RESULT))
    said = f"[1,1]<stderr>:noise\n[1,0]<stdout>:{line}\n"
    assert measurement._result(said, 0) == RESULT


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
        measurement._result(said, 1)
    assert str(raised.value) == f"The measurement failed (exit code 1): {reason}"


def test_a_launcher_that_hangs_or_is_not_there(monkeypatch):
    monkeypatch.setattr(measurement, "_TIMEOUT_S", 0.5)
    monkeypatch.setattr(measurement, "_launch_command", starting("import time; time.sleep(600)"))
    with pytest.raises(ClusterError, match=r"did not end within 0\.5 s: .*firewall"):
        measurement.measure(LOCAL)
    monkeypatch.setattr(measurement, "_launch_command", lambda run: ["/no/horovodrun"])
    with pytest.raises(ClusterError, match=r"/no/horovodrun cannot be started .*make install"):
        measurement.measure(LOCAL)


@pytest.mark.long
def test_two_ranks_for_real():
    pytest.importorskip("horovod")
    result = measurement.measure(LOCAL)
    assert min(result.all_reduce_s, result.latency_s, result.compute_s) > 0
    assert result.slices is None

"""What ranks measure, for real and by its failures; from that to step time, verdict and advice."""

import dataclasses
import json
import sys

import pytest

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.config import Config, DataConfig, ModelConfig, TrainingConfig, presets
from hvd_nmt.diagnosis import prediction
from hvd_nmt.diagnosis.checks import PlannedRun
from hvd_nmt.diagnosis.prediction import MARK, Measurement, Prediction
from hvd_nmt.hosts.facts import HostFacts
from hvd_nmt.hosts.host_list import Host

BASE = presets()["base"][1]
MEASURED = Measurement(all_reduce_s=1.7, latency_s=0.002, compute_s=0.1, tokens_per_step=62_400)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("rank 1 (b): hvd_nmt.bench: v100b runs 2 ranks but TensorFlow sees 1\n"
         "hvd_nmt.launch: No restart is allowed\n", "v100b runs 2 ranks but TensorFlow sees 1"),
        ("hvd_nmt.launch: no route to b\n", "hvd_nmt.launch: no route to b"),
        ("", "it said nothing"),
    ],
)  # fmt: skip
def test_the_result_is_found_among_other_lines_or_why_there_is_none(said, reason):
    line = MARK + json.dumps(dataclasses.asdict(MEASURED))
    assert prediction._result(f"{said}{line}\n", 0) == MEASURED
    with pytest.raises(ClusterError) as raised:
        prediction._result(said, 1)
    assert str(raised.value) == f"The measurement failed (exit code 1): {reason}"


def test_a_launcher_that_hangs(monkeypatch):
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(prediction, "_TIMEOUT_S", 0.5)
    monkeypatch.setattr(prediction, "_launch_command", lambda run: words)
    with pytest.raises(ClusterError, match=r"did not end within 0\.5 s: .*firewall"):
        prediction.measure(PlannedRun(BASE, []))


@pytest.mark.long
def test_two_ranks_for_real(toy_data):
    pytest.importorskip("horovod")
    config = Config(
        model=ModelConfig(1, 1, 16, 2, 32, max_length=32),
        data=DataConfig(toy_data, corpus="files"),
        training=TrainingConfig(precision="float32", device="cpu", tokens_per_step=128),
    )
    result = prediction.measure(PlannedRun(config, [HostFacts(Host("localhost", 2))]))
    assert min(dataclasses.astuple(result)) > 0


def predict(exchange="float32", hosts=2, **changes):
    """What the recipe will be like on hosts with 2 ranks each."""
    training = TrainingConfig(max_steps=50_000, tokens_per_step=31_200, exchange=exchange)
    answers = [HostFacts(Host(name, 2)) for name in ("a", "b")[:hosts]]
    run = PlannedRun(dataclasses.replace(BASE, training=training), answers)
    return Prediction(run, dataclasses.replace(MEASURED, **changes))


def test_the_verdict_is_by_what_a_step_computes_for():
    fast = predict(all_reduce_s=0.02, compute_s=0.5)
    assert (fast.verdict, fast.step.advice()) == ("compute-bound", [])
    assert predict(hosts=1).verdict == "communication-bound"
    assert predict(compute_s=6.7).verdict == "network-bound"
    assert predict(compute_s=6.9).verdict == "compute-bound"


def test_what_is_said_of_a_run(golden_page):
    """The exchange, and advice, best first."""
    said = {"the recipe": predict(), "float16": predict("float16"), "islands": predict("islands"),
            "one host": predict(hosts=1)}  # fmt: skip
    parts = ["\n".join([f"# {name}", *found.lines()]) for name, found in said.items()]
    golden_page("doctor-prediction.txt", "\n\n".join(parts) + "\n")

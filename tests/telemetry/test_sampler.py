"""The sampler: a real thread, real files, a full disk."""

import threading
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hvd_nmt.common import jsonl
from hvd_nmt.telemetry import sampler as sampler_module
from hvd_nmt.telemetry.sampler import Sampler, scalar_tags


class Intervals(threading.Event):
    """The event that ends the samples, after so many intervals that are over at once."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count
        self.thread_s: list[float] = []  # CPU time of the sampler's thread at each interval

    def wait(self, timeout: float | None = None) -> bool:
        self.thread_s.append(time.thread_time())
        self._left -= 1
        return self._left < 0


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Stopping waits for the samples that are to come, on a busy machine too."""
    monkeypatch.setattr(sampler_module, "_STOP_TIMEOUT_S", 600.0)


def sample(path: Path, count: int) -> Intervals:
    """Samples this host in a thread, so often."""
    sampler = Sampler(path, path.parent / "tensorboard", 0.25)
    sampler._stopping = intervals = Intervals(count)
    sampler.start()
    sampler.stop()
    return intervals


def shown(path: Path, tag: str) -> list:
    return EventAccumulator(str(path.parent / "tensorboard")).Reload().Scalars(tag)


def test_a_header_and_samples_and_a_second_start_continues_the_file(tmp_path, monkeypatch, capfd):
    path = tmp_path / "telemetry" / "v100a.jsonl"
    clock_s = iter([999.0, 1000.0, 1000.25, 1000.5, 1001.5, 1008.0, 1009.0, 1010.0, 1011.0])
    monkeypatch.setattr(jsonl, "uptime_s", lambda: next(clock_s))
    sample(path, 3)
    with path.open("ab") as file:
        file.write(b'{"kind":"sam')
    sample(path, 2)
    header, *samples = lines = list(jsonl.read(path))
    assert [line["kind"] for line in lines] == ["host", *["sample"] * 3, "host", *["sample"] * 2]
    assert (header["host"], header["interval_s"]) == ("v100a", 0.25)
    assert header["gpu_unavailable"] or header["gpus"] is not None
    assert "telemetry   v100a: " in capfd.readouterr().out
    loopback = samples[0]["nics"]["lo"]
    assert (loopback["is_loopback"], loopback["link_mbit_per_s"]) == (True, None)
    assert loopback["sent_MB_per_s"] >= 0
    points = shown(path, "host/memory_used_GB")
    assert [point.step for point in points] == [0, 1, 10, 11]
    assert points[0].value == pytest.approx(samples[0]["memory_used_bytes"] / 1e9)


def test_stop_does_not_wait_for_the_interval_and_may_be_called_again(tmp_path, caplog):
    sampler = Sampler(tmp_path / "a.jsonl", tmp_path / "tensorboard", 3600)
    sampler.start()
    for _ in range(2):
        sampler.stop()
    assert caplog.records == []  # it would say that a probe hangs
    assert [line["kind"] for line in jsonl.read(tmp_path / "a.jsonl")] == ["host"]


@pytest.mark.parametrize("reason", ["No space left on device", "File exists", "no CPU"])
def test_what_goes_wrong_ends_the_samples_and_nothing_else(tmp_path, caplog, monkeypatch, reason):
    path = tmp_path / "telemetry" / "v100a.jsonl"
    if reason == "File exists":
        path.parent.write_text("a file is in the way")
    elif reason == "no CPU":
        monkeypatch.setattr(sampler_module, "host_sample", lambda: {}["no CPU"])
    elif Path("/dev/full").exists():
        path.parent.mkdir()
        path.symlink_to("/dev/full")
    else:
        pytest.skip("needs /dev/full")
    sample(path, 5)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("v100a: telemetry stops (")
    assert message.endswith("), the training continues.")
    assert reason in message


def test_a_gpu_that_falls_off_the_bus_is_told_once_and_the_other_goes_on(
    nvml_library, tmp_path, caplog
):
    nvml_library.gpus, nvml_library.lost_after = 2, {1: 2}
    sample(tmp_path / "v100a.jsonl", 4)
    header, *samples = jsonl.read(tmp_path / "v100a.jsonl")
    assert [gpu["name"] for gpu in header["gpus"]] == ["Tesla V100-SXM2-16GB"] * 2
    assert header["gpu_unavailable"] is None
    assert shown(tmp_path / "v100a.jsonl", "gpu/0/power_w")
    for each, error in zip(samples, [None, *["GPU is lost"] * 3], strict=True):
        good, bad = each["gpus"]
        assert (good["utilisation_percent"], good["error"]) == (97, None)
        assert bad["error"] == error
        tags = [tag for tag in scalar_tags(each) if tag.startswith("gpu/1/")]
        assert ("gpu/1/memory_used_GB" in tags) == (error is None)
    assert caplog.messages == ["v100a: GPU 1 does not answer: GPU is lost"]


def test_every_value_that_is_a_number_has_a_tag_but_those_of_an_idle_interface():
    rates = {
        "utilisation_percent": 99, "memory_activity_percent": 4, "power_w": 80.0,
        "power_limit_w": 300.0, "energy_j": 12.5,
    }  # fmt: skip
    gpu = {"index": 1, "throttle_reasons": ["power cap"], "memory_used_bytes": 5_000_000_000}
    nic = {"sent_bytes_total": 1, "received_bytes_total": 1, "received_MB_per_s": None}
    nics = {"eth0": nic | {"sent_MB_per_s": 200.5}, "ib0": dict.fromkeys(nic, 0)}
    host = {"time_s": 7.0, "cpu_percent": 3.5, "memory_used_bytes": 2_500_000_000}
    assert scalar_tags({"gpus": [gpu | rates], "nics": nics} | host) == {
        **{f"gpu/1/{name}": value for name, value in rates.items()},
        "gpu/1/memory_used_GB": 5.0,
        "gpu/1/spinning": 1.0,
        "network/eth0/sent_MB_per_s": 200.5,
        "host/cpu_percent": 3.5,
        "host/memory_used_GB": 2.5,
    }


@pytest.mark.long
def test_it_costs_less_than_a_hundredth_of_a_core(nvml_library, tmp_path):
    """CPU time per sample, at the default of one per second; of its thread, not of the tests'."""
    nvml_library.gpus = 2
    begun_s, *_, ended_s = sample(tmp_path / "a.jsonl", 100).thread_s
    assert (ended_s - begun_s) / 100 < 0.01

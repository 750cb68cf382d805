"""The sampler: a real thread, real files, a full disk, a folder that vanishes."""

import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hvd_nmt.telemetry import jsonl
from hvd_nmt.telemetry import sampler as sampler_module
from hvd_nmt.telemetry.sampler import Sampler, scalar_tags


class Intervals(threading.Event):
    """A clock on which each wait is over at once, and the event that ends the samples.

    Args:
        count: of samples.
        before: number of a sample -> what happens before it.
    """

    def __init__(self, count: int, before: Mapping[int, Callable[[], object]] = {}) -> None:
        super().__init__()
        self.now_s = 0.0
        self._count, self._done, self._before = count, 0, before

    def __call__(self) -> float:
        return self.now_s

    def wait(self, timeout: float | None = None) -> bool:
        self.now_s += timeout or 0.0
        self._done += 1
        self._before.get(self._done, int)()
        return self._done > self._count


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Stopping waits for the samples that are to come, on a busy machine too."""
    monkeypatch.setattr(sampler_module, "_STOP_TIMEOUT_S", 600.0)


def sample(path: Path, intervals: Intervals, interval_s: float = 0.25) -> None:
    """Samples this host in a thread, to the end of the intervals."""
    events = path.parent / "tensorboard"
    own = {"clock": intervals, "stopping": intervals, "event_dir": events}
    with Sampler(path, interval_s, host="v100a", **own):
        pass


def sampled(path: Path, count: int) -> list[dict]:
    """A header and some samples of this host."""
    sample(path, Intervals(count))
    return list(jsonl.read(path))


def shown(path: Path, tag: str) -> list:
    return EventAccumulator(str(path.parent / "tensorboard")).Reload().Scalars(tag)


def test_three_seconds_of_samples_of_which_one_is_late(tmp_path):
    path = tmp_path / "telemetry" / "v100a.jsonl"

    def late():
        intervals.now_s += 0.375

    intervals = Intervals(11, {3: late})
    sample(path, intervals)
    header, *samples = jsonl.read(path)

    assert (header["kind"], header["host"], header["interval_s"]) == ("host", "v100a", 0.25)
    assert header["cores"] > 0
    assert header["nics"]["lo"]["is_loopback"]
    assert header["gpu_unavailable"] or header["gpus"] is not None

    grid = [0.25 * number for number in range(5, 13)]
    assert [each["monotonic_s"] for each in samples] == [0.25, 0.5, 1.125, *grid]
    assert {each["kind"] for each in samples} == {"sample"}
    for each in samples:
        assert each["nics"]["lo"]["sent_MB_per_s"] >= 0
        assert each["memory_used_bytes"] > 0

    points = shown(path, "host/memory_used_GB")
    assert [point.step for point in points] == [0, 1, 2, 3]
    assert points[0].value == pytest.approx(samples[0]["memory_used_bytes"] / 1e9)


def test_a_second_start_continues_the_file_with_a_header_of_its_own(tmp_path):
    path = tmp_path / "a.jsonl"
    for _ in range(2):
        sample(path, Intervals(3))
    with path.open("ab") as file:
        file.write(b'{"kind":"sam')
    kinds = [line["kind"] for line in jsonl.read(path)]
    assert kinds == ["host", "sample", "sample", "sample"] * 2
    first, second = (event.step for event in shown(path, "host/memory_used_GB"))
    assert first < second


def test_stop_does_not_wait_for_the_interval_and_may_be_called_again(tmp_path, caplog):
    with Sampler(tmp_path / "a.jsonl", 3600) as sampler:
        pass
    sampler.stop()
    assert caplog.records == []  # it would say that a probe hangs
    assert [line["kind"] for line in jsonl.read(tmp_path / "a.jsonl")] == ["host"]


def test_a_full_disk_ends_the_samples_and_nothing_else(tmp_path, caplog):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "a.jsonl").symlink_to("/dev/full")
    sample(tmp_path / "a.jsonl", Intervals(5))
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("Telemetry of v100a stops, the training goes on:")
    assert "No space left on device" in message


def test_a_folder_that_is_removed_or_cannot_be_made_ends_the_samples(tmp_path, caplog):
    folder = tmp_path / "telemetry"
    sample(folder / "a.jsonl", Intervals(5, {3: lambda: shutil.rmtree(folder)}))
    (message,) = [record.getMessage() for record in caplog.records]
    assert "deleted" in message
    assert not folder.exists()
    folder.write_text("a file is in the way")
    sample(folder / "a.jsonl", Intervals(5))
    assert "the training goes on" in caplog.records[1].getMessage()


def test_a_probe_that_fails_costs_its_own_values_and_is_told_once(tmp_path, caplog, monkeypatch):
    def broken():
        raise ZeroDivisionError("no CPU")

    monkeypatch.setattr(sampler_module, "host_sample", broken)
    _, *samples = sampled(tmp_path / "a.jsonl", 3)
    assert len(samples) == 3
    assert all("cpu_percent" not in each and "lo" in each["nics"] for each in samples)
    (message,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "the host probe failed: ZeroDivisionError: no CPU" in message


def test_a_gpu_that_falls_off_the_bus_is_told_once_and_the_other_goes_on(
    nvml_library, tmp_path, caplog
):
    nvml_library.gpus, nvml_library.lost_after = 2, {1: 3}
    header, *samples = sampled(tmp_path / "v100a.jsonl", 6)
    assert [gpu["name"] for gpu in header["gpus"]] == ["Tesla V100-SXM2-16GB"] * 2
    assert (header["gpu_driver_version"], header["gpu_unavailable"]) == ("535.161.08", None)
    tags = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tags()["scalars"]
    assert "gpu/0/power_w" in tags
    for number, each in enumerate(samples, start=1):
        good, bad = each["gpus"]
        assert (good["utilisation_percent"], good["error"]) == (97, None)
        assert good["energy_j"] == pytest.approx(250.5 * number)
        assert bad["uuid"] == header["gpus"][1]["uuid"]
        if number <= 3:
            assert (bad["utilisation_percent"], bad["error"]) == (98, None)
            assert scalar_tags(each)["gpu/1/memory_used_GB"] == pytest.approx(10.73741824)
        else:
            silent = {"index", "uuid", "error"}
            assert bad["error"] == "GPU is lost"
            assert {value for name, value in bad.items() if name not in silent} == {None}
            assert not [tag for tag in scalar_tags(each) if tag.startswith("gpu/1/")]
    (said,) = [record.getMessage() for record in caplog.records]
    uuid = header["gpus"][1]["uuid"]
    assert said == f"v100a: GPU 1 ({uuid}) does not answer: GPU is lost"
    assert nvml_library.asked_of_lost == ["UtilizationRates"]


def test_every_value_that_is_a_number_has_a_tag_but_those_of_an_idle_interface():
    rates = {
        "utilisation_percent": 99, "memory_activity_percent": 4, "power_w": 80.0,
        "power_limit_w": 300.0, "energy_j": 12.5,
    }  # fmt: skip
    gpu = {"index": 1, "throttle_reasons": ["power cap"], "memory_used_bytes": 5_000_000_000}
    nic = {"sent_bytes_total": 1, "received_bytes_total": 1}
    idle = {"sent_bytes_total": 0, "received_bytes_total": 0}
    nics = {"eth0": nic | {"sent_MB_per_s": 200.5, "received_MB_per_s": None}, "ib0": idle}
    host = {"cpu_percent": 3.5, "memory_used_bytes": 2_500_000_000}
    tags = scalar_tags({"gpus": [gpu | rates], "nics": nics} | host)
    assert tags == {
        **{f"gpu/1/{name}": value for name, value in rates.items()},
        "gpu/1/memory_used_GB": 5.0,
        "gpu/1/spinning": 1.0,
        "nic/eth0/sent_MB_per_s": 200.5,
        "host/cpu_percent": 3.5,
        "host/memory_used_GB": 2.5,
    }


@pytest.mark.long
def test_it_costs_less_than_a_hundredth_of_a_core(nvml_library, tmp_path):
    """CPU time per sample, at the default of one per second; the children are read every 10 s."""
    nvml_library.gpus = 2
    used_before_s = sum(psutil.Process().cpu_times()[:2])
    sample(tmp_path / "a.jsonl", Intervals(100))
    used_s = sum(psutil.Process().cpu_times()[:2]) - used_before_s
    assert used_s / 100 < 0.01

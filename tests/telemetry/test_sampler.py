"""The sampler: a real thread, real files, a full disk, a folder that vanishes."""

import itertools
import logging
import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hvd_nmt.telemetry import jsonl
from hvd_nmt.telemetry.host import HostProbe
from hvd_nmt.telemetry.sampler import Sampler, next_deadline_s, scalar_tags


def wait_until(condition, at_most_s: float = 10.0) -> None:
    end_s = time.monotonic() + at_most_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)


def test_deadlines_stay_on_their_grid_and_missed_ones_are_skipped():
    assert next_deadline_s(10.0, 10.0, 0.5) == 10.5
    assert next_deadline_s(10.0, 10.4, 0.5) == 10.5
    assert next_deadline_s(10.0, 11.7, 0.5) == 12.0
    assert next_deadline_s(10.0, 9.9, 0.5) == 10.5  # woken early: not the same deadline again


def test_three_seconds_of_samples(tmp_path):
    path = tmp_path / "telemetry" / "v100a.jsonl"
    events = tmp_path / "tensorboard" / "v100a"
    with Sampler(path, 0.2, host="v100a", event_dir=events):
        time.sleep(3.1)
    header, *samples = jsonl.read(path)

    assert (header["kind"], header["host"], header["interval_s"]) == ("host", "v100a", 0.2)
    assert header["boot_id"]
    assert header["nics"]["lo"]["is_loopback"]
    assert header["gpu_unavailable"] or header["gpus"] is not None

    # 15 are due; a busy machine may skip some, and drift would shift them off the grid.
    assert 10 <= len(samples) <= 15
    assert {sample["kind"] for sample in samples} == {"sample"}
    times_s = [sample["monotonic_s"] for sample in samples]
    assert all(later > earlier for earlier, later in itertools.pairwise(times_s))
    late_s = sorted((time_s - times_s[0] + 0.1) % 0.2 - 0.1 for time_s in times_s)
    assert abs(late_s[len(late_s) // 2]) < 0.05
    for sample in samples:
        assert sample["nics"]["lo"]["sent_MB_per_s"] >= 0
        assert 0 <= sample["cpu_percent"] <= 100
        assert sample["memory_used_bytes"] > 0
        assert sample["process_tree_bytes"] > 0

    shown = EventAccumulator(str(events)).Reload()
    points = shown.Scalars("host/memory_used_GB")
    steps = [point.step for point in points]
    assert steps == sorted(set(steps))
    assert steps[0] == 0
    assert steps[-1] in (1, 2, 3)
    assert points[0].value == pytest.approx(samples[0]["memory_used_bytes"] / 1e9)
    assert "nic/lo/sent_MB_per_s" in shown.Tags()["scalars"] or not any(
        sample["nics"]["lo"]["sent_bytes_total"] for sample in samples
    )


def test_a_second_start_continues_the_file_with_a_header_of_its_own(tmp_path):
    path, events = tmp_path / "a.jsonl", tmp_path / "tensorboard"
    for _ in range(2):
        with Sampler(path, 0.05, event_dir=events) as sampler:
            time.sleep(0.4)
        sampler.stop()
    with path.open("ab") as file:
        file.write(b'{"kind":"sam')
    kinds = [line["kind"] for line in jsonl.read(path)]
    assert kinds.count("host") == 2
    assert kinds[0] == "host"
    assert kinds[-1] == "sample"
    shown = EventAccumulator(str(events)).Reload().Scalars("host/cpu_percent")
    steps = [event.step for event in shown]
    assert len(steps) == 2
    assert steps[0] < steps[1]


def test_stop_does_not_wait_for_the_interval(tmp_path):
    sampler = Sampler(tmp_path / "a.jsonl", 3600)
    sampler.start()
    wait_until((tmp_path / "a.jsonl").exists)
    began_s = time.monotonic()
    sampler.stop()
    assert time.monotonic() - began_s < 5


def test_a_full_disk_ends_the_samples_and_nothing_else(tmp_path, caplog):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "a.jsonl").symlink_to("/dev/full")
    with Sampler(tmp_path / "a.jsonl", 0.05, host="v100a"):
        time.sleep(0.5)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("Telemetry of v100a stops, the training goes on:")
    assert "No space left on device" in message


def test_a_disk_that_fills_up_in_mid_run_keeps_whole_lines(tmp_path, caplog):
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", disk]).returncode:
        pytest.skip("may not mount a tmpfs here")
    try:
        with Sampler(disk / "a.jsonl", 0.01):
            wait_until(lambda: caplog.records)
            time.sleep(0.1)
        assert len(caplog.records) == 1
        assert "No space left on device" in caplog.records[0].getMessage()
        assert [line["kind"] for line in jsonl.read(disk / "a.jsonl")][:2] == ["host", "sample"]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_that_is_removed_ends_the_samples(tmp_path, caplog):
    folder = tmp_path / "telemetry"
    with Sampler(folder / "a.jsonl", 0.05):
        wait_until((folder / "a.jsonl").exists)
        shutil.rmtree(folder)
        wait_until(lambda: caplog.records)
        time.sleep(0.2)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "deleted" in message
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_told(tmp_path, caplog):
    (tmp_path / "telemetry").write_text("a file is in the way")
    with Sampler(tmp_path / "telemetry" / "a.jsonl", 0.05):
        time.sleep(0.2)
    assert "the training goes on" in caplog.text


def test_a_probe_that_fails_costs_its_own_values_and_is_told_once(tmp_path, caplog, monkeypatch):
    def broken(self):
        raise ZeroDivisionError("no CPU")

    monkeypatch.setattr(HostProbe, "sample", broken)
    with Sampler(tmp_path / "a.jsonl", 0.05, event_dir=tmp_path / "tensorboard"):
        time.sleep(0.5)
    _, *samples = jsonl.read(tmp_path / "a.jsonl")
    assert len(samples) >= 2
    assert all("cpu_percent" not in sample and "lo" in sample["nics"] for sample in samples)
    (message,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "the host probe failed: ZeroDivisionError: no CPU" in message


def sampled(path: Path, count: int, interval_s: float = 0.02) -> list[dict]:
    """The samples of this host, at least as many as wanted, after their header."""
    with Sampler(path, interval_s, host="v100a", event_dir=path.parent / "tensorboard"):
        wait_until(lambda: path.exists() and len(list(jsonl.read(path))) > count)
    return list(jsonl.read(path))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_gpus_in_the_header_and_in_every_sample(nvml_library, tmp_path, caplog, count):
    nvml_library.gpus = count
    header, *samples = sampled(tmp_path / "v100a.jsonl", 4)
    uuids = [f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in range(count)]
    assert [(gpu["uuid"], gpu["name"]) for gpu in header["gpus"]] == [
        (uuid, "Tesla V100-SXM2-16GB") for uuid in uuids
    ]
    assert (header["gpu_driver_version"], header["gpu_unavailable"]) == ("535.161.08", None)
    assert caplog.records == []
    for number, sample in enumerate(samples, start=1):
        assert (sample["kind"], sample["host"]) == ("sample", "v100a")
        assert [gpu["uuid"] for gpu in sample["gpus"]] == uuids
        for gpu in sample["gpus"]:
            assert gpu["energy_j"] == 250.5 * number
            assert gpu["power_w"] == 250.5 + gpu["index"] / 1000
            assert gpu["throttle_reasons"] == ["power cap"]
            assert bool(gpu["pcie_sent_MB_per_s"]) == ((number - 1 - gpu["index"]) % 10 == 0)
    tags = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tags()["scalars"]
    assert ("gpu/0/power_w" in tags) == (count > 0)
    assert "gpu/1/temperature_c" not in tags


def test_a_gpu_that_falls_off_the_bus_is_told_once_and_the_other_goes_on(
    nvml_library, tmp_path, caplog
):
    nvml_library.gpus, nvml_library.lost_after = 2, {1: 3}
    header, *samples = sampled(tmp_path / "v100a.jsonl", 25)
    for number, sample in enumerate(samples, start=1):
        good, bad = sample["gpus"]
        assert (good["utilisation_percent"], good["error"]) == (97, None)
        assert good["energy_j"] == pytest.approx(250.5 * number)
        assert bad["uuid"] == header["gpus"][1]["uuid"]
        if number <= 3:
            assert (bad["utilisation_percent"], bad["error"]) == (98, None)
            assert scalar_tags(sample)["gpu/1/memory_used_GB"] == pytest.approx(10.73741824)
        else:
            silent = {"index", "uuid", "error"}
            assert bad["error"] == "GPU is lost"
            assert {value for name, value in bad.items() if name not in silent} == {None}
            assert not [tag for tag in scalar_tags(sample) if tag.startswith("gpu/1/")]
    (said,) = [record.getMessage() for record in caplog.records]
    uuid = header["gpus"][1]["uuid"]
    assert said == f"v100a: GPU 1 ({uuid}) does not answer: GPU is lost"
    assert nvml_library.asked_of_lost == ["UtilizationRates"]


def test_tags_of_a_sample_are_flat_and_an_idle_interface_has_none():
    nic = {"sent_MB_per_s": 200.5, "received_MB_per_s": None}
    sample = {
        "gpus": [],
        "nics": {
            "eth0": {**nic, "sent_bytes_total": 9, "received_bytes_total": 0},
            "ib0": {**nic, "sent_bytes_total": 0, "received_bytes_total": 0},
        },
        "cpu_percent": 12.5,
        "memory_used_bytes": 2_500_000_000,
    }
    assert scalar_tags(sample) == {
        "nic/eth0/sent_MB_per_s": 200.5,
        "host/cpu_percent": 12.5,
        "host/memory_used_GB": 2.5,
    }


def test_every_value_that_is_a_number_has_a_tag():
    rates = {
        "utilisation_percent": 99, "memory_activity_percent": 4, "power_w": 80.0,
        "power_limit_w": 300.0, "energy_j": 12.5, "sm_clock_mhz": 1530, "temperature_c": 61,
        "nvlink_sent_MB_per_s": 1.0, "nvlink_received_MB_per_s": 2.0,
        "pcie_sent_MB_per_s": 3.0, "pcie_received_MB_per_s": 4.0,
    }  # fmt: skip
    gpu = {"index": 1, "throttle_reasons": ["power cap"], "memory_used_bytes": 5_000_000_000}
    nic = {
        "sent_bytes_total": 1, "received_bytes_total": 1, "sent_errors_total": 1,
        "received_errors_total": 2, "sent_drops_total": 30, "received_drops_total": 40,
    }  # fmt: skip
    tags = scalar_tags({"gpus": [gpu | rates], "nics": {"eth0": nic}, "load_1min": 3.5})
    assert tags == {
        **{f"gpu/1/{name}": value for name, value in rates.items()},
        "gpu/1/memory_used_GB": 5.0,
        "gpu/1/throttled": 1.0,
        "gpu/1/spinning": 1.0,
        "nic/eth0/errors_total": 3,
        "nic/eth0/drops_total": 70,
        "host/load_1min": 3.5,
    }


@pytest.mark.parametrize("gpus", [0, 2])
def test_it_costs_less_than_a_hundredth_of_a_core(nvml_library, tmp_path, gpus):
    """CPU time per sample, at the default of one per second; the children are read every 10 s."""
    nvml_library.gpus = gpus
    used_before_s = sum(psutil.Process().cpu_times()[:2])
    with Sampler(tmp_path / "a.jsonl", 0.02, event_dir=tmp_path / "tensorboard"):
        time.sleep(3.0)
    used_s = sum(psutil.Process().cpu_times()[:2]) - used_before_s
    _, *samples = jsonl.read(tmp_path / "a.jsonl")
    assert len(samples) > 50
    assert used_s / len(samples) < 0.01

"""Means and energies of GPUs, in steps alone."""

import pytest

from hvd_nmt.explain import processors
from hvd_nmt.records.record import HostSamples, Interval, Run


def run_of(tmp_path, intervals=(), telemetry=()):
    return Run("r", tmp_path, "hvd_nmt", intervals=tuple(intervals), telemetry=tuple(telemetry))


def gpu_samples(points):
    """A host with one GPU: (seconds, W), or (seconds, W, J counted, number of the start)."""
    samples = []
    for point in points:
        time_s, power_w, energy_j, start = (*point, None, 0)[:4]
        gpu = {"index": 0, "power_w": power_w, "energy_j": energy_j}
        samples.append({"time_s": time_s, "start": start, "gpus": [gpu], "nics": {}})
    return HostSamples("a", {"interval_s": 1.0, "gpus": [{"index": 0, "name": "V100"}]}, samples)


@pytest.mark.parametrize(
    ("points", "energy_j"),
    [
        # It counts on in a pause of the sampler, and begins anew with the next start.
        ([(0, 50.0, 10.0, 0), (100, 50.0, 9010.0, 0), (5000, 50.0, 20.0, 1), (5001, 50.0, 80.0, 1)],
         9060),
        # A start of a larger count than the last one of the start before.
        ([(0, 50.0, 0.0, 0), (1, 50.0, 50.0, 0), (2, 50.0, 70.0, 1), (3, 50.0, 120.0, 1)], 100),
        # Nothing is told.
        ([(0, 50.0), (1, 50.0, 5.0, 0)], None),
    ],
)  # fmt: skip
def test_energy_is_what_the_gpu_counted(tmp_path, points, energy_j):
    (use,) = processors.gpu_use(run_of(tmp_path, telemetry=[gpu_samples(points)]))
    assert use.energy_j == energy_j
    assert use.power_w is None  # no step ran
    assert use.name == "a:0 V100"


def test_only_samples_in_steps_count(tmp_path):
    # Steps from 0 to 10 and from 20 to 30; an evaluation between them.
    rows = [Interval(step, 10, time_s=at_s, step_s=1.0) for step, at_s in ((10, 10.0), (20, 30.0))]
    points = [(time_s, 300.0 if time_s <= 10 or time_s >= 20 else 50.0) for time_s in range(31)]
    assert processors.gpu_use(run_of(tmp_path, rows, [gpu_samples(points)]))[0].power_w == 300.0

"""What TensorFlow sees, what products alone reach, and our telemetry under that load."""

import contextlib
import statistics
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from check import ENV, gpu_in_use, started
from results import Results

from hvd_nmt.common.units import flop_rate
from hvd_nmt.telemetry.gpu import GpuProbe
from hvd_nmt.training import benchmark, devices, horovod

SIZE = int(ENV["SIZE"])
LOAD_S = 6.0
"""seconds of products while telemetry is compared with nvidia-smi"""
SMI_FIELDS = {
    "utilisation_percent": "utilization.gpu",
    "memory_activity_percent": "utilization.memory",
    "memory_used_bytes": "memory.used",
    "power_w": "power.draw",
    "power_limit_w": "enforced.power.limit",
    "throttle_reasons": "clocks_event_reasons.active",
    None: "clocks.sm",
}
"""field of our telemetry -> that of nvidia-smi, whose clock is shown alone"""


def main() -> None:
    """Measure, a row at a time."""
    results, rank = Results("device"), started()
    built = tf.sysconfig.get_build_info()
    names = (name for name in ("cuda_version", "cudnn_version") if name in built)
    gpus = tf.config.get_visible_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else "no GPU in use"
    results.line(
        f"{devices.description(rank)}, {details}. TensorFlow {tf.__version__} built for "
        f"{', '.join(f'{name} {built[name]}' for name in names) or 'no CUDA'}; gradients are "
        f"summed by {horovod.reduced_by()}."
    )
    results.table(f"Products of {SIZE:,} x {SIZE:,}", "arithmetic", "rate")
    for precision, tf32 in (
        ("bfloat16", True), ("float16", True), ("float32", True), ("float32", False)
    ):  # fmt: skip
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        rate = benchmark.product_rate(precision, SIZE, SIZE, SIZE)
        name = f"float32, TF32 {'on' if tf32 else 'off'}" if precision == "float32" else precision
        results.row(name, flop_rate(rate), flop_per_s=rate)
    telemetry(results)


def telemetry(results: Results) -> None:
    """Each field of our telemetry beside what nvidia-smi says in the same second, under load."""
    with contextlib.closing(GpuProbe()) as probe:
        index = gpu_in_use()
        if index is None:
            results.line(f"Telemetry is not compared: {probe.unavailable or 'no GPU in use'}.")
            return
        with products():
            began_s, samples = time.monotonic(), []
            while time.monotonic() < began_s + LOAD_S:
                time.sleep(1.0)
                ours = probe.sample()[index]
                samples.append((time.monotonic(), ours, smi(index)))
    results.table("Telemetry under load", "field", "ours, median", "nvidia-smi, median", "each")
    for field, theirs in SMI_FIELDS.items():
        pairs = [(shown(field, ours), said[theirs]) for _, ours, said in samples]
        medians = (median(side) for side in zip(*pairs, strict=True))
        each = "; ".join(f"{a} / {b}" for a, b in pairs[-3:])
        results.row(field or theirs, *medians, each, pairs=pairs)
    (first_s, first, _), (last_s, last, _) = samples[0], samples[-1]
    used_j = last["energy_j"] - first["energy_j"] if last["energy_j"] else None
    powers_w = [number(said["power.draw"]) for _, _, said in samples]
    known_w = [power_w for power_w in powers_w if power_w is not None]
    expected_j = statistics.fmean(known_w) * (last_s - first_s) if known_w else None
    results.row(
        "energy_j over the load", str(used_j), f"{expected_j} by power.draw x time",
        used_j=used_j, expected_j=expected_j,
    )  # fmt: skip


@contextlib.contextmanager
def products() -> Iterator[None]:
    """Large products on the GPU, one after another, while the block runs."""
    ended = threading.Event()
    matrix = tf.cast(tf.random.stateless_normal([SIZE, SIZE], [1, 2]), "bfloat16")

    def load() -> None:
        while not ended.is_set():
            for _ in range(20):
                made = tf.matmul(matrix, matrix)
            made[0, 0].numpy()

    worker = threading.Thread(target=load)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()


def shown(field: str | None, sample: dict[str, Any]) -> Any:
    """A field of our sample, in the unit of nvidia-smi."""
    value = sample.get(field or "")
    is_memory = field == "memory_used_bytes" and value is not None
    return f"{value / 2**20:.0f} MiB" if is_memory else value


def smi(index: int) -> dict[str, str]:
    """What nvidia-smi says of a GPU now, field -> value with its unit."""
    fields = list(SMI_FIELDS.values())
    asked = ",".join(fields)
    for query in (asked, asked.replace("event", "throttle")):  # its name before driver 535
        command = ["nvidia-smi", f"--id={index}", f"--query-gpu={query}", "--format=csv,noheader"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        values = [value.strip() for value in said.stdout.split(",")]
        if len(values) == len(fields):
            return dict(zip(fields, values, strict=True))
    return dict.fromkeys(fields, " ".join(said.stdout.split())[:80])


def median(values: Iterable[Any]) -> str:
    """The median of numbers, with or without units; of anything else the last value."""
    listed = list(values)
    numbers = [number(value) for value in listed]
    return str(listed[-1]) if None in numbers else f"{statistics.median(numbers):,.1f}"


def number(value: Any) -> float | None:
    """The number in "310.5 W" or 310.5; None if there is none."""
    try:
        return float(str(value).split()[0])
    except (ValueError, IndexError):
        return None


if __name__ == "__main__":
    main()

"""The dearest kernels of a training step, the number of launches, and when none ran."""

import collections
import statistics
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf
from check import PRECISIONS, PRESETS, WORK, started
from results import Results
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from training import Training

STEPS = 3
"""that are traced"""
Event = tuple[str, int, int]
"""name, begin and end in picoseconds"""


def main() -> None:
    """Trace some steps and report."""
    results, rank = Results("profile"), started()
    preset, precision = PRESETS[0], PRECISIONS[0]
    folder = WORK / "trace"
    plain_s, traced_s = traced(Training(rank, preset, precision), folder)
    results.line(
        f"A step of {preset} in {precision}: {plain_s:.4f} s; "
        f"while traced {statistics.mean(traced_s):.4f} s.",
        plain_s=plain_s, traced_s=traced_s,
    )  # fmt: skip
    kernels = kernel_events(next(folder.rglob("*.xplane.pb")))
    if not kernels:
        results.line("The trace holds no kernel of a GPU: CUPTI is missing, or there is no GPU.")
        return
    report_kernels(results, kernels)


def traced(training: Training, folder: Path) -> tuple[float, list[float]]:
    """Seconds of a step, and those of steps while their trace was recorded."""
    plain_s = statistics.median(step.step_s for step in training.steps(5))
    tf.profiler.experimental.start(str(folder))
    try:
        return plain_s, [step.step_s for step in training.steps(STEPS)]
    finally:
        tf.profiler.experimental.stop()


def kernel_events(path: Path) -> list[Event]:
    """What ran on the streams of a GPU, by a trace; without one, on threads of the processor."""
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    planes = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    is_gpu = bool(planes)
    found = []
    for plane in planes or [plane for plane in space.planes if plane.name == "/host:CPU"]:
        names = {key: metadata.name for key, metadata in plane.event_metadata.items()}
        for line in plane.lines:
            if is_gpu and not line.name.startswith("Stream"):
                continue  # what a line for TensorFlow's names or XLA's modules repeats
            begin_ps = line.timestamp_ns * 1000
            for event in line.events:
                start_ps = begin_ps + event.offset_ps
                found.append((names[event.metadata_id], start_ps, start_ps + event.duration_ps))
    return sorted(found, key=lambda event: event[1])


def report_kernels(results: Results, kernels: Sequence[Event]) -> None:
    """The table of the dearest, and a sentence about launches and gaps."""
    busy_ps, gaps, until = 0, 0, kernels[0][1]
    for _, start, end in kernels:
        gaps += start > until
        busy_ps += max(0, end - max(start, until))
        until = max(until, end)
    span_ps = until - kernels[0][1]
    results.line(
        f"{len(kernels) / STEPS:,.0f} launches a step. From the first of {STEPS} steps to the "
        f"last, one ran in {busy_ps / span_ps:.1%} of the time; {gaps / STEPS:,.0f} gaps a step, "
        f"{(span_ps - busy_ps) / STEPS / 1e9:.2f} ms together.",
        launches=len(kernels), busy_share=busy_ps / span_ps, gaps=gaps, span_s=span_ps / 1e12,
    )  # fmt: skip
    total_ps: collections.Counter[str] = collections.Counter()
    times: collections.Counter[str] = collections.Counter()
    for name, start, end in kernels:
        total_ps[name] += end - start
        times[name] += 1
    all_ps = sum(total_ps.values())
    results.table("Dearest kernels", "kernel", "ms a step", "share", "launches a step")
    for name, ps in total_ps.most_common(10):
        results.row(name[:120], f"{ps / STEPS / 1e9:.2f}", f"{ps / all_ps:.1%}",
                    f"{times[name] / STEPS:,.0f}", ps=ps, times=times[name])  # fmt: skip
    more = [(name, ps, times[name]) for name, ps in total_ps.most_common(60)]
    results.record(kernels=more)


if __name__ == "__main__":
    main()

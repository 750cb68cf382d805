"""One measurement of the ranks of a run to come: what their link takes for a step, and computing.

    horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.diagnosis.measurement JSON

`measure` starts that and reads the line of JSON that rank 0 prints. Each rank takes its GPU as in
training, so the gradient takes the way that it will take there; on GPUs the widest step is tried.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvd_nmt.common.errors import ClusterError, reported, speak_utf8
from hvd_nmt.common.rank_environment import rank_environment
from hvd_nmt.config import Config
from hvd_nmt.config.serialization import from_plain
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.diagnosis.hosts import Host, is_here

MARK = "hvd_nmt.measurement "
_COMMAND = "hvd_nmt.diagnosis.measurement"
_TIMEOUT_S = 300.0
"""for all of it, start included"""
_ROUNDS = 5
_BUDGET_S = 4.0
_LATENCY_ROUNDS = 20
_OF_TRACKERS = ("MLFLOW_", "WANDB_")
"""their addresses may hold a password"""


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be measured, on all ranks."""

    config: dict[str, Any]
    """of the run, plain values"""
    n_bytes: int
    """gradients of a step"""
    vocabulary_size: int
    source_vocabulary_size: int
    batch: tuple[int, int, int]
    """rows, source and target tokens of a usual batch of a rank"""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was measured."""

    seconds: list[float]
    """of each round of an all-reduce of the gradients, the slowest rank's"""
    latency_s: float
    """of one number"""
    compute_s: float
    """forward and backward pass of a usual batch, on the slowest rank"""
    slices: int
    """in which the widest step fits on all GPUs; 1 without GPUs; 0: it never does"""
    hosts: list[str]
    """by rank"""
    gpus: list[int]
    """that TensorFlow sees, by rank"""


def measure(hosts: Sequence[Host], request: Request, nic: str | None) -> Measurement:
    """Measure on all slots of some hosts.

    Raises:
        ClusterError: it did not come to an end, or not in time; with the reason of a rank.
    """
    command = launch_command(hosts, request, nic)
    environment = {
        name: text for name, text in rank_environment(sum(host.slots for host in hosts)).items()
        if not name.startswith(_OF_TRACKERS)  # horovodrun shows them to everybody
    }  # fmt: skip
    try:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise ClusterError(
            f"{command[0]} cannot be started ({error.strerror}): make install builds Horovod."
        ) from None
    try:
        output, _ = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"The measurement did not end within {_TIMEOUT_S:g} s: see whether a firewall lets the "
            "hosts connect to each other's ports from 1024 on."
        ) from None
    finally:
        if process.returncode is None:
            _stop(process)
    return result_in(output, process.returncode)


def launch_command(hosts: Sequence[Host], request: Request, nic: str | None) -> list[str]:
    """The words of horovodrun for one rank per slot."""
    if all(is_here(host.name) for host in hosts):
        nic = "lo"
    slots = ",".join(f"{host.name}:{host.slots}" for host in hosts)
    return [
        # Beside this Python, as on the other hosts.
        os.fspath(Path(sys.executable).parent / "horovodrun"),
        "-np", str(sum(host.slots for host in hosts)), "-H", slots, "--disable-cache",
        *(("--network-interface", nic) if nic else ()),
        sys.executable, "-m", _COMMAND, json.dumps(dataclasses.asdict(request)),
    ]  # fmt: skip


def result_in(output: str, exit_code: int) -> Measurement:
    """The result among the lines of all ranks.

    Raises:
        ClusterError: there is none; says what a rank or else the launcher said last.
    """
    lines = [line.partition(">:")[2] or line for line in output.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):
                return Measurement(**json.loads(line.removeprefix(MARK)))
    sentences = [line.partition(f"{_COMMAND}: ")[2] for line in lines if f"{_COMMAND}: " in line]
    reason = sentences[0] if sentences else (lines[-1].strip() if lines else "it said nothing")
    raise ClusterError(f"The measurement failed (exit code {exit_code}): {reason}")


def _stop(process: subprocess.Popen[str]) -> None:
    """End horovodrun, which then ends its ranks."""
    for number, patience_s in (signal.SIGTERM, 15.0), (signal.SIGKILL, None):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=patience_s)
            return


def main(argv: Sequence[str] | None = None) -> int:
    """Take part as one rank; rank 0 prints the result. Returns the exit code."""
    speak_utf8()
    (word,) = sys.argv[1:] if argv is None else argv
    with reported(_COMMAND) as outcome:
        _take_part(Request(**json.loads(word)))
    return outcome.exit_code


def _take_part(request: Request) -> None:
    from hvd_nmt.common import tensorflow_import

    tensorflow_import.import_tensorflow()
    import tensorflow as tf

    from hvd_nmt.training import devices, horovod

    config = from_plain(request.config, "the request")
    rank = horovod.init()
    with horovod.raise_on_all_ranks():
        devices.set_up(rank, "cpu" if config.training.device == "cpu" else None)
    gpus = len(tf.config.get_visible_devices("GPU"))

    def seconds(tensor: tf.Tensor, name: str) -> float:
        """Of one all-reduce: what the slowest rank saw, after all were ready."""
        float(horovod.sum_over_ranks(one, name="ready")[0])
        started_s = time.perf_counter()
        float(horovod.sum_over_ranks(tensor, name=name)[0])  # fetched: a GPU works behind our back
        return time.perf_counter() - started_s

    with horovod.end_when_ranks_are_lost(_COMMAND):
        one, big = tf.ones([1]), tf.ones([request.n_bytes // 4])
        latency_s = statistics.median(seconds(one, "one") for _ in range(_LATENCY_ROUNDS))
        rounds = [max(horovod.gather(seconds(big, "big")))]
        # The first also takes memory and, on GPUs, builds NCCL's ring: it counts only if it is so
        # long that there is no time for others.
        if rounds[0] < 2 * _BUDGET_S:
            more = max(2, min(_ROUNDS, int(_BUDGET_S / rounds[0])))
            rounds = [max(horovod.gather(seconds(big, "big"))) for _ in range(more)]
        with horovod.raise_on_all_ranks():
            model = _model(request, config, rank)
        slices = _slices(config, model)
        computing = _compute_s(model, PaddedBatch(*request.batch), max(1, slices))
        ranks = horovod.gather([rank.host, gpus, latency_s, computing])
    if rank.is_first:
        hosts, of_gpus, latencies_s, computing_s = zip(*ranks, strict=True)
        found = Measurement(
            rounds, max(latencies_s), max(computing_s), slices, list(hosts), list(of_gpus)
        )
        print(MARK + json.dumps(dataclasses.asdict(found)), flush=True)
    horovod.shutdown()


def _model(request: Request, config: Config, rank: Any) -> Any:
    """A `step.TrainingModel` with fresh weights."""
    from hvd_nmt.model import architectures
    from hvd_nmt.training import devices, optimizer
    from hvd_nmt.training.step import TrainingModel

    precision = devices.pick_precision(config.training.precision)
    transformer = architectures.build(
        config.model, request.vocabulary_size, precision, config.training.seed,
        source_vocabulary_size=request.source_vocabulary_size,
    )  # fmt: skip
    model = TrainingModel(transformer, config.training, rank)
    model.compile(optimizer=optimizer.build(config.training, precision, model.trained))
    return model


def _slices(config: Config, model: Any) -> int:
    """In how many slices the widest step fits on all ranks; 0: not even row by row."""
    from hvd_nmt.model import device
    from hvd_nmt.training import horovod, slicing

    if not any(horovod.gather(device.is_gpu())):
        return 1
    length = config.model.max_length
    rows = max(1, config.training.tokens_per_step // model.rank.size // length)
    batch = PaddedBatch(rows, length, length)
    slices = slicing.slices_that_fit(model, batch)
    if slices < rows:
        return slices
    fits = not device.is_gpu() or slicing.computes(model, batch, rows)
    return rows if all(horovod.gather(fits)) else 0


def _compute_s(model: Any, batch: PaddedBatch, slices: int) -> float:
    """The median of some forward and backward passes."""
    import tensorflow as tf

    from hvd_nmt.training import slicing

    ids, slices = slicing.filled(batch), min(slices, batch.rows)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        return tf.add_n(
            [tf.reduce_sum(tf.cast(g, tf.float32)) for g in model.own_gradients(ids, slices)]
        )

    def seconds() -> float:
        started_s = time.perf_counter()
        float(step())
        return time.perf_counter() - started_s

    seconds()
    return statistics.median(seconds() for _ in range(_ROUNDS))


if __name__ == "__main__":
    sys.exit(main())

"""One measurement of the ranks of a run to come: what their link takes for a step, and computing.

    horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.diagnosis.measurement JSON

`measure` starts that and reads the line of JSON that rank 0 prints. Each rank takes its GPU as in
training, so the gradient takes the way that it will take there; on GPUs the widest step is tried.
"""

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
from hvd_nmt.config import Config, as_plain
from hvd_nmt.config.serialization import from_plain
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.diagnosis.checks import used_nic
from hvd_nmt.diagnosis.hosts import is_here
from hvd_nmt.diagnosis.planned_run import PlannedRun

MARK = "hvd_nmt.measurement "
_COMMAND = "hvd_nmt.diagnosis.measurement"
_TIMEOUT_S = 300.0
"""for all of it, start included"""
_PATIENCE_S = 15.0
"""that horovodrun has to end its ranks"""
_ROUNDS = 5
_OF_TRACKERS = ("MLFLOW_", "WANDB_")
"""their addresses may hold a password"""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was measured, of each the slowest rank's."""

    all_reduce_s: float
    """of all gradients in float32"""
    latency_s: float
    """of one number"""
    compute_s: float
    """forward and backward pass of a usual batch"""
    slices: int | None
    """in which the widest step fits on all GPUs; None: there are none; 0: it never does"""


def measure(run: PlannedRun) -> Measurement:
    """Measure on all slots of the hosts of a run.

    Raises:
        ClusterError: it did not come to an end, or not in time; with the reason of a rank.
    """
    environment = {
        name: text for name, text in rank_environment(run.ranks).items()
        if not name.startswith(_OF_TRACKERS)  # horovodrun shows them to everybody
    }  # fmt: skip
    command = _launch_command(run)
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
    return _result(output, process.returncode)


def _stop(process: subprocess.Popen[str]) -> None:
    """End horovodrun and what is left of its session: SIGTERM lets it end its ranks first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_PATIENCE_S)


def _launch_command(run: PlannedRun) -> list[str]:
    """The words of horovodrun for one rank per slot."""
    hosts = [answer.host for answer in run.answers]
    nic = "lo" if all(is_here(host.name) for host in hosts) else used_nic(run.answers)
    config = as_plain(run.config)
    request = {
        "config": {field.name: config[field.name] for field in dataclasses.fields(Config)},
        "vocabulary_size": run.vocabulary_size,
        "source_vocabulary_size": run.source_vocabulary_size,
        "batch": run.usual_batch,
    }
    return [
        # Beside this Python, as on the other hosts.
        os.fspath(Path(sys.executable).parent / "horovodrun"),
        "-np", str(run.ranks), "-H", ",".join(f"{host.name}:{host.slots}" for host in hosts),
        "--disable-cache", *(("--network-interface", nic) if nic else ()),
        sys.executable, "-m", _COMMAND, json.dumps(request),
    ]  # fmt: skip


def _result(output: str, exit_code: int) -> Measurement:
    """The result among the lines of all ranks.

    Raises:
        ClusterError: there is none; says what a rank or else the launcher said last.
    """
    lines = [line.partition(">:")[2] or line for line in output.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(MARK):
            return Measurement(**json.loads(line.removeprefix(MARK)))
    sentences = [line.partition(f"{_COMMAND}: ")[2] for line in lines if f"{_COMMAND}: " in line]
    reason = [*sentences, *reversed(lines), "it said nothing"][0].strip()
    raise ClusterError(f"The measurement failed (exit code {exit_code}): {reason}")


def main(argv: Sequence[str] | None = None) -> int:
    """Take part as one rank; rank 0 prints the result. Returns the exit code."""
    speak_utf8()
    (word,) = sys.argv[1:] if argv is None else argv
    with reported(_COMMAND) as outcome:
        _take_part(json.loads(word))
    return outcome.exit_code


def _take_part(request: dict[str, Any]) -> None:
    from hvd_nmt.common import tensorflow_import

    tensorflow_import.import_tensorflow()

    from hvd_nmt.training import cluster, devices, horovod

    config = from_plain(request["config"], "the request", Config())
    rank = horovod.init()
    with horovod.end_when_ranks_are_lost(_COMMAND):
        with horovod.raise_on_all_ranks():
            devices.set_up(rank, config.training.device)
            model = _model(request, config, rank)
        slices = _slices(config, model)
        own = (
            cluster.check_averaging(model.optimizer, model.trained, rank),
            cluster.latency_s(),
            _compute_s(model, PaddedBatch(*request["batch"]), slices or 1),
        )
        reduced_s, latency_s, compute_s = map(max, zip(*horovod.gather(own), strict=True))
    if rank.is_first:
        found = Measurement(reduced_s, latency_s, compute_s, slices)
        print(MARK + json.dumps(dataclasses.asdict(found)), flush=True)
    horovod.shutdown()


def _model(request: dict[str, Any], config: Config, rank: Any) -> Any:
    """A `step.TrainingModel` with fresh weights."""
    from hvd_nmt.model.transformer import build_transformer
    from hvd_nmt.training import devices, optimizer
    from hvd_nmt.training.step import TrainingModel

    precision = devices.pick_precision(config.training.precision)
    transformer = build_transformer(
        config.model, request["vocabulary_size"], precision, config.training.seed,
        source_vocabulary_size=request["source_vocabulary_size"],
    )  # fmt: skip
    model = TrainingModel(transformer, config.training, rank)
    model.compile(optimizer=optimizer.build(config.training, precision, model.trained))
    return model


def _slices(config: Config, model: Any) -> int | None:
    """In how many slices the widest step fits on all GPUs; 0: not even row by row; None: no GPU."""
    from hvd_nmt.model import device
    from hvd_nmt.training import horovod, micro_batches

    if not any(horovod.gather(device.is_gpu())):
        return None
    length = config.model.max_length
    rows = max(1, config.training.tokens_per_step // model.rank.size // length)
    batch = PaddedBatch(rows, length, length)
    slices = micro_batches.slices_that_fit(model.own_gradients, batch)
    if slices < rows:
        return slices
    fits = not device.is_gpu() or micro_batches.fits(model.own_gradients, batch, rows)
    return rows if all(horovod.gather(fits)) else 0


def _compute_s(model: Any, batch: PaddedBatch, slices: int) -> float:
    """The median of some forward and backward passes."""
    import tensorflow as tf

    from hvd_nmt.training import micro_batches

    ids, slices = micro_batches.filled(batch), min(slices, batch.rows)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        return tf.add_n(
            [tf.reduce_sum(tf.cast(g, tf.float32)) for g in model.own_gradients(ids, slices)[1]]
        )

    times_s = []
    for _ in range(1 + _ROUNDS):  # the first also builds the graph
        started_s = time.perf_counter()
        float(step())  # fetched: a GPU works behind our back
        times_s.append(time.perf_counter() - started_s)
    return statistics.median(times_s[1:])


if __name__ == "__main__":
    sys.exit(main())

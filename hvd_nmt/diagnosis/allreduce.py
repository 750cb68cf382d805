"""A real all-reduce between the hosts, timed.

    horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.diagnosis.allreduce 243523584

`measure` starts that and reads the line of JSON that rank 0 prints. Each rank takes its GPU as in
training, so the gradient takes the way that it will take there.
"""

from __future__ import annotations

import contextlib
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

from hvd_nmt.common.errors import ClusterError, ConfigError, reported, speak_utf8
from hvd_nmt.common.rank_environment import rank_environment
from hvd_nmt.diagnosis.hosts import Host, is_here

MARK = "hvd_nmt.allreduce "
_COMMAND = "hvd_nmt.diagnosis.allreduce"
_ROUNDS = 5
_BUDGET_S = 4.0
_LATENCY_ROUNDS = 20
_OF_TRACKERS = ("MLFLOW_", "WANDB_")
"""their addresses may hold a password"""


def measure(
    hosts: Sequence[Host], n_bytes: int, nic: str | None, timeout_s: float
) -> dict[str, Any]:
    """Time an all-reduce over all slots of some hosts.

    Args:
        hosts: hosts and slots, two ranks or more.
        n_bytes: size of the tensor, a multiple of 4.
        nic: interface between the hosts, of one name on all; None: horovodrun looks for it.
        timeout_s: for all of it, start included.

    Returns:
        What `main` prints: `seconds` of each round, `latency_s`, `hosts` and `gpus` by rank,
        `bytes`.

    Raises:
        ClusterError: it did not come to an end, or not in time; with the reason of a rank.
    """
    command = launch_command(hosts, n_bytes, nic)
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
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"The all-reduce did not end within {timeout_s:g} s: see whether a firewall lets the "
            "hosts connect to each other's ports from 1024 on, or raise --all-reduce-timeout-s."
        ) from None
    finally:
        if process.returncode is None:
            _stop(process)
    return result_in(output, process.returncode)


def launch_command(hosts: Sequence[Host], n_bytes: int, nic: str | None) -> list[str]:
    """The words of horovodrun for one rank per slot.

    Args:
        hosts: hosts and slots.
        n_bytes: size of the tensor.
        nic: interface between the hosts; None: horovodrun looks for it.
    """
    if all(is_here(host.name) for host in hosts):
        nic = "lo"
    slots = ",".join(f"{host.name}:{host.slots}" for host in hosts)
    return [
        # Beside this Python, as on the other hosts.
        os.fspath(Path(sys.executable).parent / "horovodrun"),
        "-np", str(sum(host.slots for host in hosts)), "-H", slots, "--disable-cache",
        *(("--network-interface", nic) if nic else ()),
        sys.executable, "-m", _COMMAND, str(n_bytes),
    ]  # fmt: skip


def result_in(output: str, exit_code: int) -> dict[str, Any]:
    """The result among the lines of all ranks.

    Raises:
        ClusterError: there is none; says what a rank or else the launcher said last.
    """
    lines = [line.partition(">:")[2] or line for line in output.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):
                return dict(json.loads(line.removeprefix(MARK)))
    sentences = [line.partition(f"{_COMMAND}: ")[2] for line in lines if f"{_COMMAND}: " in line]
    reason = sentences[0] if sentences else (lines[-1].strip() if lines else "it said nothing")
    raise ClusterError(f"The all-reduce failed (exit code {exit_code}): {reason}")


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
    words = list(sys.argv[1:] if argv is None else argv)
    with reported(_COMMAND) as outcome:
        if len(words) != 1 or not words[0].isdecimal() or int(words[0]) < 4:
            raise ConfigError("Give the number of bytes to reduce, at least 4.")
        _take_part(int(words[0]))
    return outcome.exit_code


def _take_part(n_bytes: int) -> None:
    from hvd_nmt.common import tensorflow_import

    tensorflow_import.import_tensorflow()
    import tensorflow as tf

    from hvd_nmt.training import devices, horovod

    rank = horovod.init()
    with horovod.raise_on_all_ranks():
        devices.set_up(rank)
    gpus = len(tf.config.get_visible_devices("GPU"))

    def seconds(tensor: tf.Tensor, name: str) -> float:
        """Of one all-reduce: what the slowest rank saw, after all were ready."""
        float(horovod.sum_over_ranks(one, name="ready")[0])
        started_s = time.perf_counter()
        float(horovod.sum_over_ranks(tensor, name=name)[0])  # fetched: a GPU works behind our back
        return time.perf_counter() - started_s

    with horovod.end_when_ranks_are_lost(_COMMAND):
        one, big = tf.ones([1]), tf.ones([n_bytes // 4])
        latency_s = statistics.median(seconds(one, "one") for _ in range(_LATENCY_ROUNDS))
        rounds = [max(horovod.gather(seconds(big, "big")))]
        # The first also takes memory and, on GPUs, builds NCCL's ring: it counts only if it is so
        # long that there is no time for others.
        if rounds[0] < 2 * _BUDGET_S:
            more = max(2, min(_ROUNDS, int(_BUDGET_S / rounds[0])))
            rounds = [max(horovod.gather(seconds(big, "big"))) for _ in range(more)]
        ranks = horovod.gather([rank.host, gpus, latency_s])
    if rank.is_first:
        result = {
            "bytes": n_bytes // 4 * 4, "seconds": rounds,
            "latency_s": max(latency for _, _, latency in ranks),
            "hosts": [host for host, _, _ in ranks], "gpus": [gpus for _, gpus, _ in ranks],
        }  # fmt: skip
        print(MARK + json.dumps(result), flush=True)
    horovod.shutdown()


if __name__ == "__main__":
    sys.exit(main())

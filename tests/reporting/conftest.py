"""A run made by hand: two hosts with two GPUs each, network-bound, as the recipe's runs were."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvd_nmt.records.record import Evaluation, HostSamples, Interval, Run

STARTED_S = 1_700_000_000.0
STEP_S = (1.60, 1.64, 1.62, 1.70, 1.58, 1.66, 1.61, 1.63, 1.59, 1.67)
SENT_BYTES = 365_285_376.0
"""2 (4-1)/4 x 4 bytes x 60,880,896 parameters"""
HOSTS = ("v100a", "v100b")
CONFIG = {
    "model": {"width": 512, "encoder_layers": 6},
    "training": {"learning_rate": 2.0, "warmup_steps": 400, "max_steps": 1000, "cooldown_steps": 0},
}


def rate(step: int) -> float:
    """Learning rate of `CONFIG` at a step, from 1 on."""
    return float(2.0 * 512**-0.5 * min(step * 400**-1.5, step**-0.5))


def intervals() -> tuple[Interval, ...]:
    """A slow first interval and ten more of 100 steps each, without a pause."""
    found, time_s = [], STARTED_S + 20
    for number, step_s in enumerate((2.5, *STEP_S)):
        step = 100 * number or 1
        steps = step - (found[-1].step if found else 0)
        time_s += steps * step_s
        found.append(Interval(
            step=step, steps=steps, time_s=time_s, step_s=step_s, input_wait_s=0.01,
            compute_s=0.39, straggler_wait_s=0.01, communication_s=step_s - 0.41,
            rank_ready_s=(0.41, 0.4, 0.4, 0.4), rank_input_wait_s=(0.01,) * 4,
            loss=8.0 - 0.5 * number, learning_rate=rate(step), gradient_norm=1.0 / (number + 1),
            tokens_per_s=62_000 / step_s, model_flop_per_s=24e12 / step_s, epoch=0.1 * number,
        ))  # fmt: skip
    return tuple(found)


def telemetry(host: str, rows: tuple[Interval, ...]) -> HostSamples:
    """A sample every 10 s: GPUs "100 % busy" at 90 of 300 W, the card at the mean rate."""
    header = {
        "kind": "host", "host": host, "interval_s": 10.0,
        "gpus": [{"index": n, "name": "Tesla V100", "power_limit_w": 300.0} for n in (0, 1)],
    }  # fmt: skip
    samples, total, time_s = [], 0.0, STARTED_S
    while time_s + 10.0 <= (rows[-1].time_s or 0.0):
        time_s += 10.0
        row = next((r for r in rows if time_s <= (r.time_s or 0.0)), rows[-1])
        sent = SENT_BYTES / 1e6 / (row.step_s or 1.0)
        total += sent * 10e6
        nic = {
            "is_loopback": False, "link_mbit_per_s": 2000, "sent_MB_per_s": sent,
            "received_MB_per_s": sent, "sent_bytes_total": total, "received_bytes_total": total,
        }  # fmt: skip
        use = {"utilisation_percent": 100, "power_w": 90.0, "memory_activity_percent": 12,
               "energy_j": 90.0 * (time_s - STARTED_S)}  # fmt: skip
        gpus = [{"index": n, "uuid": f"GPU-{n}", **use} for n in (0, 1)]
        samples.append({"kind": "sample", "time_s": time_s, "host": host, "gpus": gpus,
                        "nics": {"eth0": nic}, "cpu_percent": 20.0})  # fmt: skip
    return HostSamples(host, header, samples)


@pytest.fixture(scope="session")
def two_host_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Makes the run; its fields, and those of its intervals, can be given another value."""
    path: Path = tmp_path_factory.mktemp("made")
    rows = intervals()
    evaluations = tuple(
        Evaluation(
            step, loss, time_s=(rows[step // 100].time_s or 0.0), bleu=bleu, bleu_margin=1.2,
            chrf=2 * bleu, pseudo_bleu=0.3, seconds=30.0,
        )
        for step, loss, bleu in ((200, 4.0, 5.0), (400, 3.0, 12.0), (600, 2.6, 17.0),
                                 (800, 2.4, 19.5), (1000, 2.3, 21.0))
    )  # fmt: skip
    run = Run(
        name="two-hosts", path=path, source="hvd_nmt", hosts=("v100a", "v100a", "v100b", "v100b"),
        parameters=60_880_896, gradient_bytes=4.0 * 60_880_896, max_steps=1000, finished=True,
        started_s=STARTED_S, ended_s=rows[-1].time_s, config=CONFIG,
        environment={"precision": "float16"}, intervals=rows, evaluations=evaluations,
        telemetry=tuple(telemetry(host, rows) for host in HOSTS),
    )  # fmt: skip

    def make(of_interval: Callable[[Interval], dict[str, Any]] | None = None, **fields: Any) -> Run:
        made = dataclasses.replace(run, **fields)
        if of_interval is None:
            return made
        changed = (dataclasses.replace(i, **of_interval(i)) for i in made.intervals)
        return dataclasses.replace(made, intervals=tuple(changed))

    return make

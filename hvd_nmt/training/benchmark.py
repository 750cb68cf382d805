"""How fast the steps of a training are, on real batches; nothing is written."""

import dataclasses
import statistics
import sys
from typing import Any

from hvd_nmt.common.units import data_size, flop_rate, percent
from hvd_nmt.config import Config
from hvd_nmt.config.exchange import may_group_ranks
from hvd_nmt.training import ceiling, devices, horovod, memory, setup, slicing
from hvd_nmt.training.exchange.choice import ExchangeChoice
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.plan import Plan
from hvd_nmt.training.step_callback import StepCallback

_LEARNING_RATE = 1e-4


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """The measured steps, and what was trained."""

    steps: list[dict[str, Any]]
    """logs of each step, see `step.TrainingModel`"""
    plan: Plan
    peak_bytes: int
    """most memory of all ranks together"""
    predicted_bytes: int
    """the same, as predicted from the configuration"""
    ceiling_flop_per_s: float | None = None
    """what products could reach on all ranks together; None: not measured"""
    energy_j: float | None = None
    """drawn by the GPUs of all ranks in these steps; None: none tells"""

    def rows(self) -> list[tuple[str, str]]:
        """The same for a reader: medians over the steps, speed from their sums."""
        times = [step["step_s"] for step in self.steps]
        tokens = sum(step["source_tokens"] + step["target_tokens"] for step in self.steps)
        median_s = statistics.median(times)
        slices = self.plan.slices.micro_batches if self.plan.slices else 1

        def share(part: str) -> str:
            return (
                f"{sum(getattr(step['step_time'], part) for step in self.steps) / sum(times):.1%}"
            )

        return [
            ("real tokens/s, source + target", f"{tokens / sum(times):,.0f}"),
            ("the same at the median step", f"{tokens / len(times) / median_s:,.0f}"),
            ("s/step: median, min, max", f"{median_s:.3f}, {min(times):.3f}, {max(times):.3f}"),
            *self._flops(sum(times)),
            ("share of input wait", share("input_wait_s")),
            ("share of compute", share("compute_s")),
            ("share of waiting for the slowest rank", share("straggler_wait_s")),
            ("share of exposed communication", share("communication_s")),
            ("peak memory of all ranks", data_size(self.peak_bytes)),
            ("peak memory, predicted", data_size(self.predicted_bytes)),
            *self._energy(sum(times), tokens),
            ("precision, ranks, steps",
             f"{self.plan.precision}, {self.plan.ranks}, {len(times)}"),
            ("slices of a step", str(slices)),
            *([] if self.plan.compilation is None else [("XLA", self.plan.compilation.words)]),
        ]  # fmt: skip

    def _energy(self, seconds: float, tokens: float) -> list[tuple[str, str]]:
        if self.energy_j is None:
            return []
        per_thousand = f"{1000 * self.energy_j / tokens:.3g} J per 1,000 tokens"
        return [("energy of the GPUs", f"{per_thousand}, {self.energy_j / seconds:.0f} W")]

    def _flops(self, seconds: float) -> list[tuple[str, str]]:
        rate = sum(map(self.plan.flops, self.steps)) / seconds
        rows = [("model FLOP/s", flop_rate(rate))]
        if self.ceiling_flop_per_s:
            rows.append(("products alone: FLOP/s", flop_rate(self.ceiling_flop_per_s)))
            rows.append(("model FLOP/s of that (MFU)", percent(rate / self.ceiling_flop_per_s)))
        return rows


def measure(
    config: Config, steps: int, warmup_steps: int, with_ceiling: bool = False
) -> Benchmark | None:
    """Train some steps on all ranks; what rank 0 has measured, None on the others.

    Args:
        config: of the run that is measured.
        steps: how many are measured.
        warmup_steps: steps before, in which TensorFlow builds its graph.
        with_ceiling: measure right after them what products alone reach, on all ranks at once.
    """
    rank = horovod.init(config.ranks, with_groups=may_group_ranks(config.training))
    with horovod.end_when_ranks_are_lost("hvd_nmt.bench"), devices.explain_memory(rank):
        return _measure(config, rank, steps, warmup_steps, with_ceiling)


def _measure(
    config: Config, rank: Rank, steps: int, warmup_steps: int, with_ceiling: bool
) -> Benchmark | None:
    with horovod.raise_on_all_ranks():
        devices.set_up(rank, config.training.device, config.training.deterministic)
    run_setup = setup.agree_on_setup(config, rank)
    model, _, adam = setup.build(config, run_setup)
    plan = setup.check(config, run_setup, model)
    ExchangeChoice(plan, run_setup, model, adam, print).begin()
    total = warmup_steps + steps
    recorder = _Recorder(warmup_steps, total)
    model.optimizer.learning_rate.assign(_LEARNING_RATE)
    data = setup.dataset(run_setup, 0, total, plan.few_shapes)
    if plan.few_shapes is not None:  # all programs that these steps need are compiled before
        model.fit(data, steps_per_epoch=total, verbose=0)
    model.fit(data, steps_per_epoch=total, verbose=0, callbacks=[recorder])
    peak_bytes = sum(horovod.gather(devices.peak_memory_bytes()))
    batch = memory.worst_batch(config.model, run_setup.batch_plan, rank.size)
    hosts = len(plan.ranks_by_host)
    need = slicing.need(
        config, plan.precision, model, batch, model.micro_batches, hosts=hosts, saves=False
    )
    predicted_bytes = sum(horovod.gather(need.total_bytes))
    energies = horovod.gather(recorder.energy_j())
    energy_j = None if None in energies else sum(energies)
    reached = None
    if with_ceiling:
        horovod.gather(None)  # all begin together
        reached = sum(horovod.gather(ceiling.flop_per_s(run_setup.precision)))
    horovod.shutdown()
    if not rank.is_first:
        return None
    measured = recorder.steps[warmup_steps:]
    return Benchmark(measured, plan, peak_bytes, predicted_bytes, reached, energy_j)


class _Recorder(StepCallback):
    """Keeps the logs of each step, and the energy of those after the first ones."""

    def __init__(self, first: int, total: int) -> None:
        super().__init__(start_step=0)
        self.steps: list[dict[str, Any]] = []
        self._first, self._total = first, total
        self._energies_j: list[float | None] = []

    def energy_j(self) -> float | None:
        """Drawn by this rank's GPU; None where that is not told."""
        begin, end = self._energies_j
        return None if begin is None or end is None else end - begin

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        self.steps.append(dict(logs))
        if step in (self._first, self._total):
            self._energies_j.append(devices.energy_j())
        if sys.stderr.isatty():
            print(f"\rstep {step}/{self._total} ", end="", file=sys.stderr, flush=True)

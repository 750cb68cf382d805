"""What a run logs of its steps: a line for the reader, values for metrics.jsonl and TensorBoard."""

from __future__ import annotations

import os
import statistics
from typing import Any

from hvd_nmt.common.rank_environment import TERMINAL
from hvd_nmt.common.units import count, duration
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.explain.exchange_cost import link_sentence
from hvd_nmt.telemetry.events import CORPUS_TAG, EventStore
from hvd_nmt.telemetry.steps import StepTime, mean_time
from hvd_nmt.training.plan import Plan
from hvd_nmt.training.step_callback import StepCallback

LOSS_SCALE_TAG = "Loss_Optimization/loss_scale"
"""that of the step, as OpenSeq2Seq calls it; in float16 alone"""
SKIPPED_STEPS_TAG = "Loss_Optimization/skipped_steps"
"""steps of the run until then whose gradient overflowed, so that they changed no weight"""
MEASURED_STEPS, _SETTLING_STEPS = 20, 5
"""after which it is said what the link costs; the first of them, in which graphs are traced"""
_END = "\r" if TERMINAL in os.environ else "\n"
"""of a line; on a terminal the next one replaces it"""


class StepLog(StepCallback):
    """Writes and prints means over the last steps; no `store` on a rank that writes none."""

    def __init__(self, plan: Plan, store: EventStore | None, prints: bool = True) -> None:
        super().__init__(plan.start_step)
        self._plan = plan
        self._config, self._schedule = plan.config, Schedule.of(plan.config)
        self._corpora = [corpus.name for corpus in plan.data.manifest.corpora]
        self._store, self._prints = store, prints
        self._times: list[StepTime] = []
        self._sums: dict[str, float] = {}
        self._rank_sums: dict[str, list[float]] = {}
        self._compiling_s: list[float] = []
        """of the steps in which XLA compiled a program"""
        self._compute_s: list[float] = []
        """of the first steps"""
        self._newest: dict[str, Any] = {}
        """logs of the newest step that counts"""

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Collect; every `log_every` steps, and at the end, write and print.

        A step that is left out does not count: its loss may be NaN.
        """
        if self._store is None:
            return
        if not logs["left_out"]:
            self._collect(logs)
        self._say_what_the_link_costs(step - self._start_step, logs)
        last = self._config.training.max_steps
        due = step % self._config.training.log_every == 0 or step == last or logs["end"] > 0
        if due and self._times:
            self._write(step, self._newest)

    def _say_what_the_link_costs(self, done: int, logs: dict[str, Any]) -> None:
        """Once, by the computing of the first steps but for those that settle."""
        if done > MEASURED_STEPS or len(self._plan.ranks_by_host) < 2 or not self._prints:
            return
        self._compute_s.append(logs["step_time"].compute_s)
        if done == MEASURED_STEPS:
            plan, compute_s = self._plan, statistics.median(self._compute_s[_SETTLING_STEPS:])
            said = link_sentence(
                plan.ranks_by_host, plan.all_reduce_s, plan.latency_s, compute_s,
                self._config.training.sync_every,
            )  # fmt: skip
            print(f"link        {said}", flush=True)

    def _collect(self, logs: dict[str, Any]) -> None:
        self._newest = logs
        for name in ("loss", "nll", "source_tokens", "target_tokens", "sentences"):
            self._sums[name] = self._sums.get(name, 0.0) + logs[name]
        self._sums["exchange_s"] = self._sums.get("exchange_s", 0.0) + logs.get("exchange_s", 0.0)
        self._sums["flops"] = self._sums.get("flops", 0.0) + self._plan.flops(logs)
        self._compiling_s += [logs["compiling_s"]] if "compiling_s" in logs else []
        self._times.append(logs["step_time"])
        for name in ("rank_ready_s", "rank_input_wait_s", "by_corpus"):
            sums = self._rank_sums.get(name, [0.0] * len(logs[name]))
            self._rank_sums[name] = [a + b for a, b in zip(sums, logs[name], strict=True)]

    def _write(self, step: int, logs: dict[str, Any]) -> None:
        steps, times = len(self._times), mean_time(self._times)
        assert self._store is not None
        mean = {name: total / steps for name, total in self._sums.items()}
        sentences = round(self._sums["sentences"])
        by_corpus = self._rank_sums.pop("by_corpus")
        shares = {
            CORPUS_TAG + name: count / sum(by_corpus)
            for name, count in zip(self._corpora, by_corpus, strict=True)
        }
        rank_means = {name: [total / steps for total in totals]
                    for name, totals in self._rank_sums.items()}  # fmt: skip
        epoch = self._plan.batch_plan.epochs_after(step)
        self._times.clear()
        self._sums.clear()
        self._rank_sums.clear()
        tokens_per_s = (mean["source_tokens"] + mean["target_tokens"]) / times.total_s
        rate, gradient_norm = self._schedule.rate(step - 1), logs["gradient_norm"]
        scale, scale_text = _loss_scale(logs)
        exchanged, exchange_text = self._exchanged(mean["exchange_s"])
        programs, programs_text = self._compiled()
        self._store.scalars(
            step,
            {
                "train_loss": mean["loss"],
                "train_nll": mean["nll"],
                "learning_rate": rate,
                "Loss_Optimization/global_gradient_norm": gradient_norm,
                "global_step/sec": 1 / times.total_s,
                "epoch": epoch,
                "tokens_per_s": tokens_per_s,
                "model_flop_per_s": mean["flops"] / times.total_s,
                "step_time/total_s": times.total_s,
                "step_time/input_wait_s": times.input_wait_s,
                "step_time/compute_s": times.compute_s,
                "step_time/straggler_wait_s": times.straggler_wait_s,
                "step_time/communication_s": times.communication_s,
            }
            | shares
            | scale
            | exchanged,
            more={**rank_means, "steps": steps, "sentences": sentences, **programs},
        )
        left_s = (self._config.training.max_steps - step) * times.total_s
        if not self._prints:
            return
        print(
            f"step {step:,}/{self._config.training.max_steps:,}  "
            f"epoch {epoch:.2f}  loss {mean['loss']:.4f}  "
            f"rate {rate:.2e}  norm {gradient_norm:.2f}  {scale_text}{exchange_text}"
            f"{programs_text}"
            f"{tokens_per_s:,.0f} tokens/s  "
            f"{times.total_s:.3f} s/step (input {times.input_wait_s / times.total_s:.0%}, "
            f"slowest rank {times.straggler_wait_s / times.total_s:.0%}, "
            f"communication {times.communication_s / times.total_s:.0%})  {duration(left_s)} left",
            end=_END, flush=True,
        )  # fmt: skip

    def _compiled(self) -> tuple[dict[str, float], str]:
        """Of the programs that XLA compiled in these steps: values, and words for the line."""
        if not self._compiling_s:
            return {}, ""
        number, seconds = len(self._compiling_s), sum(self._compiling_s)
        self._compiling_s.clear()
        words = f"compiled {count(number, 'program')} in {duration(seconds)}  "
        return {"programs": number, "compiling_s": seconds}, words

    def _exchanged(self, exchange_s: float) -> tuple[dict[str, float], str]:
        """Of islands: values of their exchanges, and words for the line."""
        islands = getattr(self.model, "islands", None)
        if islands is None:
            return {}, ""
        return {
            "exchange/outer_delta_norm": islands.delta_norm,
            "exchange/divergence": islands.divergence,
            "step_time/exchange_s": exchange_s,
        }, f"sync every {self._plan.exchange.sync_every}  "


def _loss_scale(logs: dict[str, Any]) -> tuple[dict[str, float], str]:
    """Of float16: values, and words for the line; nothing in other precisions."""
    if not logs["loss_scale"]:
        return {}, ""
    values = {LOSS_SCALE_TAG: logs["loss_scale"], SKIPPED_STEPS_TAG: logs["skipped_steps"]}
    return values, (
        f"loss scale {logs['loss_scale']:,.0f} ({logs['skipped_steps']:,.0f} skipped)  "
    )

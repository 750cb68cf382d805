"""What a run logs of its steps: a line for the reader, values for metrics.jsonl and TensorBoard."""

import collections
import os
import statistics
from typing import Any

from hvd_nmt.common.rank_environment import TERMINAL
from hvd_nmt.common.units import duration
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.explain.exchange_cost import Step, link_sentence
from hvd_nmt.telemetry.events import CORPUS_TAG, EventStore
from hvd_nmt.telemetry.steps import StepTime, mean_time
from hvd_nmt.training.callbacks import StepCallback
from hvd_nmt.training.plan import Plan

LOSS_SCALE_TAG = "Loss_Optimization/loss_scale"
"""that of the step, as OpenSeq2Seq calls it; in float16 alone"""
SKIPPED_STEPS_TAG = "Loss_Optimization/skipped_steps"
"""steps of the run until then whose gradient overflowed, so that they changed no weight"""
MEASURED_STEPS, _SETTLING_STEPS = 20, 5
"""after which it is said what the link costs; the first of them, in which graphs are traced"""
_END = "\r" if TERMINAL in os.environ else "\n"
"""of a line; on a terminal the next one replaces it"""
_SUMMED = ("loss", "nll", "source_tokens", "target_tokens", "sentences")
_SUMMED_BY_RANK = ("rank_ready_s", "rank_input_wait_s")


class StepLog(StepCallback):
    """Writes and prints means over the last steps; no `store` on a rank that writes none."""

    def __init__(self, plan: Plan, store: EventStore | None, prints: bool = True) -> None:
        super().__init__(plan.start_step)
        self._plan, self._store, self._prints = plan, store, prints
        self._training, self._schedule = (
            plan.setup.config.training, Schedule.of(plan.setup.config),
        )  # fmt: skip
        self._times: list[StepTime] = []
        self._sums: dict[str, float] = collections.defaultdict(float)
        self._lists: dict[str, list[list[float]]] = collections.defaultdict(list)
        """of each step one number for each rank, or corpus"""
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
        last = self._training.max_steps
        due = step % self._training.log_every == 0 or step == last or logs["end"] > 0
        if due and self._times:
            self._write(self._store, step, self._newest)

    def _say_what_the_link_costs(self, done: int, logs: dict[str, Any]) -> None:
        """Once, by the computing of the first steps but for those that settle."""
        if done > MEASURED_STEPS or len(self._plan.ranks_by_host) < 2 or not self._prints:
            return
        self._compute_s.append(logs["step_time"].compute_s)
        if done == MEASURED_STEPS:
            plan, compute_s = self._plan, statistics.median(self._compute_s[_SETTLING_STEPS:])
            plain = Step(
                compute_s, compute_s, plan.all_reduce_s, plan.latency_s, plan.ranks_by_host
            )
            said = link_sentence(plain, self._training.sync_every)
            print(f"link        {said}", flush=True)

    def _collect(self, logs: dict[str, Any]) -> None:
        self._newest = logs
        for name in _SUMMED:
            self._sums[name] += logs[name]
        self._sums["exchange_s"] += logs.get("exchange_s", 0.0)
        self._sums["flops"] += self._plan.flops(logs)
        self._times.append(logs["step_time"])
        for name in (*_SUMMED_BY_RANK, "by_corpus"):
            self._lists[name].append(logs[name])

    def _write(self, store: EventStore, step: int, logs: dict[str, Any]) -> None:
        steps, times = len(self._times), mean_time(self._times)
        mean = {name: total / steps for name, total in self._sums.items()}
        sentences = round(self._sums["sentences"])
        sums = {name: [sum(each) for each in zip(*lists, strict=True)]
                for name, lists in self._lists.items()}  # fmt: skip
        self._times.clear()
        self._sums.clear()
        self._lists.clear()
        by_corpus = sums["by_corpus"]
        corpora = (corpus.name for corpus in self._plan.setup.data.manifest.corpora)
        rank_means = {name: [total / steps for total in sums[name]] for name in _SUMMED_BY_RANK}
        epoch = self._plan.setup.batch_plan.epochs_after(step)
        tokens_per_s = (mean["source_tokens"] + mean["target_tokens"]) / times.total_s
        rate, gradient_norm = self._schedule.rate(step - 1), logs["gradient_norm"]
        more, words = self._of_some_runs(logs, mean["exchange_s"])
        store.scalars(
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
                **{
                    CORPUS_TAG + name: count / sum(by_corpus)
                    for name, count in zip(corpora, by_corpus, strict=True)
                },
                **more,
            },
            more={**rank_means, "steps": steps, "sentences": sentences},
        )
        if not self._prints:
            return
        left_s = (self._training.max_steps - step) * times.total_s
        print(
            f"step {step:,}/{self._training.max_steps:,}  "
            f"epoch {epoch:.2f}  loss {mean['loss']:.4f}  "
            f"rate {rate:.2e}  norm {gradient_norm:.2f}  {words}"
            f"{tokens_per_s:,.0f} tokens/s  "
            f"{times.total_s:.3f} s/step (input {times.input_wait_s / times.total_s:.0%}, "
            f"slowest rank {times.straggler_wait_s / times.total_s:.0%}, "
            f"communication {times.communication_s / times.total_s:.0%})  {duration(left_s)} left",
            end=_END, flush=True,
        )  # fmt: skip

    def _of_some_runs(
        self, logs: dict[str, Any], exchange_s: float
    ) -> tuple[dict[str, float], str]:
        """Values, and words for the line: of float16 its loss scale, of islands their exchanges."""
        values, words, islands = {}, "", self.model.islands
        if logs["loss_scale"]:
            values = {LOSS_SCALE_TAG: logs["loss_scale"], SKIPPED_STEPS_TAG: logs["skipped_steps"]}
            words = f"loss scale {logs['loss_scale']:,.0f} ({logs['skipped_steps']:,.0f} skipped)  "
        if islands is not None:
            values |= {
                "exchange/outer_delta_norm": islands.delta_norm,
                "exchange/divergence": islands.divergence,
                "step_time/exchange_s": exchange_s,
            }
            words += f"sync every {self._plan.setup.exchange.sync_every}  "
        return values, words

"""What a run logs of its steps: a line for the reader, values for metrics.jsonl and TensorBoard."""

import statistics
import time
from collections.abc import Callable

from hvd_nmt.common.progress import say
from hvd_nmt.common.units import duration, percent
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.explain.exchange_cost import PRICE_OF_TRAINING_ALONE, Step, link_sentence
from hvd_nmt.records.event_store import EventStore
from hvd_nmt.records.record import Interval
from hvd_nmt.telemetry.steps import StepTime
from hvd_nmt.training.callbacks import StepCallback
from hvd_nmt.training.plan import Plan
from hvd_nmt.training.step_result import StepResult

MEASURED_STEPS, _SETTLING_STEPS = 20, 5
"""after which it is said what the link costs; the first of them, in which graphs are traced"""


class StepLog(StepCallback):
    """Writes and prints means over the last steps; no `store` on a rank that writes none.

    `evaluation_s` gives the seconds that an evaluation takes, for the time that is left.
    """

    def __init__(
        self,
        plan: Plan,
        store: EventStore | None,
        evaluation_s: Callable[[], float],
        prints: bool = True,
    ) -> None:
        super().__init__()
        self._evaluation_s, self._every = evaluation_s, plan.setup.config.evaluation.every_steps
        self._plan, self._store, self._prints = plan, store, prints
        self._training = plan.setup.config.training
        self._schedule = Schedule.of(plan.setup.config)
        self._results: list[StepResult] = []
        """of the steps that the next line is about"""
        self._compute_s: list[float] = []
        """of the first steps"""
        self._began_s = time.monotonic()
        if prints:
            say("graph       TensorFlow builds it in the first step", moves=True)

    def after_step(self, result: StepResult) -> None:
        """Collect; every `log_every` steps, and at the end, write and print.

        A step that changed no weights does not count: its loss may be NaN.
        """
        if self._store is None:
            return
        step = result.step
        if not result.is_left_out:
            self._results.append(result)
        self._say_what_the_link_costs(step - self._plan.start_step, result)
        if self._prints and step == self._plan.start_step + 1:
            say(f"graph       built in {duration(time.monotonic() - self._began_s)}")
        last = self._training.max_steps
        due = step % self._training.log_every == 0 or step == last or result.end > 0
        if due and self._results:
            self._write(self._store, step)
            self._results = []

    def _say_what_the_link_costs(self, done: int, result: StepResult) -> None:
        """Once, by the computing of the first steps but for those that settle."""
        if done > MEASURED_STEPS or len(self._plan.ranks_by_host) < 2 or not self._prints:
            return
        self._compute_s.append(result.step_time.compute_s)
        if done == MEASURED_STEPS:
            plan, compute_s = self._plan, statistics.median(self._compute_s[_SETTLING_STEPS:])
            plain = Step(
                compute_s, compute_s, plan.all_reduce_s, plan.latency_s, plan.ranks_by_host
            )
            sentence = link_sentence(plain, self._training.sync_every)
            say(
                f"link        By the all-reduce at the start: {sentence}; {PRICE_OF_TRAINING_ALONE}"
            )

    def _sum(self, name: str) -> float:
        return sum(getattr(result, name) for result in self._results)

    def _sums(self, name: str) -> list[float]:
        of_steps = (getattr(result, name) for result in self._results)
        return [sum(values) for values in zip(*of_steps, strict=True)]

    def _means(self, name: str) -> tuple[float, ...]:
        return tuple(total / len(self._results) for total in self._sums(name))

    def _write(self, store: EventStore, step: int) -> None:
        plan, steps, newest = self._plan, len(self._results), self._results[-1]
        parts = zip(*(result.step_time for result in self._results), strict=True)
        times = StepTime(*map(statistics.fmean, parts))
        epoch = plan.setup.batch_plan.epochs_after(step)
        tokens = self._sum("source_tokens") / steps + self._sum("target_tokens") / steps
        corpora = (corpus.name for corpus in plan.setup.data.manifest.corpora)
        by_corpus = self._sums("by_corpus")
        state = f"epoch {epoch:.2f}"
        if in_float16 := newest.loss_scale > 0:
            state = f"scale {newest.loss_scale:,.0f}"
        if is_followed := newest.exchange_s is not None:
            state = f"sync every {plan.setup.exchange.sync_every}"
        record = Interval(
            step, steps,
            loss=self._sum("loss") / steps,
            nll=self._sum("nll") / steps,
            learning_rate=self._schedule.rate(step - 1),
            gradient_norm=newest.gradient_norm,
            steps_per_s=1 / times.total_s,
            epoch=epoch,
            tokens_per_s=tokens / times.total_s,
            model_flop_per_s=sum(map(plan.flops, self._results)) / steps / times.total_s,
            input_wait_s=times.input_wait_s,
            compute_s=times.compute_s,
            straggler_wait_s=times.straggler_wait_s,
            communication_s=times.communication_s,
            step_s=times.total_s,
            corpora={
                name: count / sum(by_corpus)
                for name, count in zip(corpora, by_corpus, strict=True)
            },
            loss_scale=newest.loss_scale if in_float16 else None,
            skipped_steps=newest.skipped_steps if in_float16 else None,
            exchange_s=self._sum("exchange_s") / steps if is_followed else None,
            rank_ready_s=self._means("rank_ready_s"),
            rank_input_wait_s=self._means("rank_input_wait_s"),
            rank_paused_s=self._means("rank_paused_s"),
            sentences=round(self._sum("sentences")),
        )  # fmt: skip
        store.write(record)
        if self._prints:
            # Without the step in which the graph is built.
            usual_s = statistics.median(result.step_time.total_s for result in self._results)
            last, waits = self._training.max_steps, 1 - times.compute_s / times.total_s
            evaluations = -(-last // self._every) - step // self._every
            left_s = (last - step) * usual_s + evaluations * self._evaluation_s()
            say(
                f"step {step:,}/{last:,}".ljust(len(f"step {last:,}/{last:,}"))
                + f"  loss {record.loss:.4f}  {record.tokens_per_s:7,.0f} tokens/s  "
                f"{duration(left_s):>11} left  {state}  waiting {percent(waits)}",
                moves=True,
            )

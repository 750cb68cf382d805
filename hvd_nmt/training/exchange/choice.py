"""How the hosts of a run exchange what they learn: chosen from what its first steps measure.

A run whose configuration leaves that open begins with an all-reduce of float32 gradients in each
step. When the computing of some steps is known, `explain.exchange_cost` chooses; the choice is
written into the run's `config.yaml`, and a later start on the same hosts takes it from there. Later
a transfer that takes far longer than at first is said, and leads to another choice; so does a step
whose computing turns out to take another time than was seen beside the transfers of plain steps.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from collections.abc import Callable
from typing import Any

from hvd_nmt.checkpoints.state import AdamState
from hvd_nmt.common.units import step_duration
from hvd_nmt.config.exchange import Exchange, Joined, decided, is_due, joined_at
from hvd_nmt.explain import exchange_cost
from hvd_nmt.explain.exchange_cost import Measured, travelling_s
from hvd_nmt.telemetry.events import EventStore, read_metrics
from hvd_nmt.training import cluster, heartbeat, horovod, run_directory
from hvd_nmt.training.exchange.islands import Islands
from hvd_nmt.training.plan import Plan
from hvd_nmt.training.setup import RunSetup
from hvd_nmt.training.step import TrainingModel
from hvd_nmt.training.step_callback import StepCallback

MEASURED_STEPS = 20
"""after which the choice is made"""
_SETTLING_STEPS = 5
"""of these, the first, in which graphs are traced and caches filled"""
_CHANGED = 3.0
"""times as long, or as short, as at first: then a transfer has changed"""
_MISJUDGED = 1.5
"""times as long, or as short, as was assumed: then the computing of a step is another"""
_IN_A_ROW = 8
"""transfers whose mean counts: over a slow link one of them waits for what the others have sent"""


class ExchangeChoice(StepCallback):
    """Chooses how hosts exchange, puts it into effect, and watches the link.

    Args:
        plan: of the run, with the exchange that it begins with and the measured all-reduce.
        run_setup: what all ranks have agreed on.
        model: compiled.
        adam: its variables.
        log: gets the lines for a reader.
    """

    def __init__(
        self,
        plan: Plan,
        run_setup: RunSetup,
        model: TrainingModel,
        adam: AdamState,
        log: Callable[[str], None],
    ) -> None:
        super().__init__(plan.start_step)
        self.store: EventStore | None = None
        """gets each choice; None except on rank 0, and until there is one"""
        self._plan, self._setup, self._adam, self._log = plan, run_setup, adam, log
        self._training_model, self._asked = model, plan.config.training
        self._all_reduce_s = plan.all_reduce_s
        self._compute_s: deque[float] = deque(maxlen=100)
        self._transfers_s: list[float] = []
        self._usual_s: float | None = None
        self._usual_compute_s = 0.0
        self._assumed_compute_s: float | None = None
        """of a step, by which the exchange was chosen"""
        self._told = False
        self._settled = plan.start_step + _SETTLING_STEPS
        """step after which transfers take their usual time"""

    @property
    def is_open(self) -> bool:
        """Whether the choice is still to be made."""
        return self._setup.groups is not None and self._plan.exchange is None

    def begin(self) -> None:
        """Put into effect what the run begins with; before step 1, when the weights are there."""
        if self._plan.exchange is not None:
            self._use(self._plan.exchange)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Record what this start begins with, unless every reader assumes it."""
        exchange = self._plan.exchange or Exchange()
        if self.store is not None:
            kinds = {line["kind"] for line in read_metrics(self._plan.config.run_dir)}
            if "exchange" in kinds or not exchange.is_plain:
                self._record(self._start_step, exchange, None)

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Measure; choose after the first steps, and again where the link has changed."""
        if self._setup.groups is None:
            return
        done = step - self._start_step
        measures = step > self._settled and "compiling_s" not in logs
        if measures:
            self._compute_s.append(logs["step_time"].compute_s)
        last = step == self._plan.config.training.max_steps
        if self.is_open:
            enough = len(self._compute_s) >= MEASURED_STEPS - _SETTLING_STEPS
            if done >= MEASURED_STEPS and enough and not last:
                self._choose(step)
            return
        if measures:
            self._watch(step, logs)
        if decided(self._asked) is None and self._is_barrier(step) and not last:
            changes = horovod.gather([self._change(), self._was_misjudged()])
            times = statistics.median_low(times for times, _ in changes)
            _, misjudged = changes[0]
            if times != 1.0 or misjudged:
                self._all_reduce_s *= times
                self._choose(step)

    def _choose(self, step: int) -> None:
        """On all ranks alike: what rank 0 measured counts."""
        measured = Measured(
            ranks_by_host=self._plan.ranks_by_host,
            gradient_bytes=self._plan.gradient_bytes,
            all_reduce_s=self._all_reduce_s,
            latency_s=self._plan.latency_s,
            compute_s=statistics.median(self._compute_s),
        )
        measured = Measured(**horovod.gather(dataclasses.asdict(measured))[0])
        self._assumed_compute_s = measured.compute_s
        chosen = exchange_cost.choose(self._asked, measured)
        self._log(f"exchange    {exchange_cost.reason(self._asked, measured, chosen)}")
        self._usual_s, self._usual_compute_s, self._told = None, 0.0, False
        self._transfers_s.clear()
        self._compute_s.clear()
        before = self._training_model.exchange
        self._plan = dataclasses.replace(self._plan, exchange=chosen)
        if chosen != before:
            self._training_model.join(step, Joined.EVERYTHING)
            self._use(chosen)
            for line in self._plan.exchange_lines():
                self._log(line)
        self._note(step, chosen, measured)

    def _use(self, exchange: Exchange) -> None:
        """From the next step on; proves that gradients are summed as they are to be.

        Raises:
            DivergedError: they are not.
        """
        groups, model = self._setup.groups, self._training_model
        islands = None
        if exchange.islands and groups is not None:
            islands = Islands(model.trained, self._adam, groups, exchange)
        model.use(exchange, islands, groups, self._plan.config)
        self._settled = int(model.step) + _SETTLING_STEPS + 2 * exchange.sync_every
        together = self._setup.together if exchange.islands else None
        with horovod.heartbeat.section(heartbeat.EXCHANGE), horovod.heartbeat.waiting():
            cluster.check_averaging(model.optimizer, model.trained, self._setup.rank, together)

    def _note(self, step: int, exchange: Exchange, measured: Measured) -> None:
        """Write the choice down where the next start and the report look for it."""
        with horovod.raise_on_all_ranks():
            if self.store is not None:
                config = self._plan.config
                training = exchange.written_into(self._asked)
                chosen = dataclasses.replace(config, training=training)
                run_directory.write_config(config.run_dir, chosen)
                self._record(step, exchange, measured.compute_s)

    def _record(self, step: int, exchange: Exchange, compute_s: float | None) -> None:
        if self.store is not None:
            line = dataclasses.asdict(exchange) | {
                "all_reduce_s": self._all_reduce_s,
                "compute_s": compute_s,
                "chosen": decided(self._asked) is None,
            }
            self.store.scalars(step, {}, kind="exchange", more=line)

    def _is_barrier(self, step: int) -> bool:
        config, exchange = self._plan.config, self._training_model.exchange
        if exchange.islands:
            return joined_at(config, exchange, step) == Joined.EVERYTHING
        return is_due(step, config.checkpoints.every_steps)

    def _watch(self, step: int, logs: dict[str, Any]) -> None:
        """Note how long transfers take, and say it when they take far longer than at first."""
        exchange = self._training_model.exchange
        if not self._usual_compute_s:
            self._usual_compute_s = statistics.median(self._compute_s)
        if exchange.islands:
            # It begins when the last host has its sentences.
            waits_s = logs["rank_input_wait_s"]
            late_s = max(waits_s) - waits_s[self._setup.rank.index]
            seconds = logs.get("transfer_s", 0.0) - late_s
        else:
            waited_s = logs["step_time"].communication_s
            seconds = travelling_s(exchange, waited_s, self._usual_compute_s)
        if seconds <= 0:
            return
        self._transfers_s = [*self._transfers_s[-(_IN_A_ROW - 1) :], seconds]
        if len(self._transfers_s) < _IN_A_ROW:
            return
        now_s = statistics.mean(self._transfers_s)
        if self._usual_s is None:
            self._usual_s = now_s
        if self._change() > 1 and not self._told:
            self._told = True
            self._log(
                f"link        step {step:,}: an exchange between hosts takes "
                f"{step_duration(now_s)}, {now_s / self._usual_s:.1f} times as long as at first"
                + ("; the next checkpoint chooses again how hosts exchange"
                   if decided(self._asked) is None else "")
            )  # fmt: skip

    def _was_misjudged(self) -> bool:
        """Whether computing takes another time than was assumed.

        In plain steps over a slow link it cannot be told well from the transfers beside it.
        """
        if self._assumed_compute_s is None or not self._training_model.exchange.islands:
            return False
        if len(self._compute_s) < MEASURED_STEPS - _SETTLING_STEPS:
            return False
        ratio = self._assumed_compute_s / statistics.median(self._compute_s)
        return not 1 / _MISJUDGED < ratio < _MISJUDGED

    def _change(self) -> float:
        """How many times as long transfers take as at first; 1: as long, or it matters little."""
        if self._usual_s is None or len(self._transfers_s) < _IN_A_ROW:
            return 1.0
        now_s = statistics.mean(self._transfers_s)
        times = now_s / self._usual_s
        step_s = statistics.median(self._compute_s) if self._compute_s else 0.0
        matters = max(now_s, self._usual_s) > 0.1 * step_s
        return times if matters and not 1 / _CHANGED < times < _CHANGED else 1.0

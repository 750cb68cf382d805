"""The story of a run on one rank, from a configuration to its last checkpoint."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_nmt.checkpoints import weights
from hvd_nmt.checkpoints.find import find, newest_verified
from hvd_nmt.checkpoints.run_files import TELEMETRY_DIR
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.common.rank_environment import START_ID
from hvd_nmt.common.tensorflow_import import process_started_s
from hvd_nmt.common.units import count, duration
from hvd_nmt.config import Config, command_line
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.records import metrics
from hvd_nmt.telemetry.events import METRICS_FILE, TENSORBOARD_DIR, EventStore, read_metrics
from hvd_nmt.telemetry.tracker import Tracker
from hvd_nmt.training import (
    callbacks,
    cluster,
    devices,
    early_end,
    heartbeat,
    horovod,
    host_directories,
    run_directory,
    setup,
)
from hvd_nmt.training.early_end import EarlyEnd
from hvd_nmt.training.evaluation import Evaluator
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.not_finite import NotFiniteGuard
from hvd_nmt.training.plan import Plan
from hvd_nmt.training.save_and_evaluate import SaveAndEvaluate
from hvd_nmt.training.setup import RunSetup
from hvd_nmt.training.step import TrainingModel
from hvd_nmt.training.step_log import StepLog
from hvd_nmt.training.stop import StopRequest

Log = Callable[[str], None]
WriteReport = Callable[[Path, bool], None]
"""gets the run directory, and whether a process of its own is to do it, which outlives this one"""
_COMMAND = "hvd_nmt.train"


class _Ends:
    """How a rank ends before the last step."""

    def __init__(self, config: Config, rank: Rank, write_report: WriteReport) -> None:
        self.stop_request = StopRequest(announces=rank.is_first)
        self._config, self._rank, self._write_report = config, rank, write_report

    def report(self, stopped: bool) -> None:
        """Write the report, unless the launcher does; in the background where ranks are killed."""
        is_due = self._rank.is_first and self._config.telemetry.report
        if is_due and not horovod.heartbeat.is_read:
            self._write_report(self._config.run_dir, stopped and self._rank.size > 1)


def train(config: Config, write_report: WriteReport) -> None:
    """The whole run, on this rank; rank 0 writes the report when the steps end, however they end.

    Raises UserError for whatever a person can mend; the same on all ranks.
    """
    rank = horovod.init(config.ranks, with_groups=config.training.exchange != "float32")
    with horovod.heartbeat.limited(config.training.stuck_limit_s):
        _train(config, rank, write_report)


def _train(config: Config, rank: Rank, write_report: WriteReport) -> None:
    log: Log = print if rank.is_first else _silent
    if command_line.LOCAL_FILE.exists():
        log(f"defaults    {command_line.LOCAL_FILE} in this directory")
    ends = _Ends(config, rank, write_report)
    with (
        horovod.end_when_ranks_are_lost(_COMMAND, functools.partial(ends.report, stopped=True)),
        devices.explain_memory(rank),
    ):
        with horovod.raise_on_all_ranks():
            devices.set_up(rank, config.training.device, config.training.deterministic)
            tracker = Tracker(config, rank.is_first)
            lock = run_directory.claim(config.run_dir, rank)
        with tracker:
            _set_up_and_fit(config, rank, ends, log, tracker)
    horovod.shutdown()
    if lock is not None:
        lock.close()


def _set_up_and_fit(config: Config, rank: Rank, ends: _Ends, log: Log, tracker: Tracker) -> None:
    directories = host_directories.agree(config.run_dir, rank, log)
    writes = rank.index in directories.writers
    run_setup = setup.agree_on_setup(config, rank)
    with horovod.raise_on_all_ranks():
        if writes:
            run_directory.require_same_run(config.run_dir, config, run_setup.data, log)

    with horovod.raise_on_all_ranks():
        model, state, adam = setup.build(config, run_setup)
    _restore(state, config, run_setup, directories.source, print)
    step = int(model.step)
    if step >= config.training.max_steps:
        past = f", past the {config.training.max_steps:,} asked for"
        past = past if step > config.training.max_steps else ""
        log(f"{config.run_dir} has done all {step:,} steps{past}; raise --training.max-steps.")
        if rank.is_first and not _is_scored(config.run_dir, step):
            evaluate = f"python -m hvd_nmt.evaluate --run {config.run_dir}"
            log(f"not scored  its last evaluation was cut off: {evaluate}")
        return
    if ended := early_end.ended_before(config, step):
        log(ended)
        return
    with horovod.raise_on_all_ranks():
        if writes:
            environment = cluster.environment(run_setup.hosts, run_setup.precision)
            data, run_id = run_setup.data, directories.run_id
            run_directory.describe(config.run_dir, config, data, environment, run_id)
            tracker.start(run_id)
    plan = setup.check(config, run_setup, model, adam)
    log("\n".join(plan.lines()))

    # An evaluation takes longer than a step, as it should; Keras would call that callback slow.
    tf.get_logger().addFilter(lambda record: "Callback method" not in record.getMessage())
    started_s = time.monotonic()
    stopped = True
    try:
        _fit(model, state, run_setup, plan, ends, writers=directories.writers, tracker=tracker)
        stopped = False
    finally:
        ends.report(stopped)
    step = int(model.step)
    checksum = cluster.require_equal_weights(model.replicated, step, rank)
    log(f"weights     checksum {checksum:#x} equal on {count(rank.size, 'rank')}")
    if rank.is_first:
        log(_where_things_are(config, step, time.monotonic() - started_s))


def _is_scored(run_dir: Path, step: int) -> bool:
    return any(line["kind"] == "eval" and line["step"] == step for line in read_metrics(run_dir))


def _restore(
    state: tf.train.Checkpoint, config: Config, run_setup: RunSetup, reader: int, log: Log
) -> None:
    """Load the newest good checkpoint on one rank, or the weights to begin with; all get them.

    Everything is equal on all ranks before step 1: weights, Adam's moments, step and loss scale.
    """
    rank, source = run_setup.rank, config.training.init_from
    with horovod.raise_on_all_ranks():
        reads = rank.index == reader
        newest = newest_verified(config.run_dir, log) if reads else None
        if newest is not None:
            ignored = "; --init-from was for its beginning" if source else ""
            log(f"resuming    from {newest.prefix}{ignored}")
            run_directory.require_same_data(newest, config, run_setup.data, log)
            run_directory.require_same_epochs(config, run_setup, newest)
            if weights.restore(state, newest):
                words = "in float16: its loss scale is dropped"
                if run_setup.precision == "float16":
                    words = "without it: a loss scale starts anew"
                was = f"{newest.prefix.name} was trained {words}"
                log(f"precision   {run_setup.precision}; {was}")
        elif reads and source:
            origin, said = weights.start_from(source, state, run_setup.data)
            run_directory.note_origin(config.run_dir, origin)
            log(said)
    horovod.broadcast(weights.variables(state), reader)


def _fit(
    model: TrainingModel,
    state: tf.train.Checkpoint,
    run_setup: RunSetup,
    plan: Plan,
    ends: _Ends,
    *,
    writers: tuple[int, ...],
    tracker: Tracker,
) -> None:
    """Join the parts and let Keras run the steps."""
    config, rank, start = plan.config, run_setup.rank, plan.start_step
    writes = rank.index in writers
    with horovod.raise_on_all_ranks():
        trained_s = metrics.trained_s(read_metrics(config.run_dir)) if writes else 0.0
        store = _opened_store(run_setup, plan, trained_s, tracker) if writes else None
        saver = _saver(config, state, run_setup) if writes else None
    early_end = EarlyEnd(config, trained_s)
    telemetry = callbacks.Telemetry(config.run_dir, config.telemetry.interval_s, rank)
    evaluator = Evaluator(model.eval_model, run_setup.data, config, rank, writes)
    stop_save_evaluate = SaveAndEvaluate(
        config, start, evaluator, saver, store,
        copies=len(writers), is_first=rank.is_first, early_end=early_end,
        stop_request=ends.stop_request,
    )  # fmt: skip
    every_step = [
        telemetry,
        callbacks.LearningRate(start, Schedule.of(config)),
        StepLog(plan, store, prints=rank.is_first),
        NotFiniteGuard(config.run_dir, start, run_setup),
        callbacks.ReplicaCheck(start, rank),
        stop_save_evaluate,
    ]
    steps = config.training.max_steps - start
    try:
        data = setup.dataset(run_setup, start, steps, rounded=model.compiles)
        model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=every_step)
        horovod.heartbeat.enter(heartbeat.END)
        _note_end(store, horovod.gather(early_end.record(int(model.step)))[0], rank.is_first)
    except BaseException:
        stop_save_evaluate.on_failure()
        raise
    finally:
        telemetry.on_train_end()  # Keras does not call it after an error
        if store is not None:
            store.close()


def _note_end(store: EventStore | None, end: dict[str, Any], prints: bool) -> None:
    """Record the end, and say why if it comes early; see `EarlyEnd.record`."""
    if store is None:
        return
    if end["because"] and prints:
        print(f"the end     after step {end['steps']:,}: {end['because']}", flush=True)
    store.record("end", end)


def _opened_store(
    run_setup: RunSetup, plan: Plan, trained_s: float, tracker: Tracker
) -> EventStore:
    """The run's records, with all that is known before the first step of this start."""
    store = EventStore(plan.config.run_dir, plan.start_step, tracker.log)
    start = {
        "first_step": plan.start_step + 1,
        "hosts": run_setup.hosts,
        "parameters": plan.parameters,
        "gradient_bytes": plan.gradient_bytes,
        "sent_bytes_per_step": plan.sent_bytes_per_step,
        "exchange": plan.exchange.kind,
        "sync_every": plan.exchange.sync_every,
        "all_reduce_s": plan.all_reduce_s,
        "process_started_s": process_started_s(),
        "trained_s": trained_s,
        "data_hash": run_setup.data.manifest.hash,
    }
    if START_ID in os.environ:
        start["start_id"] = os.environ[START_ID]
    store.record("start", start)
    return store


def _saver(config: Config, state: tf.train.Checkpoint, run_setup: RunSetup) -> Saver:
    """What writes the checkpoints on this rank's host."""
    kept, best_by = config.checkpoints, config.evaluation.best_by
    facts = _manifest_facts(config, run_setup)
    return Saver(config.run_dir, state, facts, kept.keep, kept.keep_best, best_by)


def _manifest_facts(config: Config, run_setup: RunSetup) -> dict[str, Any]:
    """What the manifest of each checkpoint says of the run."""
    return {
        "vocabulary_hash": run_setup.data.manifest.vocabulary_hash,
        "data_hash": run_setup.data.manifest.hash,
        "model": dataclasses.asdict(config.model),
        "vocabulary_size": run_setup.data.manifest.vocabulary_size,
        "source_vocabulary_hash": run_setup.data.manifest.source_vocabulary_hash,
        "source_vocabulary_size": run_setup.data.manifest.source_vocabulary_size,
        "ranks": run_setup.rank.size,
        "freeze": config.training.freeze,
    }


def _where_things_are(config: Config, step: int, seconds: float) -> str:
    run = config.run_dir
    return "\n".join(
        [
            f"Trained to step {step:,} in {duration(seconds)}.",
            f"checkpoint  {find(run, 'latest')}",
            f"best        {find(run, 'best')}",
            f"metrics     {run / METRICS_FILE}",
            f"telemetry   {run / TELEMETRY_DIR}",
            *([f"report      {run / 'report.html'}"] if config.telemetry.report else []),
            f"TensorBoard tensorboard --logdir {run / TENSORBOARD_DIR}",
            f"translate   python -m hvd_nmt.translate --run {run} < in.txt > out.txt",
        ]
    )


def _silent(text: str) -> None:
    """What ranks other than the first print."""

"""The story of a run on one rank, from a configuration to its last checkpoint."""

import contextlib
import dataclasses
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from hvd_nmt.checkpoints import names, weights
from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.manifest import newest_step
from hvd_nmt.checkpoints.run_files import RunDirectory, write_record
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.state import keyed_variables
from hvd_nmt.common import heartbeat, jsonl
from hvd_nmt.common.errors import Preempted, UserError
from hvd_nmt.common.progress import say
from hvd_nmt.common.rank_environment import RESCUES, START_ID
from hvd_nmt.common.tensorflow_import import process_started_s
from hvd_nmt.common.units import count, duration
from hvd_nmt.config import Config, command_line
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.config.schema import AUTO
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.explain.goodput import goodput
from hvd_nmt.records import metrics
from hvd_nmt.records.event_store import EventStore
from hvd_nmt.records.record import End, Start, Stop
from hvd_nmt.telemetry.tracker import Tracker
from hvd_nmt.training import callbacks, cluster, devices, horovod, resume, run_directory, setup
from hvd_nmt.training.evaluation import Evaluator
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.plan import Plan, prove_and_plan
from hvd_nmt.training.resume import Log
from hvd_nmt.training.run_directory import HostDirectories
from hvd_nmt.training.save_and_evaluate import SaveAndEvaluate, is_owed
from hvd_nmt.training.setup import RunSetup
from hvd_nmt.training.step import TrainingModel
from hvd_nmt.training.step_log import StepLog

WriteReport = Callable[[Path, bool], None]
"""gets the run directory, and whether a separate process is to do it, which outlives this one"""


def train(config: Config, write_report: WriteReport) -> None:
    """The whole run, on this rank; rank 0 writes the report when the steps end, however they end.

    Raises UserError for whatever a person can mend; the same on all ranks.
    """
    rank = horovod.init(config.ranks, with_groups=config.training.exchange != "float32")
    log: Log = say if rank.is_first else lambda text: None
    if command_line.LOCAL_FILE.exists():
        log(f"defaults    {command_line.LOCAL_FILE} in this directory")

    stuck_s = config.training.stuck_after_s
    with (
        horovod.heartbeat.limited(None if stuck_s == AUTO else float(stuck_s)),  # None: learned
        horovod.end_when_ranks_are_lost("hvd_nmt.train"),
        devices.explain_memory(rank),
    ):
        with horovod.raise_on_all_ranks():
            devices.set_up(rank, config.training.device, config.training.deterministic)
            tracker = Tracker(config, rank.is_first)
        with tracker:
            directories = run_directory.claim_directories(config.run_dir, rank, log)
            with directories.lock or contextlib.nullcontext():  # a notebook lives on
                _set_up_and_fit(config, rank, directories, write_report, log, tracker)
    horovod.shutdown()


def _set_up_and_fit(
    config: Config, rank: Rank, directories: HostDirectories, write_report: WriteReport, log: Log,
    tracker: Tracker,
) -> None:  # fmt: skip
    writes = rank.index in directories.writers
    run_setup = setup.agree_on_setup(config, rank)
    newest, before = directories.newest, metrics.records(directories.before)
    step = horovod.gather(newest.step if newest else 0)[directories.source]
    owed = is_owed(run_setup, step, before)
    done = "" if owed else resume.ended(config, step, before)
    owed, done = horovod.gather((owed, done))[0]  # the records of rank 0 count
    with horovod.raise_on_all_ranks():
        if writes:
            resume.require_same_run(config, run_setup.data.manifest, newest, None if done else log)
    run_setup = run_directory.with_tokenizers(run_setup, directories)
    if done:
        log(done)
        return

    with horovod.raise_on_all_ranks():
        model, state = setup.build(run_setup)
    _restore(state, run_setup, directories)
    with horovod.raise_on_all_ranks(), run_directory.writing(config.run_dir, rank.host):
        if writes:
            run_directory.describe(run_setup, directories.run_id)
            tracker.start(directories.run_id)
    plan = prove_and_plan(run_setup, model)
    log("\n".join(plan.lines()))

    # An evaluation takes longer than a step, as it should; Keras would call that callback slow.
    tf.get_logger().addFilter(lambda record: "Callback method" not in record.getMessage())
    started_s = time.monotonic()
    stopped = True
    try:
        _fit(model, state, plan, directories, tracker, owed)
        stopped = False
    finally:
        if rank.is_first and config.telemetry.report and not horovod.heartbeat.is_read:
            # Where an agent reads, its launcher does it. Ranks of a run that stops may be killed.
            write_report(config.run_dir, stopped and rank.size > 1)
    step = int(model.step)
    checksum = cluster.require_equal_weights(model.replicated, step, rank)
    log(f"weights     checksum {checksum:#x} equal on {count(rank.size, 'rank')}")
    if rank.is_first:
        print(_where_things_are(run_setup, step, time.monotonic() - started_s), flush=True)


def _restore(state: tf.train.Checkpoint, run_setup: RunSetup, directories: HostDirectories) -> None:
    """Load the newest good checkpoint on one rank, or the weights to begin with; all get them.

    Everything is equal on all ranks before step 1: weights, Adam's moments, step and loss scale.
    """
    config = run_setup.config
    source = config.training.init_from
    with horovod.raise_on_all_ranks():
        reads = run_setup.rank.index == directories.source
        newest = directories.newest if reads else None
        if newest is not None:
            ignored = "; --init-from was for its beginning" if source else ""
            print(f"resuming    from {newest.prefix}{ignored}")
            run_directory.require_same_data(run_setup, newest, print)
            weights.restore(state, newest)
        elif reads and source:
            origin, sentence = weights.start_from(source, state, run_setup.data)
            write_record(RunDirectory(config.run_dir).origin, origin.record())
            print(sentence)
    horovod.broadcast([variable for _, variable in keyed_variables(state)], directories.source)


def _fit(
    model: TrainingModel,
    state: tf.train.Checkpoint,
    plan: Plan,
    directories: HostDirectories,
    tracker: Tracker,
    owed: bool,
) -> None:
    run_setup, start = plan.setup, plan.start_step
    config, rank = run_setup.config, run_setup.rank
    writes = rank.index in directories.writers
    rescues = RESCUES in os.environ and rank.is_first_on_host
    with horovod.raise_on_all_ranks():
        before = metrics.records(directories.before)
        trained_s, lost = metrics.trained_s(before), metrics.steps_after(start, before)
        store = _opened_store(plan, directories, trained_s, lost, tracker) if writes else None
        if lost and rank.is_first:
            say(f"again       steps {start + 1:,} to {start + lost:,}, which no checkpoint held")
        saver = _saver(run_setup, state, model, directories) if writes or rescues else None
    now_s = jsonl.uptime_s() + (store.zero_s if store else 0.0)  # all ranks have just met
    telemetry = callbacks.telemetry(config.run_dir, config.telemetry.interval_s, rank, now_s)
    evaluator = Evaluator(
        model.eval_model, run_setup.data, config, rank, writes, run_setup.tokenizers
    )
    copies = len(directories.writers)
    last = SaveAndEvaluate(
        run_setup, evaluator, saver if writes else None, store, copies=copies, trained_s=trained_s
    )
    every_step = [
        telemetry,
        callbacks.LearningRate(Schedule.of(config)),
        StepLog(plan, store, lambda: last.evaluation_s, prints=rank.is_first),
        callbacks.NotFiniteGuard(run_setup),
        callbacks.ReplicaCheck(rank),
        last,
    ]
    steps = config.training.max_steps - start
    try:
        if not (owed and last.make_up(start)):
            data = setup.dataset(run_setup, start, steps, rounded=model.compiles)
            model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=every_step)
        horovod.heartbeat.enter(heartbeat.END)
        end = End(**horovod.gather(dataclasses.asdict(last.early_end.end(int(model.step))))[0])
        if store is not None:
            store.write(end)
        if end.because and rank.is_first:
            say(f"the end     after step {end.step:,}: {end.because}")
    except BaseException as error:
        last.stop_request.hold_back()  # Keras calls nothing after an error
        if rescues and saver is not None and horovod.is_loss(error):
            _rescue(saver, int(model.step), run_setup)
        if store is not None and isinstance(error, Preempted):
            store.write(Stop())
        raise
    finally:
        if rank.is_first:
            say("", moves=True, in_files=False)
        telemetry.on_train_end({})
        if store is not None:
            store.close()


def _rescue(saver: Saver, step: int, run_setup: RunSetup) -> None:
    """Save the last whole step of this host, for a start without the host that is lost."""
    horovod.heartbeat.enter(heartbeat.LOST)
    if step <= (newest_step(run_setup.config.run_dir) or 0):
        return
    host = run_setup.rank.host
    try:
        say(f"rescued     step {step:,} of {host}: {saver.rescue(step, host).prefix}")
    except UserError as error:
        say(f"rescued     nothing: {error}")


def _opened_store(
    plan: Plan, directories: HostDirectories, trained_s: float, lost: int, tracker: Tracker
) -> EventStore:
    """The run's records, with all that is known before the first step; `lost`: to be done again."""
    run_setup = plan.setup
    run_dir, exchange = RunDirectory(run_setup.config.run_dir), run_setup.exchange
    store = EventStore(run_dir, directories.before, plan.start_step, tracker.log)
    store.write(
        Start(
            tuple(run_setup.hosts), exchange.kind, exchange.sync_every, plan.all_reduce_s,
            first_step=plan.start_step + 1,
            parameters=plan.parameters,
            gradient_bytes=plan.gradient_bytes,
            tokenizers=dict(run_setup.tokenizers),
            process_started_s=process_started_s() + store.clock_ahead_s,
            clock_ahead_s=store.clock_ahead_s,
            trained_s=trained_s,
            lost_steps=lost,
            start_id=os.environ.get(START_ID),
        )
    )  # fmt: skip
    return store


def _saver(
    run_setup: RunSetup,
    state: tf.train.Checkpoint,
    model: TrainingModel,
    directories: HostDirectories,
) -> Saver:
    """What writes the checkpoints on this rank's host, and what each manifest says of the run."""
    config, manifest = run_setup.config, run_setup.data.manifest
    facts = {
        "vocabulary_hash": manifest.vocabulary_hash,
        "data_hash": manifest.hash,
        "model": dataclasses.asdict(config.model),
        "vocabulary_size": manifest.vocabulary_size,
        "source_vocabulary_hash": manifest.source_vocabulary_hash,
        "source_vocabulary_size": manifest.source_vocabulary_size,
        "ranks": run_setup.rank.size,
        "freeze": config.training.freeze,
        "slots": model.kept.sizes(),
    }
    files, best_by = config.checkpoints, config.evaluation.best_by
    return Saver(
        config.run_dir, state, facts, files.keep, files.keep_best, best_by, directories.newest
    )


def _where_things_are(run_setup: RunSetup, step: int, seconds: float) -> str:
    config, run = run_setup.config, run_setup.config.run_dir
    tags = sentencepiece_model.tags(run_setup.data.source_spm_path.read_bytes())
    tag = next((tag for tag in tags if sentencepiece_model.languages([tag])), "")
    to = "".join(f" --to {language}" for language in sentencepiece_model.languages([tag]))
    line = f"{tag} a line".strip()
    best, quoted = find(run, "best"), shlex.quote(str(run))
    record = metrics.run_of(run, metrics.records(RunDirectory(run).read_metrics()))
    bleu = {of.step: of.bleu for of in record.evaluations if of.bleu is not None}
    top = max(bleu, key=bleu.__getitem__, default=None)
    by_bleu = [f"            BLEU was best at step {top:,}; evaluation.best_by bleu keeps that one"]
    other = config.evaluation.best_by != "bleu" and top not in (None, names.step_of(best))
    return "\n".join(
        [
            f"Trained to step {step:,} in {duration(seconds)}, evaluations included; this command "
            f"took {duration(time.time() - process_started_s())}.",
            f"goodput     {goodput(record) or 'unknown'}",
            f"best        {best}",
            *(by_bleu if other else ()),
            *([f"report      {run / 'report.html'}"] if config.telemetry.report else []),
            f"TensorBoard tensorboard --logdir {shlex.quote(str(RunDirectory(run).tensorboard))}",
            f"translate   python -m hvd_nmt.translate --run {quoted}{to} < in.txt > out.txt",
            f"in Python   hvd_nmt.load({str(run)!r}).translate([{line!r}])",
        ]
    )

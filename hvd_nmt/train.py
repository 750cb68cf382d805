"""Train a Transformer on all ranks; the same command again resumes.

python -m hvd_nmt.train                                                  one rank
horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.train              two hosts
horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.train --preset base --run-dir runs/x
python -m hvd_nmt.train --init-from runs/x --run-dir runs/y --config mine.yaml
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import RunError, reported, speak_utf8
from hvd_nmt.common.units import duration
from hvd_nmt.config import Config, command_line
from hvd_nmt.config.schedule import Schedule

if TYPE_CHECKING:
    import tensorflow as tf

    from hvd_nmt.checkpoints.manifest import Checkpoint
    from hvd_nmt.telemetry.events import EventStore
    from hvd_nmt.training.plan import Plan
    from hvd_nmt.training.setup import RunSetup
    from hvd_nmt.training.step import TrainingModel

Say = Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    speak_utf8()
    first = command_line.is_first_rank()
    with reported("hvd_nmt.train", speak=first) as outcome:
        config: Config = command_line.run_config(
            argv, prog="python -m hvd_nmt.train", description=__doc__ or "", quiet=not first
        )
        train(config)
    return outcome.exit_code


def train(config: Config) -> None:
    """The whole run, on this rank.

    Raises:
        UserError: whatever a person can mend; the same on all ranks.
    """
    # TensorFlow takes seconds to import; --help and a mistyped option need not wait for it.
    tensorflow_import.import_tensorflow()
    from hvd_nmt.training import cluster, devices, horovod, run_directory, setup

    rank = horovod.init(config.ranks, with_timeline=config.telemetry.timeline_steps > 0)
    say: Say = print if rank.is_first else _nothing
    if command_line.LOCAL_FILE.exists():
        say(f"defaults    {command_line.LOCAL_FILE} in this directory")
    with horovod.raise_on_all_ranks():
        devices.set_up(rank)
    with horovod.raise_on_all_ranks():
        lock = run_directory.claim(config.run_dir, rank)
    run_setup = setup.agree_on_setup(config, rank)
    with horovod.raise_on_all_ranks():
        if rank.is_first:
            run_directory.require_same_run(config.run_dir, config, run_setup.data, say)

    model, state = setup.build(config, run_setup)
    _restore(state, config, run_setup, say)
    if model.step >= config.training.max_steps:
        say(f"{config.run_dir} has done all {int(model.step):,} steps; raise --training.max-steps.")
        return
    with horovod.raise_on_all_ranks():
        if rank.is_first:
            environment = cluster.environment(run_setup.hosts, run_setup.precision)
            run_directory.describe(config.run_dir, config, run_setup.data, environment)
    plan = setup.check(config, run_setup, model)
    say("\n".join(plan.lines()))

    started_s = time.monotonic()
    try:
        with horovod.report_lost_peers():
            _fit(model, state, run_setup, plan)
    finally:
        if rank.is_first and config.telemetry.report:
            _write_report(config.run_dir)
    checksum = cluster.require_equal_weights(model.replicated, config.training.max_steps, rank)
    say(f"weights     checksum {checksum:#x} equal on {rank.size} rank(s)")
    say(_where_things_are(config, time.monotonic() - started_s))
    horovod.shutdown()
    if lock is not None:
        lock.close()


def _restore(state: tf.train.Checkpoint, config: Config, run_setup: RunSetup, say: Say) -> None:
    """Load the newest good checkpoint on rank 0, or the weights to begin with, and give it to all.

    Everything is equal on all ranks before step 1: weights, Adam's moments, step and loss scale.
    """
    from hvd_nmt.checkpoints import weights
    from hvd_nmt.checkpoints.find import best_first, newest_first, newest_verified
    from hvd_nmt.training import horovod, run_directory

    rank, source = run_setup.rank, config.training.init_from
    found: Checkpoint | None = None
    with horovod.raise_on_all_ranks():
        found = newest_verified(config.run_dir, say) if rank.is_first else None
        if found is not None:
            begun = "; --init-from was for its beginning" if source else ""
            say(f"resuming    from {found.prefix}{begun}")
            weights.restore(state, found)
    here = newest_first(config.run_dir) + best_first(config.run_dir)
    everyone = horovod.gather([rank.host, bool(here)])
    holders = sorted({host for host, holds in everyone if holds})
    with horovod.raise_on_all_ranks():
        if rank.is_first and found is None and holders:
            raise RunError(
                f"The checkpoints of {config.run_dir} are on {', '.join(holders)}, but rank 0 "
                f"runs on {rank.host}: name {holders[0]} first in the list of hosts."
            )
        if rank.is_first and found is None and source:
            origin = weights.start_from(source, state, run_setup.data)
            run_directory.note_origin(config.run_dir, origin)
            say(f"begins with {origin.prefix}, step {origin.step:,}")
    horovod.broadcast(weights.variables(state))


def _fit(model: TrainingModel, state: tf.train.Checkpoint, run_setup: RunSetup, plan: Plan) -> None:
    """Join the parts and let Keras run the steps."""
    import tensorflow as tf

    from hvd_nmt.checkpoints.saver import Saver
    from hvd_nmt.training import callbacks, setup
    from hvd_nmt.training.evaluation import Evaluator

    config, rank, start = plan.config, run_setup.rank, plan.start_step
    # An evaluation takes longer than a step, as it should; Keras would call that callback slow.
    tf.get_logger().addFilter(lambda record: "Callback method" not in record.getMessage())
    store = saver = None
    if rank.is_first:
        store = _opened_store(run_setup, plan)
        saver = Saver(
            config.run_dir,
            state,
            _manifest_facts(config, run_setup),
            config.checkpoints.keep,
            config.checkpoints.keep_best,
        )
    telemetry = callbacks.Telemetry(config.run_dir, config.telemetry.interval_s, rank)
    evaluator = Evaluator(model.eval_model, run_setup.data, config, rank)
    evaluation = callbacks.Evaluation(config, start, evaluator, saver, store)
    own = [
        telemetry,
        callbacks.LearningRate(start, Schedule.of(config)),
        callbacks.StepLog(config, start, run_setup.batch_plan.steps_per_epoch, store),
        callbacks.StopIfNotFinite(start, rank, run_setup.precision == "float16"),
        callbacks.ReplicaCheck(start, config.training.check_replicas_every, rank),
        evaluation,
        callbacks.Checkpoints(config, start, saver, evaluation),
    ]
    if config.telemetry.timeline_steps:
        path = config.run_dir / "horovod-timeline.json"
        own.append(callbacks.Timeline(path, start, config.telemetry.timeline_steps))
    try:
        model.fit(
            setup.dataset(run_setup, start),
            steps_per_epoch=config.training.max_steps - start,
            verbose=0,
            callbacks=own,
        )
        if store is not None:
            store.record("end", {"steps": config.training.max_steps})
    finally:
        telemetry.on_train_end()  # Keras does not call it after an error
        if store is not None:
            store.close()


def _opened_store(run_setup: RunSetup, plan: Plan) -> EventStore:
    """The run's records, with all that is known before the first step of this start."""
    from hvd_nmt.telemetry.events import EventStore
    from hvd_nmt.telemetry.host import process_started_s
    from hvd_nmt.training import dashboard

    store = EventStore(plan.config.run_dir)
    store.truncate_after(plan.start_step)
    start = {
        "first_step": plan.start_step + 1,
        "hosts": run_setup.hosts,
        "parameters": plan.parameters,
        "gradient_bytes": plan.gradient_bytes,
        "sent_bytes_per_step": plan.sent_bytes_per_step,
        "process_started_s": process_started_s(),
    }
    store.record("start", start)
    store.summaries(dashboard.summaries(plan.config, run_setup.rank.size, run_setup.precision))
    return store


def _write_report(run_dir: Path) -> None:
    """Explain the run, however it ended; what goes wrong here spoils no training."""
    from hvd_nmt.records.read import read_run
    from hvd_nmt.reporting import render

    try:
        render.write([read_run(run_dir)], run_dir, ended=True)
    except Exception as error:
        print(
            f"The report could not be written ({type(error).__name__}: {error}); "
            f"python -m hvd_nmt.report {run_dir} tries again.",
            file=sys.stderr,
        )


def _manifest_facts(config: Config, run_setup: RunSetup) -> dict[str, Any]:
    return {
        "vocabulary_hash": run_setup.data.manifest.vocabulary_hash,
        "data_hash": run_setup.data.manifest.hash,
        "model": dataclasses.asdict(config.model),
        "vocabulary_size": run_setup.data.manifest.vocabulary_size,
        "ranks": run_setup.rank.size,
        "freeze": config.training.freeze,
    }


def _where_things_are(config: Config, seconds: float) -> str:
    from hvd_nmt.checkpoints.find import find

    run = config.run_dir
    return "\n".join(
        [
            f"Trained to step {config.training.max_steps:,} in {duration(seconds)}.",
            f"checkpoint  {find(run, 'latest')}",
            f"best        {find(run, 'best')}",
            f"metrics     {run / 'metrics.jsonl'}",
            f"telemetry   {run / 'telemetry'}",
            *([f"report      {run / 'report.html'}"] if config.telemetry.report else []),
            f"TensorBoard tensorboard --logdir {run / 'tensorboard'}",
            f"translate   python -m hvd_nmt.translate --run {run} < in.txt > out.txt",
        ]
    )


def _nothing(text: str) -> None:
    """What ranks other than the first say."""


if __name__ == "__main__":
    sys.exit(main())

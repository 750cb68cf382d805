"""Train a Transformer on all ranks; the same command again resumes.

    python -m hvd_nmt.train                                                  one rank
    horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.train              two hosts
    horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.train --preset base --run-dir runs/x

Exit codes are in hvd_nmt.errors; horovodrun itself turns any failure into 1.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvd_nmt import config as configuration
from hvd_nmt import errors
from hvd_nmt.config import Config


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    # horovodrun reads the ranks' output as UTF-8 and stops reading at the first byte that is not.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    first = os.environ.get("HOROVOD_RANK", "0") == "0"
    with errors.reported("hvd_nmt.train", speak=first) as outcome:
        config = configuration.from_command_line(
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
    import tensorflow as tf

    from hvd_nmt.data.batches import BatchPlan
    from hvd_nmt.model.transformer import Transformer
    from hvd_nmt.telemetry.events import EventStore
    from hvd_nmt.training import checkpoints, cluster, devices, horovod, optimizer, run_directory
    from hvd_nmt.training.evaluation import Evaluator
    from hvd_nmt.training.plan import Plan, count_parameters
    from hvd_nmt.training.step import TrainingModel

    me = horovod.join(config.ranks)
    say = print if me.is_first else _nothing
    with horovod.together():
        devices.set_up(me)
    with horovod.together():
        lock = run_directory.claim(config.run_dir, me)
    data = cluster.prepared_data(config.data, me)
    precision = devices.pick_precision(config.training.precision)
    everyone = cluster.require_equal(cluster.facts(config, data, precision), me)
    hosts = [facts["host"] for facts in everyone]
    with horovod.together():
        if me.is_first:
            run_directory.describe(
                config.run_dir, config, data, cluster.environment(everyone, precision), say
            )

    batch_plan = BatchPlan.of(data.train, config.training.tokens_per_step, config.training.seed)
    transformer = Transformer(
        config.model, data.manifest.vocabulary_size, precision, config.training.seed
    )
    weights = transformer.trainable_variables
    adam = optimizer.build(config.training, precision, weights)
    model = TrainingModel(transformer, config.training, me.rank)
    model.compile(optimizer=adam)
    state = tf.train.Checkpoint(model=transformer, optimizer=adam, step=model.step)

    start_step = _restore(state, config, me, say)
    if start_step >= config.training.max_steps:
        say(f"{config.run_dir} has done all {start_step:,} steps; raise --training.max-steps.")
        return
    all_reduce_s = cluster.check_averaging(model.optimizer, weights, me)
    cluster.require_equal_weights(weights, start_step, me)
    plan = Plan(
        config, data, batch_plan, count_parameters(weights), hosts, precision, start_step,
        all_reduce_s,
    )
    say("\n".join(plan.lines()))

    store = saver = None
    if me.is_first:
        store = EventStore(config.run_dir)
        store.truncate_after(start_step)
        store.record("start", {"first_step": start_step + 1, "ranks": me.size, "hosts": hosts,
                               "sent_bytes_per_step": plan.sent_bytes_per_step})
        saver = checkpoints.Saver(
            config.run_dir, state, _manifest_facts(config, data, me.size),
            config.checkpoints.keep, config.checkpoints.keep_best,
        )
    evaluator = Evaluator(transformer, data, config, me)
    started_s = time.monotonic()
    _fit(model, plan, me, evaluator, saver, store)
    if store is not None:
        seconds = time.monotonic() - started_s
        store.record("end", {"steps": config.training.max_steps, "seconds": seconds})
        store.close()
        say(_where_things_are(config, seconds))
    horovod.leave()
    del lock


def _fit(model: Any, plan: Any, me: Any, evaluator: Any, saver: Any, store: Any) -> None:
    from hvd_nmt.training import callbacks

    config, start = plan.config, plan.start_step
    schedule = callbacks.WarmupSchedule(config, start)
    telemetry = callbacks.Telemetry(config.run_dir, config.telemetry.interval_s, me)
    evaluation = callbacks.Evaluation(config, start, evaluator, saver, store)
    try:
        model.fit(
            _dataset(plan, me),
            steps_per_epoch=config.training.max_steps - start,
            verbose=0,
            callbacks=[
                telemetry,
                schedule,
                callbacks.StepLog(
                    config, start, plan.batch_plan.steps_per_epoch, schedule, store
                ),
                callbacks.StopIfNotFinite(start, me, plan.precision == "float16"),
                callbacks.ReplicaCheck(start, config.training.check_replicas_every, me),
                evaluation,
                callbacks.Checkpoints(config, start, saver, evaluation),
            ],
        )
    finally:
        telemetry.on_train_end()  # Keras does not call it after an error


def _dataset(plan: Any, me: Any) -> Any:
    """This rank's batches from the start step on, without end, prepared beside the training."""
    import tensorflow as tf

    from hvd_nmt.data.batches import batches

    def rows() -> Iterator[dict[str, np.ndarray]]:
        start = plan.batch_plan.position(plan.start_step)
        for batch in batches(plan.data.train, plan.batch_plan, start, me.rank, me.size):
            yield {
                "source": batch.source_BxS,
                "target": batch.target_BxT,
                "tokens": np.array([batch.source_tokens, batch.target_tokens], np.float32),
            }

    ids = tf.TensorSpec([None, None], tf.int32)
    signature = {"source": ids, "target": ids, "tokens": tf.TensorSpec([2], tf.float32)}
    return tf.data.Dataset.from_generator(rows, output_signature=signature).prefetch(8)


def _restore(state: Any, config: Config, me: Any, say: Any) -> int:
    """Load the newest good checkpoint on rank 0 and give it to all; returns the steps done.

    Everything is equal on all ranks before step 1: weights, Adam's moments, step and loss scale.
    """
    from hvd_nmt.training import checkpoints, horovod

    with horovod.together():
        found = checkpoints.newest_verified(config.run_dir, say) if me.is_first else None
        if found is not None:
            say(f"Resuming from {found.prefix}")
            checkpoints.restore(state, found)
    _require_checkpoints_on_first_host(config.run_dir, found, me)
    horovod.broadcast(checkpoints.variables(state))
    return int(state.step.numpy())


def _require_checkpoints_on_first_host(run_dir: Path, found: Any, me: Any) -> None:
    """Refuse to start from scratch when another host holds this run's checkpoints."""
    from hvd_nmt.training import checkpoints, horovod

    everyone = horovod.gather([me.host, bool(checkpoints.newest_first(run_dir)), found is not None])
    holders = sorted({host for host, holds, _ in everyone if holds})
    if holders and not everyone[0][2]:
        raise errors.RunError(
            f"The checkpoints of {run_dir} are on {', '.join(holders)}, but rank 0 runs on "
            f"{everyone[0][0]}: name {holders[0]} first in the list of hosts."
        )


def _manifest_facts(config: Config, data: Any, ranks: int) -> dict[str, Any]:
    return {
        "vocabulary_hash": data.manifest.vocabulary_hash,
        "data_hash": data.manifest.hash,
        "model": dataclasses.asdict(config.model),
        "vocabulary_size": data.manifest.vocabulary_size,
        "ranks": ranks,
    }


def _where_things_are(config: Config, seconds: float) -> str:
    from hvd_nmt.training import callbacks, checkpoints

    return "\n".join([
        f"Trained to step {config.training.max_steps:,} in {callbacks.duration(seconds)}.",
        f"checkpoint   {checkpoints.find(config.run_dir, 'latest')}",
        f"best         {checkpoints.find(config.run_dir, 'best')}",
        f"metrics      {config.run_dir / 'metrics.jsonl'}",
        f"telemetry    {config.run_dir / 'telemetry'}",
        f"TensorBoard  tensorboard --logdir {config.run_dir / 'tensorboard'}",
        f"translate    python -m hvd_nmt.translate --run {config.run_dir} < in.txt > out.txt",
    ])


def _nothing(text: str) -> None:
    """What ranks other than the first say."""


if __name__ == "__main__":
    sys.exit(main())

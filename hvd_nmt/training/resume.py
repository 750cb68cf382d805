"""Whether a start may resume the run in its directory, and whether that has ended.

No TensorFlow: `hvd_nmt.train` asks before its import, which takes seconds.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from operator import attrgetter

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.find import newest_first, require_unchanged
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import Config, command_line
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.data import corpus
from hvd_nmt.records import metrics
from hvd_nmt.records.record import Record

Log = Callable[[str], None]
_OF_LAUNCHERS = ("HOROVOD_SIZE", "HVD_NMT_RANKS", "OMPI_", "PMI_", "SLURM_STEP_")
"""how variables begin that a process has which may be one of several ranks"""
LAST_STEP = "training.max_steps"
_DECIDES_RESUME = (
    "model.", "training.tokens_per_step", "training.seed", "training.freeze", "training.optimizer",
    "training.ema_decay",
)  # fmt: skip


def ended_by_files(config: Config) -> str:
    """What `ended` says by the files here, before TensorFlow's import, which takes seconds.

    "" for one of several ranks, who decide together, and where the start explains a damage.
    DataError: there are no data; RunError: this start may not resume the run.
    """
    data, run, manifest = config.data, RunDirectory(config.run_dir), None
    if data.corpus == "files" or (data.directory / corpus.MANIFEST).is_file():
        manifest = corpus.read_manifest(data.directory) if command_line.is_first_rank() else None
    if any(name.startswith(_OF_LAUNCHERS) for name in os.environ) or run.holder():
        return ""
    try:
        newest = next(iter(newest_first(config.run_dir)), None)
        before = metrics.records(run.read_metrics())
    except (RunError, OSError):
        return ""
    require_same_run(config, manifest, newest)
    end = metrics.end(before)
    if newest and end and end.step == newest.step and (done := ended(config, end.step, before)):
        with contextlib.suppress(RunError, OSError):
            require_unchanged(newest)
            return done
    return ""


def ended(config: Config, step: int, before: Sequence[Record]) -> str:
    """A sentence if nothing is left to do after a step that was evaluated; else "".

    It was the last one, or an earlier start has ended the run by an option that is unchanged.
    """
    if step >= config.training.max_steps:
        return f"{config.run_dir} has done all {step:,} steps: raise --training.max-steps for more."
    end = metrics.end(before)
    if end is None or end.option in (None, LAST_STEP) or end.step != step:
        return ""
    if attrgetter(end.option)(config) != end.value:
        return ""
    return (
        f"{config.run_dir} has stopped at step {step:,} because {end.because}: to continue, "
        f"change {end.option}, which is {end.value}."
    )


def require_same_run(
    config: Config, manifest: corpus.DataManifest | None, newest: Checkpoint | None,
    log: Log | None = None,
) -> None:  # fmt: skip
    """Compare with what an earlier start in the run directory wrote.

    `manifest` is that of the data, if they are there; of the model the checkpoint `newest` knows
    more than config.yaml, which a person may edit. `log` gets a line for each changed value.
    RunError: that start had another model, vocabulary or order of data.
    """
    step, model = (newest.step, newest.manifest.model) if newest else (0, {})
    run_dir, run = config.run_dir, RunDirectory(config.run_dir)
    known = run.vocabulary_hashes()
    wanted = manifest and (manifest.vocabulary_hash, manifest.source_vocabulary_hash)
    if known[0] and wanted not in (None, known):
        raise RunError(
            f"The checkpoints in {run_dir} were trained with another vocabulary than that of "
            f"{config.data.directory}: give data.directory of {run.config}, or another --run-dir."
        )
    if not run.config.exists():
        return
    before = run.read_config()
    for name, old, new in configuration.differences(before, config):
        decides = name == "data.stages" and not config.data.allow_change
        saved = model.get(name.removeprefix("model."), old)
        if decides or (name.startswith(_DECIDES_RESUME) and saved != new):
            raise RunError(
                f"The run in {run_dir} was started with {name} {saved}, not {new}: use the old "
                f"value (--config {run.config}), or give another --run-dir."
            )
        if log and name != "run_dir":
            log(f"Changed since this run was started: {name} {old} -> {new}")
    was, now = (Schedule.of(settings).rate(step) for settings in (before, config))
    if log and was != now and step < config.training.max_steps:
        log(
            f"From step {step + 1:,} the learning rate is {now:.3g}, by the old settings {was:.3g}."
        )

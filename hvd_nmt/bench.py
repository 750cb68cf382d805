"""Measure speed on this machine: of training, of the input alone, or of translating.

    python -m hvd_nmt.bench --preset multi30k
    horovodrun -np 2 -H localhost:2 python -m hvd_nmt.bench --preset multi30k
    python -m hvd_nmt.bench --input --preset multi30k
    python -m hvd_nmt.bench --translate --run runs/multi30k --source test.en

Without --input or --translate: the same steps as in training, on real batches; only real source and
target tokens are counted, not padding. --training.micro-batches N shows speed and memory of steps
in slices; --ceiling the share that the model has of what products alone reach. --input reads the
same batches and trains on none.
--translate translates a text as hvd_nmt.translate does, several times, and takes the fastest; then
some of its lines one by one, for the latency. Nothing is written.

Options of --translate: python -m hvd_nmt.bench --translate --help.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tyro.conf import OmitArgPrefixes, Suppress

from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError, DataError, reported, speak_utf8
from hvd_nmt.common.units import data_size
from hvd_nmt.config import CheckpointConfig, Config, EvaluationConfig, TelemetryConfig, command_line
from hvd_nmt.data import corpus, throughput
from hvd_nmt.data.feed import feed
from hvd_nmt.data.text import read_lines
from hvd_nmt.translation.settings import Settings


@dataclasses.dataclass(frozen=True)
class BenchConfig(Config):
    """What to measure, and on what."""

    steps: int = 40
    """steps that are measured"""
    warmup_steps: int = 5
    """steps before, in which TensorFlow builds its graph"""
    ceiling: bool = False
    """also measure what products alone reach on these ranks, and the model's share of it"""
    # What a run has and a measurement has no use for: neither options nor help.
    run_dir: Suppress[Path] = Config.run_dir
    evaluation: Suppress[EvaluationConfig] = dataclasses.field(default_factory=EvaluationConfig)
    checkpoints: Suppress[CheckpointConfig] = dataclasses.field(default_factory=CheckpointConfig)
    telemetry: Suppress[TelemetryConfig] = dataclasses.field(default_factory=TelemetryConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1 or self.warmup_steps < 1:
            raise ConfigError("--steps and --warmup-steps must be at least 1.")


@dataclasses.dataclass(frozen=True)
class TranslateOptions:
    """Which model, on which text."""

    run: Path
    """run directory with checkpoints, config.yaml and spm.model"""
    checkpoint: tuple[str, ...] = ("best",)
    """best: by the run's evaluation.best_by; latest: newest; or the prefix of a checkpoint's files;
    several translate together, as an ensemble"""
    source: Path | None = None
    """text to translate, plain or .gz; by default the dev text of the run's data"""
    sentences: int = 1000
    """lines of it that are translated, from the first on; 0: all"""
    rounds: int = 3
    """how often they are translated, after a first time that does not count"""
    settings: OmitArgPrefixes[Settings] = dataclasses.field(default_factory=Settings)

    def __post_init__(self) -> None:
        if self.sentences < 0 or self.rounds < 1:
            raise ConfigError("--rounds must be at least 1, --sentences at least 0.")
        if not self.checkpoint:
            raise ConfigError("--checkpoint names none: give best, latest or a prefix.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    speak_utf8()
    words = list(sys.argv[1:] if argv is None else argv)
    quiet = not command_line.is_first_rank()
    prog, description = "python -m hvd_nmt.bench", __doc__ or ""
    with reported("hvd_nmt.bench", speak=not quiet) as outcome:
        if "--translate" in words:
            words.remove("--translate")
            translate(command_line.options(
                TranslateOptions, prog=f"{prog} --translate", description=description, argv=words,
                quiet=quiet,
            ))  # fmt: skip
        else:
            config = command_line.run_config(
                [word for word in words if word != "--input"], prog=prog, description=description,
                quiet=quiet, kind=BenchConfig,
            )  # fmt: skip
            if "--input" in words and config.ceiling:
                raise ConfigError("--ceiling is measured after training steps, not with --input.")
            (read_input if "--input" in words else bench)(config)
    return outcome.exit_code


def translate(options: TranslateOptions) -> None:
    """Translate a text several times and print a table."""
    if command_line.started_by_horovod():
        raise ConfigError("--translate measures one process: start it without horovodrun.")
    tensorflow_import.import_tensorflow()
    from hvd_nmt.training import devices
    from hvd_nmt.translation import engine, prepared_text, speed

    settings = options.settings
    if options.source is None:
        lines = prepared_text.load(options.run, "dev")[0].lines
    else:
        lines = list(read_lines(options.source, lenient=True))
        if not lines:
            raise DataError(f"{options.source} is empty: it needs one sentence per line.")
    loaded = engine.load(options.run, options.checkpoint, settings)
    lines = lines[: options.sentences or None]
    found = speed.measure(loaded, lines, options.rounds, lambda line: print(line, file=sys.stderr))
    threads = settings.threads or len(os.sched_getaffinity(0))
    print(_aligned([
        *speed.table(found),
        ("peak memory", data_size(devices.peak_memory_bytes())),
        ("backend, beam, threads", f"{settings.backend}, {settings.decoding.beam_size}, {threads}"),
        ("precision", loaded.settings.precision),
    ]))  # fmt: skip


def read_input(config: BenchConfig) -> None:
    """Make batches without a model, as one rank does, and print a table."""
    data = corpus.load(config.data.directory)
    plan, augmentation = feed(
        data, config.data, config.training.tokens_per_step, config.training.seed
    )
    print(_aligned(throughput.measure(data.train, plan, augmentation=augmentation).rows()))


def bench(config: BenchConfig) -> None:
    """Train some steps and print a table."""
    tensorflow_import.import_tensorflow()
    from hvd_nmt.training import benchmark

    found = benchmark.measure(config, config.steps, config.warmup_steps, config.ceiling)
    if found is not None:  # on rank 0
        print("\n".join(found.plan.lines()))
        print(_aligned(found.rows()))


def _aligned(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


if __name__ == "__main__":
    sys.exit(main())

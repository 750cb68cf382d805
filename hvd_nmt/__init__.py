"""Train a Keras Transformer for machine translation with Horovod, and explain the run.

From Python, as in a notebook:

    import hvd_nmt

    data = hvd_nmt.prepare_data(
        "data/mine", vocabulary_size=1000,
        train_source="train.en", train_target="train.de",
        dev_source="dev.en", dev_target="dev.de",
    )
    run = hvd_nmt.train_model(
        "runs/mine", data, training={"max_steps": 100}, checkpoints={"every_steps": 50, "keep": 2}
    )
    run = hvd_nmt.open_run("runs/mine")  # the same, in a later session
    print(run.sentence)
    model = hvd_nmt.load("runs/mine")
    print(model.translate(["in January"]))
    print(model.score([("in January", "im Januar")]))
    print(hvd_nmt.evaluate_run("runs/mine"))

A notebook shows runs, models, `run.answers` and tables. A path is a str or a Path.
What cannot work raises a hvd_nmt.common.errors.UserError; its text says what to do.
"""

import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if sys.argv[:1] == ["-m"] and not all(map(importlib.util.find_spec, ("numpy", "tyro", "yaml"))):
    todo = "use `.venv/bin/python`, which `make install` makes (`source .venv/bin/activate`)."
    print(f"hvd_nmt: {sys.executable} lacks the packages of hvd_nmt: {todo}", file=sys.stderr)
    sys.exit(2)
from hvd_nmt.common.errors import spoken_in_python
from hvd_nmt.common.version import __version__ as __version__

if TYPE_CHECKING:
    from hvd_nmt.reporting.run_summary import RunSummary
    from hvd_nmt.translation.engine import Engine
    from hvd_nmt.translation.scoring import Comparison
    from hvd_nmt.translation.settings import Settings

__all__ = ["evaluate_run", "load", "open_run", "prepare_data", "train_model"]

# Horovod's Keras support needs Keras 2, and TensorFlow decides between Keras 2 and 3 when it is
# first imported. Every rank imports this package before TensorFlow, so this is the one safe place.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_Path = str | os.PathLike[str]


@spoken_in_python()
def prepare_data(out: _Path, **options: Any) -> Path:
    """Makes a data directory of raw text; returns its path. The same call again does nothing.

    Args:
        out (path): data directory to make.
        train_source, train_target (path): UTF-8 text, plain or compressed; line N of one
            translates line N of the other.
        corpus (list of str): instead of them, files with both sides: TSV, TMX, zip or mtdata:ID.
        dev_source, dev_target, test_source, test_target (path): the same, for scores.
        dev_size (int, pairs): training pairs to hold out instead of dev files.
        source_language, target_language (str): by default en and de.
        vocabulary_size (int, pieces): by default 8,000; max_length (int, tokens): 128.
        options: all others of `hvd-nmt prepare`, with _ instead of -.

    Raises ConfigError: the options cannot work; DataError: the text cannot be used.
    """
    from hvd_nmt.preparation import own_process

    return own_process.prepare(Path(out), shows=True, **options)


@spoken_in_python()
def train_model(
    run_dir: _Path, data: _Path | dict[str, Any] | None = None, preset: str = "demo", **more: Any
) -> "RunSummary":
    """Trains in this process, on one rank; returns what open_run does. Imports TensorFlow.

    The same call again resumes the run. An interrupt saves a checkpoint and raises Preempted.

    Args:
        run_dir (path): run directory, made if missing.
        data (path or dict): data directory, or a section as those below; else the embedded corpus.
        preset (str): demo (2+2 layers, 128 wide), small, multi30k, base, big,
            base-muon or big-muon.
        training (dict): max_steps, warmup_steps (steps), tokens_per_step (target tokens) ...
        model (dict): encoder_layers, decoder_layers, heads, width (units), dropout (0 to 1) ...
        evaluation (dict): every_steps (steps) ...
        checkpoints (dict): every_steps (steps), keep (newest ones), keep_best (best ones).
        more: all other sections of the configuration, a dict each, as in config.yaml of a run.

    Raises UserError: it cannot train, or was interrupted.
    """
    from hvd_nmt.common import signals, tensorflow_import
    from hvd_nmt.config import Config, command_line
    from hvd_nmt.config.serialization import from_plain

    if isinstance(data, dict):
        more["data"] = data
    elif data is not None:
        more["data"] = {"directory": os.fspath(data), "corpus": "files"}
    default = command_line.run_config(Config, "hvd_nmt.train", "", ["--preset", preset])
    config = from_plain(more | {"run_dir": os.fspath(run_dir)}, "train_model", default)
    tensorflow_import.began_s = time.time()
    from hvd_nmt import train

    with signals.restored():
        train.start(config)
    return open_run(run_dir)


def open_run(path: _Path) -> "RunSummary":
    """Opens the record of a run, finished, running or silent (killed). Imports no TensorFlow.

    Args:
        path (path): run directory, or log (nohup.out) of an OpenSeq2Seq run.

    Returns a run with
        intervals: each with step, loss (nats per token), step_s (seconds), tokens_per_s ...
        evaluations: each with step, loss (nats per token), bleu and chrf (0 to 100) ...
        checkpoints (tuple of Path): prefixes of the checkpoints' files, oldest first.
        sentence (str): what bound the steps; verdict: its numbers.
        answers: the eleven answers of the report; problems: what the record lacks.

    Raises RunError: it is neither.
    """
    from hvd_nmt.records.read import read_any_run
    from hvd_nmt.reporting.run_summary import RunSummary

    return RunSummary(read_any_run(Path(path).absolute()))


@spoken_in_python()
def load(
    run: _Path, checkpoint: _Path | Sequence[_Path] = "best", settings: "Settings | None" = None
) -> "Engine":
    """Loads a trained model, to translate and to score. Imports TensorFlow.

    Args:
        run (path): run directory.
        checkpoint (str or list of str): best (as the run's evaluation.best_by says), latest
            (newest), or the prefix of a checkpoint's files; several translate as an ensemble.
        settings (hvd_nmt.translation.settings.Settings): by default those of `hvd-nmt translate`.

    Returns a model with
        translate(list of str) -> list of str, one for each line
        score(list of (source, translation)) -> list of float, log-probabilities, nats

    Raises UserError: run, checkpoint or vocabulary cannot be used, or the settings with them.
    """
    from hvd_nmt.common.tensorflow_import import import_tensorflow
    from hvd_nmt.translation.settings import Settings

    import_tensorflow()
    from hvd_nmt.translation import engine

    chosen = [checkpoint] if isinstance(checkpoint, str | os.PathLike) else checkpoint
    names = [os.fspath(name) for name in chosen]
    return engine.load(Path(run), names, (settings or Settings()).exact())


@spoken_in_python()
def evaluate_run(run: _Path, *checkpoints: str, part: str = "dev") -> "Comparison":
    """Scores all of a part with beam 4; training takes less text and beam 1. Imports TensorFlow.

    Args:
        run (path): run directory.
        checkpoints (str): as for load, by default best; each is scored, against the first.
        part (str): dev or test.

    Returns a table of BLEU and chrF2 (0 to 100) and TER (percent); .scores["BLEU"][0].score.
    Raises UserError: the run, its data or a checkpoint cannot be used.
    """
    from hvd_nmt.common.tensorflow_import import import_tensorflow
    from hvd_nmt.data import bleu
    from hvd_nmt.translation import scoring
    from hvd_nmt.translation.settings import SearchSettings

    import_tensorflow()
    source, reference = scoring.prepared(Path(run), part)
    tokenizer = scoring.tokenizers(Path(run), are_own=True)[""]
    bleu.metric(tokenizer)  # before anything is translated
    chosen, settings = checkpoints or ("best",), SearchSettings().exact()
    systems = scoring.translated(Path(run), chosen, source, settings, keep=None).values()
    return scoring.compare([*systems], [reference], tokenizer)

"""The files of a run directory, and where the data of its run are; `names` has its checkpoints."""

import dataclasses
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvd_nmt import config as configuration
from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError, DataError, RunError
from hvd_nmt.common.files import exclusive, fingerprint, replacing, require_free
from hvd_nmt.config import Config
from hvd_nmt.data import corpus
from hvd_nmt.model.decoding import Decoding

CONFIG = "config.yaml"
"""every value that decided the run"""
VOCABULARY = corpus.SPM_MODEL
"""the vocabulary of its checkpoints, joint or of the target"""
SOURCE_VOCABULARY = corpus.SPM_SOURCE_MODEL
"""the vocabulary of the source, if it has its own"""
VOCABULARIES = VOCABULARY, SOURCE_VOCABULARY
ENVIRONMENT = "environment.json"
"""versions, hosts and GPUs of the last start"""
RUN_ID = "run.id"
"""random letters, the same in all copies of the run"""
COMMANDS = "command.txt"
"""the command line of each start"""
ORIGIN = "init_from.json"
"""the checkpoint that the run began with, if any"""
IMPORTED = "imported.json"
"""what the run was made of, if another program trained it"""
NORMALIZATION = "normalization"
"""key of `IMPORTED`: the `normalization` of `decoding.Decoding`"""
LAUNCHES = "launch.jsonl"
"""starts, ends and restarts, if hvd_nmt.launch started the run"""
NOT_FINITE = "not_finite.jsonl"
"""the sentences of the steps at which the run met NaN or Inf, if any"""
LOCK = ".lock"
"""held by the process that trains"""
TELEMETRY_DIR = "telemetry"
"""folder of samples, a file of each host"""


def load_config(run_dir: Path) -> Config:
    """The configuration of a run; RunError: it is no run directory, or its file is damaged."""
    path = run_dir / CONFIG
    if not path.exists():
        raise RunError(f"{run_dir} has no {CONFIG}: give the directory of a training run.")
    try:
        return configuration.load(path)
    except ConfigError as error:
        raise RunError(f"{error} Correct this file, or restore it from a copy.") from None


def import_tensorflow_for(run_dir: Path) -> None:
    """Import TensorFlow, which takes seconds, once the settings of a run are known to be good."""
    load_config(run_dir)
    tensorflow_import.import_tensorflow()


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Make a directory, complete or not at all; yields it under another name.

    ConfigError: it is there already; DataError: it cannot be written.
    """
    with exclusive(path):
        require_free(path)
        with replacing(path) as draft:
            yield draft


def write_record(path: Path, content: dict[str, Any]) -> None:
    """What a run directory was made of, in one that no training made."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def decoding_of(run_dir: Path, decoding: Decoding) -> Decoding:
    """Options of a search with the normalization that suits the run, if they leave it open."""
    if decoding.normalization != "auto":
        return decoding
    path = run_dir / IMPORTED
    try:
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return dataclasses.replace(decoding, normalization=record.get(NORMALIZATION, "gnmt"))
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"Cannot read {path}: {error}.") from None


def vocabularies(run_dir: Path) -> tuple[Path, Path]:
    """The SentencePiece models of source and target; twice the same where it is joint."""
    target, source = map(run_dir.joinpath, VOCABULARIES)
    return source if source.exists() else target, target


def vocabulary_hashes(run_dir: Path) -> tuple[str, str]:
    """The sha256 of the target's model and of the source's own; "" of one that is not there."""
    paths = map(run_dir.joinpath, VOCABULARIES)
    target, source = (fingerprint(path).sha256 if path.exists() else "" for path in paths)
    return target, source


def prepare_options(run_dir: Path) -> str:
    """The options of `prepare` that take the vocabularies of a run."""
    source, target = (shlex.quote(str(path)) for path in vocabularies(run_dir))
    options = f"--vocabulary {target}"
    return options if source == target else f"{options} --source-vocabulary {source}"


def data_of_run(run_dir: Path, config: Config) -> tuple[Path, corpus.DataManifest]:
    """The data of a run, from where it was started or here; DataError: missing here, or others."""
    directory = config.data.directory
    here, name = run_dir.resolve().parts, config.run_dir.parts
    if here[-len(name) :] == name and not config.run_dir.is_absolute():
        there = Path(*here[: -len(name)], directory)
        directory = there if (there / corpus.MANIFEST).exists() else directory
    try:
        manifest = corpus.read_manifest(directory)
    except DataError:
        raise DataError(
            f"The training data are not in {directory} on this machine: copy them there, or run "
            "this command where the training was started."
        ) from None
    hashes = vocabulary_hashes(run_dir)
    if hashes[0] and hashes != (manifest.vocabulary_hash, manifest.source_vocabulary_hash):
        raise DataError(
            f"The data in {directory} have another vocabulary than this run: put its data there."
        )
    return directory, manifest

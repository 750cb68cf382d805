"""The files of a run directory, and where the data of its run are; `names` has its checkpoints."""

import contextlib
import dataclasses
import json
import shlex
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from hvd_nmt import config as configuration
from hvd_nmt.common import jsonl, tensorflow_import
from hvd_nmt.common.errors import ConfigError, DataError, RunError
from hvd_nmt.common.files import exclusive, fingerprint, is_locked, replacing, require_free
from hvd_nmt.config import Config
from hvd_nmt.data import corpus
from hvd_nmt.model.decoding import Decoding

NORMALIZATION = "normalization"
"""key of `RunDirectory.imported`: the `normalization` of `decoding.Decoding`"""
Line = dict[str, Any]


@final
class RunDirectory:
    """A run's directory: the path of each file, and the content of those that need no analysis."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        """every value that decided the run"""
        self.vocabulary = path / corpus.SPM_MODEL
        """the vocabulary of its checkpoints, joint or of the target"""
        self.source_vocabulary = path / corpus.SPM_SOURCE_MODEL
        """the vocabulary of the source, if it has its own"""
        self.environment = path / "environment.json"
        """versions, hosts and GPUs of the last start"""
        self.run_id = path / "run.id"
        """random letters, the same in all copies of the run"""
        self.commands = path / "command.txt"
        """the command line of each start"""
        self.origin = path / "init_from.json"
        """the checkpoint that the run began with, if any"""
        self.imported = path / "imported.json"
        """what the run was made of, if another program trained it"""
        self.launches = path / "launch.jsonl"
        """starts, ends and restarts, if hvd_nmt.launch started the run"""
        self.metrics = path / "metrics.jsonl"
        """what the training reports"""
        self.not_finite = path / "not_finite.jsonl"
        """the sentences of the steps at which the run met NaN or Inf, if any"""
        self.scores = path / "scores.jsonl"
        """what `evaluate` has measured of its checkpoints, on which text"""
        self.hypotheses = path / "hypotheses"
        """folder of translations of the dev set, dev.STEP.txt"""
        self.telemetry = path / "telemetry"
        """folder of samples, a file of each host"""
        self.tensorboard = path / "tensorboard"
        """folder of event files, with one of each host"""
        self.lock = path / ".lock"
        """held by the process that trains"""

    def read_config(self) -> Config:
        """The configuration; RunError: this is no run directory, or the file is damaged."""
        if not self.config.exists():
            fault = f"has no {self.config.name}" if self.path.exists() else "does not exist"
            raise RunError(f"{self.path} {fault}: give the directory of a training run.")
        try:
            return configuration.load(self.config)
        except ConfigError as error:
            raise RunError(f"{error} Correct this file, or restore it from a copy.") from None

    def import_tensorflow(self) -> None:
        """Import TensorFlow, which takes seconds, for searches, once settings are known good."""
        self.read_config()
        tensorflow_import.import_tensorflow()
        from hvd_nmt.model import device

        device.divide_cores()

    def decoding(self, decoding: Decoding) -> Decoding:
        """Options of a search with the normalization that suits the run, if they leave it open."""
        if decoding.normalization != "auto":
            return decoding
        path = self.imported
        try:
            record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            return dataclasses.replace(decoding, normalization=record.get(NORMALIZATION, "gnmt"))
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(f"Cannot read {path}: {error}.") from None

    def vocabularies(self) -> tuple[Path, Path]:
        """The SentencePiece models of source and target; twice the same where it is joint."""
        target, source = self.vocabulary, self.source_vocabulary
        return source if source.exists() else target, target

    def vocabulary_hashes(self) -> tuple[str, str]:
        """The sha256 of the target's model and of the source's own; "" of one that is not there."""
        paths = (self.vocabulary, self.source_vocabulary)
        target, source = (fingerprint(path).sha256 if path.exists() else "" for path in paths)
        return target, source

    def prepare_options(self) -> str:
        """The options of `prepare` that take the vocabularies of the run."""
        source, target = (shlex.quote(str(path)) for path in self.vocabularies())
        options = f"--vocabulary {target}"
        return options if source == target else f"{options} --source-vocabulary {source}"

    def data(self) -> tuple[Path, corpus.DataManifest]:
        """Its data, from where it was started or here; DataError: missing here, or others."""
        config = self.read_config()
        directory = config.data.directory
        here, name = self.path.resolve().parts, config.run_dir.parts
        if here[-len(name) :] == name and not config.run_dir.is_absolute():
            there = Path(*here[: -len(name)], directory)
            directory = there if (there / corpus.MANIFEST).exists() else directory
        try:
            manifest = corpus.read_manifest(directory)
        except DataError:
            raise DataError(
                f"The training data are not in {directory} on this machine: copy them there, or "
                "run this command where the training was started."
            ) from None
        hashes = self.vocabulary_hashes()
        if hashes[0] and hashes != (manifest.vocabulary_hash, manifest.source_vocabulary_hash):
            raise DataError(
                f"The data in {directory} have another vocabulary than this run: put its data "
                "there."
            )
        return directory, manifest

    def read_metrics(self, problems: list[str] | None = None) -> list[Line]:
        """The lines of metrics.jsonl, without the file none; `problems` is as for `jsonl.read`.

        Each has `time_s` (unix), `kind`, `step` if it is about a step, and values. Non-finite
        floats are floats again.
        """
        return [_with_floats(line) for line in jsonl.read(self.metrics, problems)]

    def add_scores(self, scores: Mapping[str, Any]) -> None:
        """Append the scores of a checkpoint, where the directory can be written."""
        with contextlib.suppress(OSError), self.scores.open("a", encoding="utf-8") as file:
            file.write(json.dumps(scores, ensure_ascii=False) + "\n")

    def scores_of(self, sha256: str) -> list[Line]:
        """The newest scores on each text of the checkpoint whose data file has this SHA-256."""
        lines = (line for line in jsonl.read(self.scores, []) if line.get("sha256") == sha256)
        return list({(line["text"], line["sentences"]): line for line in lines}.values())

    def holder(self) -> str | None:
        """What the process that holds it has written into its lock; "": none; None: no lock."""
        try:
            with self.lock.open("r", encoding="utf-8", errors="replace") as lock:
                return (lock.read().strip() or "unknown") if is_locked(lock) else ""
        except OSError:
            return None

    def is_held(self) -> bool | None:
        """Whether the process that wrote the lock still holds it; None on another host."""
        try:
            is_here = f" on {socket.gethostname()}," in self.lock.read_text("utf-8", "replace")
        except OSError:
            return None
        holder = self.holder() if is_here else None
        return None if holder is None else bool(holder)


def reached(lines: Iterable[Line], start_id: str) -> dict[str, int]:
    """How far a start came: `resumed_step` and, if further, `step`; {}: it did not begin."""
    steps: dict[str, int] = {}
    is_own = False
    for line in lines:
        if line["kind"] == "start":
            is_own = line.get("start_id") == start_id
            if is_own:
                steps = {"resumed_step": line["first_step"] - 1}
        elif is_own and "step" in line:
            steps["step"] = max(line["step"], steps.get("step", 0))
    return steps


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Make a directory, complete or not at all; yields it under another name.

    ConfigError: it is there already, or cannot be written.
    """
    with exclusive(path, ConfigError):
        require_free(path)
        with replacing(path, ConfigError) as draft:
            yield draft


def write_record(path: Path, content: dict[str, Any]) -> None:
    """What a run directory was made of, in one that no training made."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _with_floats(line: Line) -> Line:
    """A line as it was before it was written: NaN and infinities, which JSON lacks, are floats."""
    if line.get("kind") == "text":
        return line
    return {
        key: float(value) if value in ("nan", "inf", "-inf") else value
        for key, value in line.items()
    }

"""A complete checkpoint and its manifest: JSON that says what it is, with its own digest."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import types
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from hvd_nmt.checkpoints import names
from hvd_nmt.common.errors import RunError, system_error
from hvd_nmt.config import ModelConfig
from hvd_nmt.config.serialization import from_plain


class DamagedError(RunError):
    """A checkpoint is not what was written: a byte of it, a file, or a name.

    Not so where the system fails to read it: that may be over in a moment, and the checkpoint good.
    """


@dataclasses.dataclass(frozen=True)
class CheckpointManifest:
    """What a checkpoint is, and what it belongs to."""

    step: int
    """optimizer steps done; the position in the data follows from it"""
    val_loss: float | None
    """validation loss at this step, if it was evaluated"""
    vocabulary_hash: str
    """sha256 of the SentencePiece model"""
    data_hash: str
    """hash of the prepared data"""
    model: dict[str, Any]
    """sizes of the model"""
    vocabulary_size: int
    """rows of the matrix of target and softmax, which is the source's too unless it has its own"""
    ranks: int
    """number of ranks that trained it"""
    files: dict[str, dict[str, int | str]]
    """suffix -> n_bytes and sha256"""
    variables: list[tuple[str, list[int], str, int]] = dataclasses.field(default_factory=list)
    """name, shape, type and bytes of each; empty where an earlier version has written it"""
    freeze: str = ""
    """`training.freeze`: weights of which the optimizer keeps nothing"""
    slots: dict[str, int] = dataclasses.field(default_factory=dict)
    """number of values that the optimizer keeps of weights, by slot; empty where an earlier
    version has written it: two of each trained weight"""
    bleu: float | None = None
    """BLEU of the dev sentences at this step"""
    chrf: float | None = None
    """chrF of the dev sentences at this step"""
    best_by: str = "val_loss"
    """`evaluation.best_by`: the measure by which the run's models are the best"""
    source_vocabulary_hash: str = ""
    """sha256 of the source's own SentencePiece model; "": the vocabulary is joint"""
    source_vocabulary_size: int = 0
    """rows of the source's own matrix; 0: it has none"""

    @property
    def vocabulary_hashes(self) -> tuple[str, str]:
        """Hash of the target's (or joint) vocabulary, and of the source's own or ""."""
        return self.vocabulary_hash, self.source_vocabulary_hash

    def facts(self) -> dict[str, Any]:
        """What other checkpoints of the run have in common with this one."""
        of_this_one = ("step", "val_loss", "bleu", "chrf", "files", "variables")
        return {name: x for name, x in dataclasses.asdict(self).items() if name not in of_this_one}

    def text(self) -> str:
        """What the file holds."""
        content = dataclasses.asdict(self)
        return json.dumps(content | {"sha256": _digest(content)}, indent=1) + "\n"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    prefix: Path
    """path of its files without their suffixes"""
    manifest: CheckpointManifest

    @classmethod
    def at(cls, prefix: Path) -> "Checkpoint":
        """The checkpoint of this prefix."""
        return cls(prefix, read_manifest(names.manifest_file(prefix)))

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.manifest.step

    def record(self) -> dict[str, Any]:
        """What a run that was made of it writes down; the SHA-256 is that of the data file."""
        return {
            "prefix": os.fspath(self.prefix),
            "step": self.step,
            "val_loss": self.manifest.val_loss,
            "sha256": self.manifest.files[names.SUFFIXES[0]]["sha256"],
        }


def newest_step(run_dir: Path) -> int | None:
    """The highest step with a complete checkpoint, by manifests; None if none can be read."""
    with contextlib.suppress(OSError):
        for prefix in reversed(names.prefixes(run_dir)):
            with contextlib.suppress(RunError):
                return Checkpoint.at(prefix).step
    return None


def read_manifest(path: Path) -> CheckpointManifest:
    """A manifest; DamagedError: missing or changed; RunError: unreadable now, other version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("sha256") != _digest(content):
            raise ValueError("it has changed since it was written")
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise kind_of(error)(f"Cannot read the manifest {path} ({reason}).") from error
    try:
        hints = get_type_hints(CheckpointManifest)
        known = {name: content[name] for name in hints.keys() & content.keys()}
        for name, value in known.items():
            if not _has_type(value, hints[name]):
                raise ValueError(f"its {name} is {value!r:.60}")
        if any("sha256" not in known["files"].get(suffix, ()) for suffix in names.SUFFIXES):
            raise ValueError("it has no digest of a file")
        from_plain(known["model"], "its model", ModelConfig(), "model.")
        return CheckpointManifest(**known)
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} is not a manifest of this version ({error}).") from None


def _has_type(value: Any, hint: Any) -> bool:
    """Whether a value out of JSON has the type of a field, that of its members included."""
    members, kind = get_args(hint), get_origin(hint) or hint
    if kind is types.UnionType:
        return any(_has_type(value, member) for member in members)
    if kind is dict:
        return isinstance(value, dict) and all(_has_type(x, members[1]) for x in value.values())
    if kind is list:
        return isinstance(value, list) and all(_has_type(x, members[0]) for x in value)
    if kind is tuple:
        return len(value) == len(members) and all(map(_has_type, value, members))
    return kind is Any or type(value) is kind or (kind is float and type(value) is int)


def kind_of(error: Exception) -> type[RunError]:
    """DamagedError if a file could not be read for being gone or changed; else RunError."""
    return RunError if system_error(error) not in ("", os.strerror(errno.ENOENT)) else DamagedError


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

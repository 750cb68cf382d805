"""How to translate, as options of a command line. No TensorFlow here."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Fixed, OmitArgPrefixes, Suppress

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.model.decoding import Decoding


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to translate."""

    to: str = ""
    """language to translate to, if the model knows several; its tag begins a line without one"""
    batch_tokens: int = 4096
    """source tokens translated at once, with padding; less needs less memory"""
    backend: Literal["tensorflow", "ctranslate2"] = "tensorflow"
    """tensorflow or ctranslate2, which is faster; it is made from the checkpoint on first use"""
    precision: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "auto"
    """auto, float32, bfloat16, float16 or int8; auto: 16 bits on GPUs that are good at it, float32
    on processors and for scores. int8 needs --backend ctranslate2, is a little less exact"""
    shortlist: bool = False
    """of --backend ctranslate2: only pieces that go with the source"""
    decoding: OmitArgPrefixes[Decoding] = dataclasses.field(default_factory=Decoding)

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise ConfigError(f"--batch-tokens is {self.batch_tokens}: give 1 or more.")
        if self.precision == "int8" and self.backend != "ctranslate2":
            raise ConfigError("--precision int8 needs --backend ctranslate2.")
        if self.shortlist and self.backend != "ctranslate2":
            raise ConfigError("--shortlist needs --backend ctranslate2.")
        for name in ("sample", "coverage_penalty", "min_length", "no_repeat_ngram"):
            if self.backend == "ctranslate2" and getattr(self.decoding, name):
                raise ConfigError(
                    f"--backend ctranslate2 does not know --{name.replace('_', '-')} as TensorFlow "
                    "does: use --backend tensorflow."
                )

    def exact(self) -> "Settings":
        """The same for scores: float32 where it was left open."""
        return self if self.precision != "auto" else dataclasses.replace(self, precision="float32")

    def output_options(self) -> dict[str, Any]:
        """Option -> value, of the options that the translations depend on."""
        options: dict[str, Any] = {"backend": self.backend, "precision": self.precision}
        options |= {"to": self.to} if self.to else {}
        options |= {"shortlist": True} if self.shortlist else {}
        return options | dataclasses.asdict(self.decoding)


@dataclasses.dataclass(frozen=True)
class Search(Decoding):
    """A search for one best translation of each sentence: for what is scored or exported."""

    coverage_penalty: Fixed[Suppress[float]] = 0.0
    n_best: Fixed[Suppress[int]] = 1
    min_length: Fixed[Suppress[int]] = 0
    no_repeat_ngram: Fixed[Suppress[int]] = 0
    sample: Fixed[Suppress[bool]] = False
    temperature: Fixed[Suppress[float]] = 1.0
    top_k: Fixed[Suppress[int]] = 0
    top_p: Fixed[Suppress[float]] = 1.0
    seed: Fixed[Suppress[int]] = 1


@dataclasses.dataclass(frozen=True)
class SearchSettings(Settings):
    """How to translate what is scored."""

    decoding: OmitArgPrefixes[Search] = dataclasses.field(default_factory=Search)


@dataclasses.dataclass(frozen=True)
class FileJob:
    """What to translate, and with which model."""

    run: Path
    """run directory; it has checkpoints, config.yaml and spm.model"""
    checkpoint: tuple[str, ...] = ("best",)
    """best (by evaluation.best_by), latest, or a prefix; several translate as an ensemble"""
    input: Path | None = None
    """text, one sentence per line, plain or compressed (default: stdin)"""
    output: Path | None = None
    """translations, plain, .gz, .bz2, .xz or .zst (default: stdout)"""
    json: bool = False
    """print JSON with scores, tokens and alignments"""
    settings: OmitArgPrefixes[Settings] = dataclasses.field(default_factory=Settings)

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise ConfigError("--checkpoint names none: give best, latest or a prefix.")
        if self.settings.decoding.n_best > 1 and not self.json:
            raise ConfigError("--n-best gives several translations of a line: add --json.")

"""Models, tokenizers and backend behind one function: lines in, translations out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from warnings import warn as warn_user

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints import weights
from hvd_nmt.checkpoints.run_files import decoding_of, vocabularies
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import precision
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.text import is_blank
from hvd_nmt.model import device
from hvd_nmt.model.batching import cut
from hvd_nmt.model.scorer import Scorer
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.model.translator import Translation, Translator
from hvd_nmt.translation import long_lines, reader
from hvd_nmt.translation.settings import Settings

if TYPE_CHECKING:  # needs a package that not everybody has
    from hvd_nmt.formats.ctranslate2_translator import CTranslate2Translator

Advance = Callable[[int], object]
"""called with the number of lines that have been done since the last call"""


class Line(NamedTuple):
    """One translation of one line."""

    text: str
    translation: Translation
    source_tokens: int
    """tokens of the line, its eos included"""


class LineWarning(NamedTuple):
    """What a reader should know of the translation of a line."""

    line: int
    """which line, from 0 among those of the call"""
    text: str


class Results(NamedTuple):
    """Translations of some lines."""

    lines: list[list[Line]]
    """for each line its translations, best first"""
    warnings: list[LineWarning]


class ScoredPairs(NamedTuple):
    """Log-probabilities of some pairs."""

    targets: list[np.ndarray]
    """ids of each target, int32, ending with eos"""
    logps: list[np.ndarray]
    """float32, the log-probability of each of these ids"""
    warnings: list[LineWarning]


@dataclasses.dataclass(frozen=True)
class Engine:
    """Everything that a translation needs; made by `load`."""

    backend: Translator | CTranslate2Translator
    tokenizers: Tokenizers
    settings: Settings
    models: list[Any]
    """the models behind the TensorFlow backend; empty with another"""
    tags: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """ids of the pieces that stand in front of a line, such as <2de>"""
    tag: str = ""
    """what goes in front of a line that begins with no tag"""

    def translate(self, lines: Iterable[str]) -> list[str]:
        """The best translation of each line, in the same order.

        A line may be text of any length; a blank one has an empty translation. What happened to a
        line (it was split, or the model gave nothing) is a UserWarning.

        Raises:
            TypeError: it is one string, whose letters would be translated one by one.
            ConfigError: it needs more memory than there is.
        """
        if isinstance(lines, str):
            raise TypeError("lines is one string: give a list of lines.")
        return list(self.stream(lines, warn=_warn))

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[float]:
        """How probable the model finds translations, given as pairs of source and translation.

        For each pair the natural logarithm of the probability, summed over the translation's tokens
        and its end. A text longer than the model reads is cut, with a UserWarning.

        Raises:
            ConfigError: it needs more memory than there is, or the backend cannot score.
        """
        both = list(pairs)
        scored = self.score_tokens([pair[0] for pair in both], [pair[1] for pair in both])
        for index, text in scored.warnings:
            _warn(index + 1, text)
        return [float(np.sum(logps_T, dtype=np.float64)) for logps_T in scored.logps]

    def search(
        self,
        lines: Sequence[str],
        details: bool = False,
        advance: Advance = lambda count: None,
        numbers: Sequence[int] | None = None,
    ) -> Results:
        """Translates lines of any number and length; a blank one has an empty translation.

        `details` are scores of tokens and alignments. A line's random draws depend on its number,
        by default its index.

        Raises:
            ConfigError: it needs more memory than there is, or options exclude each other.
        """
        parts, warnings = self._parts(lines)
        sources = [part for line in parts for part in line]
        owner = np.repeat(np.arange(len(parts)), [len(line) for line in parts]).tolist()
        left = [len(line) for line in parts]
        found: dict[int, list[Translation]] = {}
        drawn: dict[str, Any] = {}  # a backend that samples takes them
        if self.settings.decoding.sample and numbers is not None:
            drawn["numbers"] = [numbers[line] for line in owner]
        with self._explain_memory():
            tokens = self.settings.batch_tokens
            for index, best in self.backend.translate(sources, tokens, details, **drawn):
                found[index] = best
                left[owner[index]] -= 1
                if not left[owner[index]]:
                    advance(1)
        in_order = (found[index] for index in range(len(sources)))
        chosen = [
            long_lines.joined(
                [next(in_order) for _ in line], [len(ids) for ids in line], self._tags_of(line[0])
            )
            for line in parts
        ]
        for index, translations in enumerate(chosen):
            if translations[0].score == -float("inf"):
                why = "its weights may hold NaN"
                if self.settings.precision == "float16":
                    why = "float16 may have overflowed: try --precision float32"
                text = f"the model gave no translation ({why})."
                warnings.append(LineWarning(index, text))
        return Results(self._with_text(chosen, parts), sorted(warnings))

    def stream(
        self,
        lines: Iterable[str],
        advance: Advance = lambda count: None,
        warn: Callable[[int, str], object] = lambda number, text: None,
    ) -> Iterator[str]:
        """The best translation of each line, in order; `warn` gets numbers of lines, from 1."""
        first = 1
        for chunk in reader.chunks(lines):
            numbers = range(first, first + len(chunk))
            found, warnings = self.search(chunk, advance=advance, numbers=numbers)
            for index, text in warnings:
                warn(numbers[index], text)
            yield from (best[0].text for best in found)
            first += len(chunk)

    def score_tokens(
        self, sources: Sequence[str], targets: Sequence[str], advance: Advance = lambda count: None
    ) -> ScoredPairs:
        """The log-probability of each target for its source; cut to what the model reads."""
        if not self.models:
            raise ConfigError("Scores of given pairs need --backend tensorflow.")
        warnings: list[LineWarning] = []
        texts = self._tagged(sources, warnings), targets
        source, target = (
            self._cut(long_lines.encoded(lines, tokenizer), name, warnings)
            for lines, tokenizer, name in zip(
                texts, self.tokenizers, ("source", "target"), strict=True
            )
        )
        logps: dict[int, np.ndarray] = {}
        with self._explain_memory():
            tokens = self.settings.batch_tokens
            for index, scored in self._scorer.score(source, target, tokens):
                logps[index] = scored.logp_T
                advance(1)
        return ScoredPairs(target, [logps[index] for index in range(len(target))], sorted(warnings))

    @cached_property
    def _scorer(self) -> Scorer:
        """The same for every call: its graph takes longer to make than a line to score."""
        return Scorer(self.models)

    @cached_property
    def _boundaries(self) -> long_lines.Boundaries:
        """The same for every call: to look at all pieces takes longer than to translate a line."""
        return long_lines.boundaries(self.tokenizers.source.pieces)

    def _parts(self, lines: Sequence[str]) -> tuple[list[list[np.ndarray]], list[LineWarning]]:
        """The ids of each line, in parts that the model reads."""
        warnings: list[LineWarning] = []
        encoded = long_lines.encoded(self._tagged(lines, warnings), self.tokenizers.source)
        parts = [self._split(ids) for ids in encoded]
        for index, (ids, line) in enumerate(zip(encoded, parts, strict=True)):
            if len(line) > 1:
                text = (
                    f"{len(ids):,} tokens, more than the {self.backend.max_length:,} that the "
                    f"model reads: split into {len(line):,} parts."
                )
                warnings.append(LineWarning(index, text))
        return parts, warnings

    def _split(self, ids: np.ndarray) -> list[np.ndarray]:
        """A line in parts that the model reads, each with the tags of the line."""
        tags = ids[: self._tags_of(ids)]
        room = self.backend.max_length - len(tags)
        parts = long_lines.parts(ids[len(tags) :], room, self._boundaries)
        return [np.concatenate((tags, part)) for part in parts] if len(tags) else parts

    def _tags_of(self, ids: np.ndarray) -> int:
        """How many tags a line begins with."""
        return int(np.argmin(np.isin(ids, [*self.tags.values()])))

    def _tagged(self, lines: Sequence[str], warnings: list[LineWarning]) -> Sequence[str]:
        """The lines, each with a tag of the language to translate to, if there are any."""
        languages = sentencepiece_model.languages(self.tags)
        if not languages:
            return lines
        tags = tuple(self.tags)
        without = [
            number
            for number, line in enumerate(lines)
            if not (is_blank(line) or line.lstrip().startswith(tags))
        ]
        if not self.tag:
            text = f"it begins with no tag of a language ({', '.join(languages)}): give --to."
            warnings += [LineWarning(number, text) for number in without[:1]]
            return lines
        found = list(lines)
        for number in without:
            found[number] = f"{self.tag} {found[number]}"
        return found

    def _cut(
        self, encoded: Sequence[np.ndarray], name: str, warnings: list[LineWarning]
    ) -> list[np.ndarray]:
        limit = self.backend.max_length
        for index, ids in enumerate(encoded):
            if len(ids) > limit:
                text = (
                    f"the {name} has {len(ids):,} tokens, cut to the {limit:,} that the model "
                    "reads."
                )
                warnings.append(LineWarning(index, text))
        return [cut(ids, limit) for ids in encoded]

    def _with_text(
        self, chosen: Sequence[Sequence[Translation]], parts: Sequence[Sequence[np.ndarray]]
    ) -> list[list[Line]]:
        texts = iter(self.tokenizers.target.decode(t.ids for line in chosen for t in line))
        sizes = [
            sum(len(ids) - 1 for ids in line) + 1 - (len(line) - 1) * self._tags_of(line[0])
            for line in parts
        ]
        return [
            [Line(next(texts), translation, size) for translation in line]
            for line, size in zip(chosen, sizes, strict=True)
        ]

    @contextmanager
    def _explain_memory(self) -> Iterator[None]:
        """Say in a sentence that there is too little memory."""
        try:
            yield
        except (tf.errors.ResourceExhaustedError, MemoryError, RuntimeError) as error:
            # CTranslate2 has no class of its own for it.
            if isinstance(error, RuntimeError) and "out of memory" not in str(error):
                raise
            settings = self.settings
            raise ConfigError(
                f"--batch-tokens {settings.batch_tokens} with --beam-size "
                f"{settings.decoding.beam_size} needs more memory than there is: lower one of them."
            ) from None


def load(run: Path, which: Sequence[str], settings: Settings) -> Engine:
    """Loads what translates; several checkpoints translate together, as an ensemble.

    Raises:
        RunError: a checkpoint or the run cannot be used.
        ConfigError: an option that the backend cannot do.
        DataError: the vocabulary cannot be used.
    """
    settings = dataclasses.replace(settings, decoding=decoding_of(run, settings.decoding))
    models: list[Any] = []
    backend: Translator | CTranslate2Translator
    if settings.backend == "ctranslate2":
        backend = _ctranslate2(run, which, settings)
    else:
        # On processors auto is float32 whatever they can: the same translations everywhere.
        wanted: Any = settings.precision
        picked: Any = precision.pick(wanted, device.compute_capability(), False)
        settings = dataclasses.replace(settings, precision=picked)
        models = [weights.load_model(run, name, settings.precision)[0] for name in which]
        backend = Translator(models, settings.decoding)
    paths = vocabularies(run)
    tokenizers = Tokenizers.of(*paths)
    tags = sentencepiece_model.tags(paths[0].read_bytes())
    return Engine(backend, tokenizers, settings, models, tags, _tag(settings.to, tags))


def _tag(language: str, tags: Mapping[str, int]) -> str:
    """What asks for a language; "" for none."""
    tag = sentencepiece_model.language_tag(language, tags)
    if language and tag is None:
        known = ", ".join(sentencepiece_model.languages(tags))
        known = f"it knows {known}" if known else "it has no tags of languages, so leave --to out"
        raise ConfigError(f"The model cannot be asked to translate to {language!r}: {known}.")
    return tag or ""


def _ctranslate2(run: Path, which: Sequence[str], settings: Settings) -> CTranslate2Translator:
    # needs a package that not everybody has
    from hvd_nmt.formats import ctranslate2, ctranslate2_translator

    if len(which) > 1:
        raise ConfigError(
            "--backend ctranslate2 translates with one checkpoint: give one, or the mean that "
            "hvd_nmt.average makes of several."
        )
    ctranslate2_translator.require_possible(
        settings.decoding
    )  # before a model is made that serves nothing
    stored = "float32" if settings.precision == "auto" else settings.precision
    path = ctranslate2.cached(run, which[0], stored)
    return ctranslate2_translator.CTranslate2Translator(path, settings.decoding)


def _warn(number: int, text: str) -> None:
    warn_user(f"line {number}: {text}", stacklevel=3)

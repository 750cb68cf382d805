"""Models, tokenizers and backend behind one function: lines in, translations out."""

import dataclasses
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from warnings import warn as warn_user

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints import weights
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.units import count
from hvd_nmt.config import UNK
from hvd_nmt.data import language, sentencepiece_model
from hvd_nmt.model import device
from hvd_nmt.model.batching import cut
from hvd_nmt.model.scorer import Scorer
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.model.translator import Translation, Translator
from hvd_nmt.reporting.answer import Table
from hvd_nmt.translation import long_lines
from hvd_nmt.translation.settings import Settings

if TYPE_CHECKING:  # needs a package that not everybody has
    from hvd_nmt.formats.ctranslate2 import CTranslate2Translator

# Lines sorted by length at a time: enough for full batches, few for a killed job to do again.
CHUNK_LINES = 1_000

Warn = Callable[[int, str, str], object]
"""called with the number of a line, from 1, what a reader should know of its translation, and what
all lines of that kind do"""
_ENTITY = re.compile(r"&(?:#\d+|#x[\da-fA-F]+|[a-z]+);")
_MOST = 5
"""most lines of a kind that are reported one by one"""
_SHOWN = 3
"""characters beyond the vocabulary that are named of a line"""


def _warn(number: int, text: str, kind: str = "") -> None:
    warn_user(f"line {number}: {text}", stacklevel=3)


def _require_text(lines: Iterable[Any]) -> list[str]:
    """The lines, if each is text: a table's empty cell, as None or NaN, is not."""
    for number, line in enumerate(lines := list(lines), start=1):
        if not isinstance(line, str):
            raise TypeError(f"line {number} is {line!r:.40}, which is no text.")
    return lines


class Remarks:
    """What a reader should know of lines: of each kind the first few, and at the end how many."""

    def __init__(self, name: str, say: Callable[[str], object]) -> None:
        self._name, self._say, self._counts = name, say, Counter[str]()

    def __call__(self, number: int, text: str, kind: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= _MOST:
            self._say(f"{self._name}line {number}: {text}")

    def end(self) -> None:
        """Say how many lines there were of kinds with more than the first few."""
        for kind, lines in self._counts.items():
            if lines > _MOST:
                self._say(f"{self._name}{lines:,} lines {kind}; the first {_MOST} are named above.")


class Line(NamedTuple):
    """One translation of one line."""

    text: str
    translation: Translation
    """translation whose alignment counts in the tokens of the whole line; -1 is the source's end"""


@dataclasses.dataclass(frozen=True, repr=False)
class Engine:
    """Everything that a translation needs, made by `load`; ConfigError: it needs more memory."""

    backend: "Translator | CTranslate2Translator"
    tokenizers: Tokenizers
    settings: Settings
    models: list[Any]
    """the models behind the TensorFlow backend; empty with another"""
    tags: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """ids of the pieces that stand in front of a line, such as <2de>"""
    tag: str = ""
    """tag that is put in front of a line without one"""
    name: str = ""
    """run directory and checkpoints"""

    def _repr_html_(self) -> str:
        rows = (
            ("parameters", sum(model.count_params() for model in self.models) or "unknown"),
            ("vocabulary, pieces", len(self.tokenizers.target.pieces)),
            ("precision", self.settings.precision),
            ("beam size", self.settings.decoding.beam_size),
        )
        return Table("", ("model", self.name), rows)._repr_html_()

    def translate(self, lines: Iterable[str]) -> list[str]:
        """The best translation of each line, in the same order.

        A line may be text of any length; a blank one has an empty translation. What happened to a
        line (it was split, or the model gave nothing) is a UserWarning. A single string, whose
        letters would be translated one by one, is a TypeError.
        """
        if isinstance(lines, str):
            raise TypeError("lines is one string: give a list of lines.")
        lines = _require_text(lines)
        remarks = Remarks("", lambda text: warn_user(text, stacklevel=2))
        translations = list(self.stream(lines, remarks))
        remarks.end()
        return translations

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[float]:
        """How probable the model finds translations, given as pairs of source and translation.

        For each pair the natural logarithm of the probability, summed over the translation's tokens
        and its end. A text too long is cut: UserWarning. ConfigError: the backend cannot score.
        """
        if not self.models:
            raise ConfigError("Scores of given pairs need the backend tensorflow.")
        pairs, limit = list(pairs), self.backend.max_length
        remarks = Remarks("", lambda text: warn_user(text, stacklevel=2))
        lines = self._tagged(_require_text(source for source, _ in pairs), 1, remarks)
        remarks.end()
        sources = self._encoded(lines)
        targets = self.tokenizers.target.encode(_require_text(target for _, target in pairs))
        for name, side in (("source", sources), ("target", targets)):
            for number, ids in enumerate(side, start=1):
                if len(ids) > limit:
                    text = f"the {name} has {len(ids):,} tokens, cut to the {limit:,}"
                    _warn(number, f"{text} that the model reads.")
        targets = [cut(ids, limit) for ids in targets]
        with self._explain_memory():
            scored = dict(self._scorer.score(sources, targets, self.settings.batch_tokens))
        return [float(np.sum(scored[i].logp_T, dtype=np.float64)) for i in range(len(pairs))]

    def stream(
        self, lines: Iterable[str], warn: Warn = _warn,
        finished: Callable[[], object] = lambda: None,
    ) -> Iterator[str]:  # fmt: skip
        """The best translation of each line, in order; `finished` as for `search`."""
        first = 1
        for chunk in chunks(lines):
            translations = self.search(chunk, first, warn=warn, finished=finished)
            yield from (best.text for best, *_ in translations)
            first += len(chunk)

    def search(
        self, lines: Sequence[str], first: int = 1, details: bool = False, warn: Warn = _warn,
        finished: Callable[[], object] = lambda: None,
    ) -> list[list[Line]]:  # fmt: skip
        """The translations of each line of a chunk, best first; of a blank line an empty one.

        `first` is the number of the first line, which random draws depend on. With `details` they
        have scores of tokens and alignments, if the backend knows them. `finished` is called for
        each line, as batches end.
        """
        encoded = self._encoded(self._tagged(lines, first, warn))
        # How many tags each line begins with.
        tags = [int(np.argmin(np.isin(ids, [*self.tags.values()]))) for ids in encoded]
        limit = self.backend.max_length
        parts = [
            long_lines.parts(ids, limit, self.tokenizers.source.pieces, of_line)
            for ids, of_line in zip(encoded, tags, strict=True)
        ]
        for number, (text, ids, line) in enumerate(zip(lines, encoded, parts, strict=True), first):
            if UNK in ids and (unknown := self.tokenizers.source.unknown(text)):
                warn(number, _without_pieces(unknown), "have characters beyond the vocabulary")
            if "&" in text and (entity := _ENTITY.search(text)):
                remark = f'"{entity[0]}" is HTML: the model reads it letter by letter.'
                warn(number, remark, "have HTML")
            if len(line) > 1:
                too_long = f"{len(ids):,} tokens, more than the {limit:,} that the model reads"
                warn(number, f"{too_long}: split into {len(line):,} parts.", "were split")
        sources = [part for line in parts for part in line]
        numbers = [number for number, line in enumerate(parts, first) for _ in line]
        tokens, of_source = self.settings.batch_tokens, dict[int, Any]()
        with self._explain_memory():
            for index, translations in self.backend.translate(sources, tokens, details, numbers):
                of_source[index] = translations
                if numbers[index - 1 : index] != [numbers[index]]:  # the first part of a line
                    finished()
        in_order = (of_source[index] for index in range(len(sources)))
        of_parts = [[next(in_order) for _ in line] for line in parts]
        chosen = [
            long_lines.joined(translations, [len(ids) for ids in line], of_line)
            for translations, line, of_line in zip(of_parts, parts, tags, strict=True)
        ]
        for number, translations in enumerate(chosen, first):
            if translations[0].score == -float("inf"):
                why = "its weights may hold NaN"
                if self.settings.precision == "float16":
                    why = "float16 may have overflowed: try --precision float32"
                warn(number, f"the model gave no translation ({why}).", "got no translation")
        rows = [[*zip(*line, strict=False)] for line in of_parts]  # parts of each translation
        in_order = (part for line in rows for row in line for part in row)
        texts = iter(self.tokenizers.target.decode(part.ids for part in in_order))
        return [
            [Line(language.joined(next(texts) for _ in row), one)
             for row, one in zip(line, translations, strict=True)]
            for line, translations in zip(rows, chosen, strict=True)
        ]  # fmt: skip

    @cached_property
    def _scorer(self) -> Scorer:
        """The same for every call: its graph takes longer to make than a line to score."""
        return Scorer(self.models)

    def _tagged(self, lines: Sequence[str], first: int, warn: Warn) -> Sequence[str]:
        """The lines, each with a tag of the language to translate to, if there are any."""
        languages = sentencepiece_model.languages(self.tags)
        if not languages:
            return lines
        known = tuple(self.tags)
        lacks = [line.strip() != "" and not line.lstrip().startswith(known) for line in lines]
        if self.tag:
            pairs = zip(lines, lacks, strict=True)
            return [f"{self.tag} {line}" if lack else line for line, lack in pairs]
        if True in lacks:
            names = ", ".join(languages)
            text = f"it begins with no tag of a language ({names}): give --to or a tag."
            for number in np.flatnonzero(lacks).tolist():
                warn(first + number, text, "begin with no tag of a language")
        return lines

    def _encoded(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Ids of sources; of one that holds nothing but tags those of a blank line."""
        encoded, tags = self.tokenizers.source.encode(lines), [*self.tags.values()]
        if not tags:
            return encoded
        return [ids[-1:] if np.isin(ids[:-1], tags).all() else ids for ids in encoded]

    @contextmanager
    def _explain_memory(self) -> Iterator[None]:
        try:
            yield
        except (tf.errors.ResourceExhaustedError, MemoryError, RuntimeError) as error:
            # CTranslate2 has no class for it.
            if isinstance(error, RuntimeError) and "out of memory" not in str(error):
                raise
            settings = self.settings
            raise ConfigError(
                f"--batch-tokens {settings.batch_tokens} with --beam-size "
                f"{settings.decoding.beam_size} needs too much memory: lower one of them."
            ) from None


def _without_pieces(unknown: Sequence[str]) -> str:
    """Says what is lost of a line: by number, because not every character can be seen."""
    named = ", ".join(
        f"U+{ord(character):04X}"
        + ("" if unicodedata.category(character)[0] in "CMZ" else f' "{character}"')
        for character in unknown[:_SHOWN]
    )
    more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    return f"{count(len(unknown), 'character')} that the vocabulary does not know: {named}{more}."


def chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Cuts lines into lists of `CHUNK_LINES`."""
    rest = iter(lines)
    while chunk := list(islice(rest, CHUNK_LINES)):
        yield chunk


def load(run: Path, which: Sequence[str], settings: Settings) -> Engine:
    """Loads what translates; several checkpoints as an ensemble. UserError: one cannot be used."""
    settings = dataclasses.replace(settings, decoding=RunDirectory(run).decoding(settings.decoding))
    models: list[Any] = []
    backend: Translator | CTranslate2Translator
    if settings.backend == "ctranslate2":
        from hvd_nmt.formats import ctranslate2  # needs a package that not everybody has

        if len(which) > 1:
            raise ConfigError(
                "--backend ctranslate2 translates with one checkpoint: give one, or the mean that "
                "hvd_nmt.average makes of several."
            )
        stored = "float32" if settings.precision == "auto" else settings.precision
        path = ctranslate2.cached(run, which[0], stored, settings.shortlist)
        backend = ctranslate2.CTranslate2Translator(path, settings.decoding)
    else:
        # On processors auto is float32 even if they can do more: the same translations everywhere.
        wanted: Any = settings.precision  # never int8
        settings = dataclasses.replace(settings, precision=device.precision(wanted))
        models = [weights.load_model(run, name, settings.precision)[0] for name in which]
        backend = Translator(models, settings.decoding)
    paths = RunDirectory(run).vocabularies()
    tokenizers = Tokenizers.of(*paths)
    tags = sentencepiece_model.tags(paths[0].read_bytes())
    tag = sentencepiece_model.tag_of(settings.to, tags)
    if settings.to and not tag:
        known = ", ".join(sentencepiece_model.languages(tags))
        known = f"give one of {known}" if known else "it has no language tags, so remove --to"
        raise ConfigError(f"The model does not know the language {settings.to!r}: {known}.")
    name = f"{run}: {', '.join(which)}"
    return Engine(backend, tokenizers, settings, models, tags, tag, name)

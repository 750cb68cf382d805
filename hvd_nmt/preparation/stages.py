"""The stages of `prepare` in their order.

clean                each part to clean text, dev and test before train
hold_out             dev pairs out of the training pairs
make_vocabularies    SentencePiece's model, trained or copied, or one for each side
encode               text to ids
finish               the manifest and the report on quality
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import fingerprint
from hvd_nmt.common.version import __version__
from hvd_nmt.data import corpus
from hvd_nmt.preparation import (
    cleaning,
    encoding,
    parts,
    quality,
    removed,
    subwords,
    vocabularies,
)
from hvd_nmt.preparation.copies import Copying, require_merges
from hvd_nmt.preparation.corpora import Corpora, CorpusFiles, Tagged
from hvd_nmt.preparation.encoding import LengthLimit
from hvd_nmt.preparation.parts import PartState, Paths

Parts = Mapping[str, PartState]
"""of "train", "dev" and perhaps "test": what has come of it so far"""


@dataclass(frozen=True)
class Build:
    """A data directory in the making: what every stage needs to know."""

    result: Path
    """folder that becomes the data directory"""
    work: Path
    """folder of files that are needed only until the end"""
    request: dict[str, Any]
    """all that decides the result"""
    languages: tuple[str, str]
    limit: LengthLimit
    tags: Sequence[str]
    """that sources may begin with"""
    copying: Copying
    """how copies of training pairs differ"""
    seconds: dict[str, float] = field(default_factory=dict)
    """that each stage took, in their order"""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Keeps the time that a stage takes."""
        begun_s = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begun_s

    def paths(self, folder: Path, name: str) -> Paths:
        """A source and a target path, such as `folder/name.en` and `folder/name.de`."""
        source, target = (folder / f"{name}.{language}" for language in self.languages)
        return source, target


def _held_out(parts: Parts) -> dict[str, np.ndarray]:
    """The `cleaning.keys` of the pairs of dev and test."""
    return {name: parts[name].keys for name in ("dev", "test") if name in parts}


def clean(build: Build, corpora: Corpora, wrong_bytes: str) -> dict[str, PartState]:
    """Reads all parts and writes their clean text, one corpus after the other, and what is removed.

    `wrong_bytes` is stop or skip: what becomes of a training pair that is not UTF-8. DataError: as
    `parts.clean`, or no training pair is left.
    """
    found: dict[str, PartState] = {}
    for name in ("dev", "test", "train"):
        text = build.paths(build.work if name == "train" else build.result, name)
        states: list[PartState | None] = []
        for each in corpora.corpora:
            raw, of = corpora.inputs[each.name].get(name), f" of {each.name}" if each.name else ""
            draft = build.paths(build.work, f"{name}.of.{each.name}") if of else text
            with build.stage(f"read {name}{of}") if raw else nullcontext():
                method = _cleaning(build, each, name, wrong_bytes, found)
                states.append(parts.clean(raw, draft, method) if raw else None)
        if any(states):
            found[name] = parts.joined(states, text)
    require_pairs(found["train"])
    return found


def _cleaning(
    build: Build, of: CorpusFiles, part: str, wrong_bytes: str, clean_parts: Parts
) -> parts.Cleaning:
    """How a part of a corpus is cleaned; all pairs of dev and test stay, for a score counts all."""
    if part != "train":
        wrong_bytes = "stop" if wrong_bytes == "stop" else "keep"
        return parts.Cleaning(Tagged(parts.keep_all, of.tags), wrong_bytes, build.tags)
    return parts.Cleaning(
        Tagged(cleaning.Cleaner(of.rules, of.languages), of.tags), wrong_bytes, build.tags,
        partial(cleaning.repeated, of.rules, held_out=_held_out(clean_parts)),
        build.result / removed.name(of.name),
    )  # fmt: skip


def hold_out(build: Build, train: PartState, pairs: int, targets_too: bool) -> dict[str, PartState]:
    """Takes dev pairs out of train; returns both. DataError: as `parts.hold_out`, or none left."""
    texts = build.paths(build.result, "dev"), build.paths(build.work, "rest")
    with build.stage("hold out"):
        left, dev = parts.hold_out(train, pairs, *texts, targets_too)
    require_pairs(left)
    return {"train": left, "dev": dev}


def make_vocabularies(build: Build, train: PartState, wanted: vocabularies.Wanted) -> None:
    """Puts the SentencePiece models, and their pieces as text, into the result."""
    with build.stage("vocabulary"):
        vocabularies.make(build.result, train, wanted, request=build.request, limit=build.limit)


def encode(build: Build, clean_parts: Parts) -> dict[str, Any]:
    """Encodes train and dev, and completes their counts; returns what `quality` counts of train."""
    models = [path.read_bytes() for path in vocabularies.models(build.result)]
    both = models[0], models[-1]
    if build.copying.bpe_dropout:
        require_merges(both)
    counts = quality.Quality(build.limit.tokens)
    stems = {name: build.paths(build.result, name) for name in ("train", "dev")}
    with build.stage("encode train"):
        train = clean_parts["train"]
        encoding.encode(train, both, build.limit, stems["train"], counts, copying=build.copying)
        counted = counts.counted(train.keys, _held_out(clean_parts))
    with build.stage("encode dev"):
        whole = build.limit._replace(skip=False)
        encoding.encode(clean_parts["dev"], both, whole, stems["dev"])
    return counted


def finish(build: Build, encoded: Parts, counted: dict[str, Any], corpora: Corpora) -> None:
    """Writes the manifest and the quality of the text; DataError: no training pair is left."""
    require_pairs(encoded["train"], f" (--max-length {build.limit.tokens})")

    with build.stage("check sums"):
        *of_source, model = map(subwords.read, vocabularies.models(build.result))
        no_data = {corpus.MANIFEST, quality.REPORT}
        files = [
            path
            for path in sorted(build.result.iterdir())
            if path.name not in no_data and not removed.is_name(path.name)
        ]
        manifest = corpus.Manifest(
            format_version=corpus.FORMAT_VERSION,
            source_language=build.languages[0],
            target_language=build.languages[1],
            vocabulary_pieces=model.get_piece_size(),
            vocabulary_size=subwords.rounded_up(model.get_piece_size()),
            max_length=build.limit.tokens,
            request=build.request,
            versions={"hvd_nmt": __version__, "sentencepiece": sentencepiece.__version__},
            parts={n: encoded[n].finished() for n in ("train", "dev", "test") if n in encoded},
            files={path.name: fingerprint(path) for path in files},
            corpora=corpora.records(encoded),
            copies=build.copying.copies if build.copying.is_on else 0,
            **(vocabularies.own_source(of_source[0], model) if of_source else {}),
        )
        corpus.write_manifest(build.result, manifest)
        quality.write(build.result, quality.report(build.languages, manifest.parts, counted))


def require_pairs(train: PartState, why: str = "") -> None:
    """See that there is something to train on, or raise DataError."""
    if not train.pairs:
        counts = ", ".join(f"{count:,} {rule}" for rule, count in sorted(train.removed.items()))
        raise DataError(f"No training pair is left of {train.pairs_read}: {counts or 'none'}{why}.")

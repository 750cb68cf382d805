"""The stages of `prepare` in their order: raw text to a data directory."""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import sentencepiece

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import fingerprint
from hvd_nmt.common.version import __version__
from hvd_nmt.data import corpus
from hvd_nmt.preparation import (
    cleaning,
    corpora,
    embedded,
    encoding,
    parts,
    quality,
    vocabularies,
)
from hvd_nmt.preparation.corpora import CorpusFiles
from hvd_nmt.preparation.encoding import LengthLimit
from hvd_nmt.preparation.options import Options
from hvd_nmt.preparation.parts import Input, PartState, Paths, Source


def make(
    options: Options, found: Sequence[CorpusFiles], request: dict[str, Any], result: Path
) -> dict[str, float]:
    """Fills a folder, which becomes the data directory; returns the seconds of each stage.

    Args:
        found: the corpora with their files.
        request: all that decides the result.

    Raises:
        DataError: the text cannot be used, or no training pair is left.
    """
    work = result / "work"
    work.mkdir()
    if options.dataset == "embedded":
        raw = {part: Input.of([paths]) for part, paths in embedded.unpack(work).items()}
        found = [replace(found[0], inputs=raw)]
    build = _Build(options, found, result, work)
    made = _clean(build)
    if options.dev_size:
        texts = build.paths(result, "dev"), build.paths(work, "rest")
        with build.stage("hold out"):
            made["train"], made["dev"] = parts.hold_out(
                made["train"], options.dev_size, *texts, options.rules.remove_leaks
            )
        _require_pairs(made["train"])
    with build.stage("vocabulary"):
        models = _vocabularies(build, made["train"], request)
    with build.stage("encode train"):
        lengths = encoding.encode(
            made["train"], models, build.limit, build.paths(result, "train"), is_train=True,
            copying=options.copying,
        )  # fmt: skip
        max_length, keys = build.limit.tokens, made["train"].keys
        counted = quality.counted(lengths, keys, _held_out(made), max_length)
    with build.stage("encode dev"):
        stems = build.paths(result, "dev")
        encoding.encode(made["dev"], models, build.limit, stems, is_train=False)
    _require_pairs(made["train"], f" (--max-length {max_length})")
    shutil.rmtree(work)
    with build.stage("check sums"):
        manifest = _manifest(build, made, request, vocabularies.sizes(*models))
        corpus.write_manifest(result, manifest)
        quality.write(result, quality.report(build.languages, manifest.parts, counted))
    return build.seconds


@final
class _Build:
    """A data directory in the making: what several stages need to know."""

    def __init__(
        self, options: Options, found: Sequence[CorpusFiles], result: Path, work: Path
    ) -> None:
        self.options, self.corpora = options, found
        self.result, self.work = result, work
        self.languages = corpora.languages(found)
        self.tags = corpora.tags(found, options.learning.tags)
        self.limit = LengthLimit(options.max_length, skip=options.too_long == "skip")
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Keeps the time that a stage takes."""
        begun_s = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begun_s

    def paths(self, folder: Path, name: str) -> Paths:
        """A source and a target path, such as `folder/name.en` and `folder/name.de`."""
        return folder / f"{name}.{self.languages[0]}", folder / f"{name}.{self.languages[1]}"


def _clean(build: _Build) -> dict[str, PartState]:
    """Writes the clean text of all parts; how each came out, by its name.

    Dev and test come first and stay whole: what they hold is then taken out of train.
    """
    made: dict[str, PartState] = {}
    for part in ("dev", "test", "train"):
        if any(part in each.inputs for each in build.corpora):
            text = build.paths(build.work if part == "train" else build.result, part)
            sources = [_source(build, each, part, _held_out(made)) for each in build.corpora]
            with build.stage(f"read {part}"):
                made[part] = parts.clean(sources, text)
    _require_pairs(made["train"])
    return made


def _source(
    build: _Build, of: CorpusFiles, part: str, held_out: Mapping[str, np.ndarray]
) -> Source:
    """How a part of a corpus is cleaned; all pairs of dev and test stay, for a score counts all."""
    raw, wrong_bytes = of.inputs.get(part), build.options.wrong_bytes
    if part != "train":
        wrong_bytes = "stop" if wrong_bytes == "stop" else "keep"
        return Source(raw, parts.keep_all, wrong_bytes, of.tags, build.tags)
    return Source(
        raw, cleaning.Cleaner(of.rules, of.languages), wrong_bytes, of.tags, build.tags,
        partial(cleaning.repeated, of.rules, held_out=held_out),
        build.result / ".".join(filter(None, ("removed", of.name, "tsv.gz"))),
    )  # fmt: skip


def _held_out(made: Mapping[str, PartState]) -> dict[str, np.ndarray]:
    """The `cleaning.keys` of the pairs of dev and test."""
    return {name: made[name].keys for name in ("dev", "test") if name in made}


def _vocabularies(build: _Build, train: PartState, request: Mapping[str, Any]) -> encoding.Models:
    options = build.options
    if options.vocabularies:
        keys = ("source_vocabulary", "vocabulary")[-len(options.vocabularies) :]
        digests = [request[key] for key in keys]
        given = list(zip(options.vocabularies, digests, strict=True))
        vocabularies.take(build.result, given, build.tags)
    else:
        learning = replace(options.learning, tags=build.tags)
        sample = options.vocabulary_sample
        vocabularies.learn(build.result, train, options.pieces, sample, learning, build.limit)
    return vocabularies.models(build.result)


def _manifest(
    build: _Build, made: Mapping[str, PartState], request: dict[str, Any], sizes: dict[str, int]
) -> corpus.Manifest:
    paths = [p for p in sorted(build.result.iterdir()) if not p.name.startswith("removed.")]
    copying = build.options.copying
    return corpus.Manifest(
        format_version=corpus.FORMAT_VERSION,
        source_language=build.languages[0],
        target_language=build.languages[1],
        max_length=build.limit.tokens,
        request=request,
        versions={"hvd_nmt": __version__, "sentencepiece": sentencepiece.__version__},
        parts={part: made[part].finished() for part in ("train", "dev", "test") if part in made},
        files={path.name: fingerprint(path) for path in paths},
        corpora=_records(build.corpora, made),
        copies=copying.copies if copying.is_on else 0,
        **sizes,
    )


def _records(
    found: Sequence[CorpusFiles], made: Mapping[str, PartState]
) -> list[corpus.MixedCorpus]:
    """What the manifest says of each of several corpora."""
    pairs = {part: np.bincount(state.corpora, minlength=len(found)) for part, state in made.items()}
    return [
        corpus.MixedCorpus(
            name=each.name,
            source_language=each.languages[0],
            target_language=each.languages[1],
            tags=list(each.tags),
            weight=each.weight,
            date=each.date,
            pairs={part: int(pairs[part][number]) for part in pairs},
        )
        for number, each in enumerate(found)
        if each.name
    ]


def _require_pairs(train: PartState, why: str = "") -> None:
    """See that there is something to train on, or raise DataError."""
    if not train.pairs:
        counts = ", ".join(f"{count:,} {rule}" for rule, count in sorted(train.removed.items()))
        raise DataError(f"No training pair is left of {train.pairs_read}: {counts or 'none'}{why}.")

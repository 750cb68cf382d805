"""The stages of `prepare` in their order. A stage that is in the journal is not done again.

generate             the embedded corpus as files
clean                each part to clean text, dev and test before train
hold_out             dev pairs out of the training pairs
make_vocabularies    SentencePiece's model, trained or copied, or one for each side
encode               text to ids
from_openseq2seq     in place of all these: files that the OpenSeq2Seq recipe has encoded
finish               the manifest and the report on quality
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sentencepiece

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import fingerprint
from hvd_nmt.common.version import __version__
from hvd_nmt.data import corpus
from hvd_nmt.data.text import read_lines, read_pairs
from hvd_nmt.preparation import (
    cleaning,
    embedded,
    encoding,
    openseq2seq_files,
    parts,
    quality,
    removed,
    subwords,
)
from hvd_nmt.preparation.corpora import CorpusFiles, Tagged
from hvd_nmt.preparation.encoding import LengthLimit
from hvd_nmt.preparation.journal import Journal
from hvd_nmt.preparation.parts import Input, PartState, Paths

RESULT = "result"
"""folder of the journal's directory that becomes the data directory"""

_ROUGH_PAIRS, _ROUGH_COVERAGE = 100_000, 0.995
"""by which training pairs are judged before the vocabulary is learned"""

Parts = Mapping[str, PartState]
"""of "train", "dev" and perhaps "test": what has come of it so far"""


@dataclass(frozen=True)
class Build:
    """A data directory in the making: what every stage needs to know."""

    journal: Journal
    request: dict[str, Any]
    """all that decides the result"""
    languages: tuple[str, str]
    limit: LengthLimit

    @property
    def work(self) -> Path:
        """Where files lie that are needed only until the end."""
        return self.journal.directory

    @property
    def result(self) -> Path:
        """Where the files of the data directory lie until they are put in place."""
        return self.journal.directory / RESULT

    def paths(self, folder: Path, name: str) -> Paths:
        """A source and a target path, such as `folder/name.en` and `folder/name.de`."""
        source, target = (folder / f"{name}.{language}" for language in self.languages)
        return source, target

    def held_out_keys(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """The `cleaning.keys` of the pairs of dev and test, where they are among these parts."""
        return {
            name: cleaning.keys(list(read_pairs(*self.paths(self.result, name))))
            for name in ("dev", "test")
            if name in names
        }


def generate(build: Build, seed: int) -> dict[str, Input]:
    """Writes the embedded corpus to files, to go the same way as any other text."""

    def write() -> None:
        for part, pairs in embedded.generate(seed).items():
            paths = build.paths(build.work, f"raw.{part}")
            for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
                path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")

    build.journal.stage("generate", write)
    return {
        part: Input.of([build.paths(build.work, f"raw.{part}")])
        for part in ("train", "dev", "test")
    }


def clean(
    build: Build, inputs: Mapping[str, Input], rules: cleaning.Rules, wrong_bytes: str
) -> dict[str, PartState]:
    """Reads all parts and writes their clean text, and the training pairs that are removed.

    Args:
        build: the data directory in the making.
        inputs: of each part.
        rules: which training pairs are removed; those of dev and test all stay.
        wrong_bytes: stop or skip, what becomes of a training pair that is not UTF-8.

    Raises:
        DataError: as `parts.clean`, or no training pair is left.
    """
    found: dict[str, PartState] = {}
    for name in sorted(inputs, key=["dev", "test", "train"].index):
        folder = build.work if name == "train" else build.result
        work = partial(
            clean_part, build, inputs[name], build.paths(folder, name), rules, wrong_bytes
        )
        others = list(found) if name == "train" else None
        plain = build.journal.stage(f"read {name}", partial(work, others))
        found[name] = PartState.from_plain(plain, folder)
    require_pairs(found["train"])
    return found


def clean_part(
    build: Build, raw: Input, text: Paths, rules: cleaning.Rules, wrong_bytes: str,
    held_out: Iterable[str] | None, *, of: CorpusFiles | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Cleans a part, of the only corpus or of one of several.

    Args:
        build: the data directory in the making.
        raw: its files.
        text: where clean text goes.
        rules: which training pairs are removed.
        wrong_bytes: stop or skip, what becomes of a training pair that is not UTF-8.
        held_out: of train: names of the parts that are clean already; None: it is one of these.
        of: the corpus, if there are several; its tags go in front of each source.

    Returns:
        What `PartState.from_plain` reads.
    """
    tags, name = ((), None) if of is None else (of.tags, of.name)
    if held_out is None:  # all its pairs stay, for a score counts them all
        wrong_bytes = "stop" if wrong_bytes == "stop" else "keep"
        keep = parts.Cleaning(Tagged(parts.keep_all, tags), None, wrong_bytes)
        return parts.clean(raw, text, keep).as_plain()
    source, target = (next(read_lines(path, lenient=True), "") for path in raw.paths[0])
    cleaner = Tagged(cleaning.Cleaner(rules, build.languages, (source, target)), tags)
    memory = cleaning.Memory(rules, build.held_out_keys(held_out)) if rules.stateful else None
    method = parts.Cleaning(cleaner, memory, wrong_bytes, build.result / removed.name(name))
    return parts.clean(raw, text, method).as_plain()


def hold_out(build: Build, train: PartState, pairs: int, targets_too: bool) -> dict[str, PartState]:
    """Takes dev pairs out of the training pairs; returns both parts.

    Args:
        build: the data directory in the making.
        train: clean training text.
        pairs: number of dev pairs.
        targets_too: training pairs whose target is also a dev target leave, too.

    Raises:
        DataError: that would be more than half of the training pairs, or leaves none.
    """

    def work() -> list[Any]:
        dev, rest = build.paths(build.result, "dev"), build.paths(build.work, "rest")
        return [part.as_plain() for part in parts.hold_out(train, pairs, dev, rest, targets_too)]

    rest, dev = build.journal.stage("hold out", work)
    left = PartState.from_plain(rest, build.work)
    require_pairs(left)
    return {"train": left, "dev": PartState.from_plain(dev, build.result)}


def make_vocabularies(
    build: Build, train: PartState, given: Sequence[Path], pieces: Sequence[int], most_pairs: int,
    learning: subwords.Learning,
) -> None:  # fmt: skip
    """Puts the SentencePiece models, and their pieces as text, into the result.

    Args:
        build: the data directory in the making.
        train: clean training text.
        given: models to use as they are, byte for byte, for checkpoints are bound to their hashes:
            a joint one, or those of source and target; none: they are learned.
        pieces: to learn: of the joint vocabulary, or of those of source and target.
        most_pairs: that they are learned from, 0: all.
        learning: how they are learned; given ones must have its tags.
    """

    def work() -> None:
        kinds = _VOCABULARIES[-len(given or pieces) :]
        if given:
            for path, kind in zip(given, kinds, strict=True):
                _copy(path, build.result / kind.model, build.request[kind.key])
            subwords.require_tags(subwords.read(build.result / kinds[0].model), learning.tags)
        else:
            learned = _learned(build, train, pieces, most_pairs, learning)
            for model, kind in zip(learned, kinds, strict=True):
                content = subwords.load(model).serialized_model_proto()
                (build.result / kind.model).write_bytes(content)
        for kind in kinds:
            processor = subwords.read(build.result / kind.model)
            subwords.write_vocabulary(processor, build.result / kind.text)

    build.journal.stage("vocabulary", work)


class _Vocabulary(NamedTuple):
    model: str
    """file of the SentencePiece model"""
    text: str
    """file of its pieces as text"""
    key: str
    """of a given model in the request"""
    size_option: str
    """asks for a number of pieces"""


_VOCABULARIES = (
    _Vocabulary(corpus.SPM_SOURCE_MODEL, corpus.SPM_SOURCE_VOCAB, "source_vocabulary",
                "--source-vocabulary-size"),
    _Vocabulary(corpus.SPM_MODEL, corpus.SPM_VOCAB, "vocabulary", "--vocabulary-size"),
)  # fmt: skip
"""of source and target; the last is that of both where it is joint"""


def encode(build: Build, clean_parts: Parts) -> tuple[dict[str, PartState], dict[str, Any]]:
    """Encodes train and dev; returns all parts, and what `quality` has counted of train."""

    def work(name: str) -> list[Any]:
        part, train = clean_parts[name], name == "train"
        counts = quality.Quality(build.limit.tokens) if train else None
        limit = build.limit if train else build.limit._replace(skip=False)
        models = [path.read_bytes() for path in _models(build)]
        both = models[0], models[-1]
        encoding.encode(part, both, limit, build.paths(build.result, name), counts)
        return [part.as_plain(), counts and counts.counted(build.held_out_keys(clean_parts))]

    train, counted = build.journal.stage("encode train", lambda: work("train"))
    dev, _ = build.journal.stage("encode dev", lambda: work("dev"))
    encoded = {**clean_parts, "train": PartState.from_plain(train, build.work)}
    return encoded | {"dev": PartState.from_plain(dev, build.result)}, counted


def from_openseq2seq(
    build: Build, directory: Path, inputs: Mapping[str, Input]
) -> tuple[dict[str, PartState], dict[str, Any]]:
    """Encodes the files of the OpenSeq2Seq recipe; returns what `encode` returns.

    Args:
        build: the data directory in the making.
        directory: of the files, with their vocabulary.
        inputs: of each part.

    Raises:
        DataError: the files do not belong together, or cannot be read.
    """
    vocabulary = directory / openseq2seq_files.VOCABULARY, directory / openseq2seq_files.MODEL
    pieces = openseq2seq_files.pieces_of(*vocabulary)

    def copy_vocabulary() -> None:
        names = (corpus.SPM_MODEL, corpus.SPM_VOCAB)
        for path, name, digest in zip(
            reversed(vocabulary), names, build.request["recipe"], strict=True
        ):
            _copy(path, build.result / name, digest)

    def read(name: str) -> list[Any]:
        counts = quality.Quality(build.limit.tokens - 1) if name == "train" else None
        stems = build.paths(build.result, name)
        part = openseq2seq_files.read(inputs[name], pieces, build.limit, stems, counts)
        return [part.as_plain(), counts and counts.counted(build.held_out_keys(found))]

    build.journal.stage("vocabulary", copy_vocabulary)
    found: dict[str, PartState] = {}
    counted: dict[str, Any] = {}
    for name in sorted(inputs, key=["dev", "test", "train"].index):
        plain, counted = build.journal.stage(f"encode {name}", partial(read, name))
        found[name] = PartState.from_plain(plain, build.result)
    return found, counted


def finish(
    build: Build, encoded: Parts, counted: dict[str, Any],
    corpora: Sequence[corpus.MixedCorpus] = (),
) -> None:  # fmt: skip
    """Writes the manifest and what is known of the text's quality, which is no part of the data.

    Args:
        build: the data directory in the making.
        encoded: all parts.
        counted: of train, by `quality.Quality.counted`.
        corpora: that the parts are made of, if they are several.

    Raises:
        DataError: no training pair is left.
    """
    require_pairs(encoded["train"], f" (--max-length {build.limit.tokens})")

    def work() -> None:
        *of_source, model = map(subwords.read, _models(build))
        no_data = {corpus.MANIFEST, quality.REPORT, quality.FIGURE}
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
            corpora=list(corpora),
            **(_own_source(of_source[0], model) if of_source else {}),
        )
        corpus.write_manifest(build.result, manifest)
        quality.write(build.result, quality.report(build.languages, manifest.parts, counted))

    build.journal.stage("check sums", work)


def require_pairs(train: PartState, why: str = "") -> None:
    """See that there is something to train on, or raise DataError."""
    if not train.pairs:
        counts = ", ".join(f"{count:,} {rule}" for rule, count in sorted(train.removed.items()))
        raise DataError(f"No training pair is left of {train.pairs_read}: {counts or 'none'}{why}.")


def _copy(path: Path, to: Path, sha256: str) -> None:
    """Copies a file that was read before, if it still is what it was."""
    shutil.copyfile(path, to)
    if fingerprint(to).sha256 != sha256:
        raise DataError(
            f"{path} has changed since the command began: give the same command again when nobody "
            "writes to it."
        )


def _models(build: Build) -> list[Path]:
    """The vocabularies that have been made: a joint one, or those of source and target."""
    paths = [build.result / kind.model for kind in _VOCABULARIES]
    return paths if paths[0].exists() else paths[1:]


def _own_source(source: Any, target: Any) -> dict[str, int]:
    """What the manifest says of a source with a SentencePiece model of its own.

    Where both models give each piece the same id, as in OPUS-MT, one matrix serves both sides.
    """
    pieces = source.get_piece_size()
    shared = subwords.pieces(source) == subwords.pieces(target)
    rows = 0 if shared else subwords.rounded_up(pieces)
    return {"source_vocabulary_pieces": pieces, "source_vocabulary_size": rows}


def _learned(
    build: Build, train: PartState, pieces: Sequence[int], most_pairs: int,
    learning: subwords.Learning,
) -> list[bytes]:  # fmt: skip
    """Vocabularies learned from the pairs that encoding keeps, which depends on vocabularies.

    The text of both sides makes a joint one, that of each side its own.
    """
    texts: list[tuple[Path, ...]] = [train.text] if len(pieces) == 1 else [(p,) for p in train.text]
    chosen = subwords.spread(train.pairs, most_pairs)
    some = subwords.spread(train.pairs, min(most_pairs or _ROUGH_PAIRS, _ROUGH_PAIRS))
    learnings = [learning, replace(learning, tags=())][: len(pieces)]  # tags are of sources
    wanted = list(zip(texts, pieces, learnings, strict=True))
    first = [_rough(text, some, count, of_side) for text, count, of_side in wanted]
    if first[0] is not None and first[-1] is not None:
        kept = encoding.kept(train.text, chosen, (first[0], first[-1]), build.limit)
        chosen = kept if kept.any() else chosen  # the end says of how many pairs none is left
    kinds = _VOCABULARIES[-len(pieces) :]
    return [
        subwords.train(subwords.sample(text, chosen), count, of_side, kind.size_option)
        for (text, count, of_side), kind in zip(wanted, kinds, strict=True)
    ]


def _rough(
    text: Sequence[Path], chosen: np.ndarray, pieces: int, learning: subwords.Learning
) -> bytes | None:
    """A first vocabulary, without rare characters, to tell which pairs encoding keeps.

    A line of noise may have thousands of characters that are nowhere else, and each would get a
    piece. Where they are too many even so, they get theirs beside as many others as are wanted,
    so that it is still the noise that is long.
    """
    coverage = min(learning.character_coverage, _ROUGH_COVERAGE)
    rough = replace(learning, character_coverage=coverage)
    try:
        try:
            return subwords.train(subwords.sample(text, chosen), pieces, rough)
        except subwords.TooFewPiecesError as error:
            more = pieces + error.least
            return subwords.train(subwords.sample(text, chosen), more, rough)
    except DataError:
        return None  # what is wrong is said of the real one, which has more characters

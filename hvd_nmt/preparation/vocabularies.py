"""The vocabularies of a data directory: learned from its training text, or taken as they are."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import fingerprint
from hvd_nmt.data import corpus
from hvd_nmt.preparation import encoding, subwords
from hvd_nmt.preparation.encoding import LengthLimit
from hvd_nmt.preparation.parts import PartState

_ROUGH_PAIRS, _ROUGH_COVERAGE = 100_000, 0.995
"""by which training pairs are judged before the vocabulary is learned"""


@dataclass(frozen=True)
class Wanted:
    """Which vocabularies."""

    given: Sequence[Path]
    """models to use as they are, byte for byte, for checkpoints are bound to their hashes: a joint
    one, or those of source and target; none: they are learned"""
    pieces: Sequence[int]
    """to learn: of the joint vocabulary, or of those of source and target"""
    most_pairs: int
    """that they are learned from, 0: all"""
    learning: subwords.Learning
    """how they are learned; given ones must have its tags"""


def make(
    result: Path, train: PartState, wanted: Wanted, *, request: Mapping[str, Any],
    limit: LengthLimit,
) -> None:  # fmt: skip
    """Puts the SentencePiece models, and their pieces as text, into a folder.

    `request` has the digests of given ones. DataError: a given one is not what it was, or lacks a
    tag; or none can be learned.
    """
    kinds = _VOCABULARIES[-len(wanted.given or wanted.pieces) :]
    if wanted.given:
        for path, kind in zip(wanted.given, kinds, strict=True):
            copy(path, result / kind.model, request[kind.key])
        subwords.require_tags(subwords.read(result / kinds[0].model), wanted.learning.tags)
    else:
        for model, kind in zip(_learned(train, wanted, limit), kinds, strict=True):
            content = subwords.load(model).serialized_model_proto()
            (result / kind.model).write_bytes(content)
    for kind in kinds:
        processor = subwords.read(result / kind.model)
        subwords.write_vocabulary(processor, result / kind.text)


def models(result: Path) -> list[Path]:
    """The vocabularies that have been made: a joint one, or those of source and target."""
    paths = [result / kind.model for kind in _VOCABULARIES]
    return paths if paths[0].exists() else paths[1:]


def own_source(source: Any, target: Any) -> dict[str, int]:
    """What the manifest says of a source with a SentencePiece model of its own.

    Where both models give each piece the same id, as in OPUS-MT, one matrix serves both sides.
    """
    pieces = source.get_piece_size()
    shared = subwords.pieces(source) == subwords.pieces(target)
    rows = 0 if shared else subwords.rounded_up(pieces)
    return {"source_vocabulary_pieces": pieces, "source_vocabulary_size": rows}


def copy(path: Path, to: Path, sha256: str) -> None:
    """Copies a file that was read before, if it still is what it was."""
    shutil.copyfile(path, to)
    if fingerprint(to).sha256 != sha256:
        raise DataError(
            f"{path} has changed since the command began: give the same command again when nobody "
            "writes to it."
        )


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


def _learned(train: PartState, wanted: Wanted, limit: LengthLimit) -> list[bytes]:
    """Vocabularies learned from the pairs that encoding keeps, which depends on vocabularies.

    The text of both sides makes a joint one, that of each side its own.
    """
    pieces, most_pairs, learning = wanted.pieces, wanted.most_pairs, wanted.learning
    texts: list[tuple[Path, ...]] = [train.text] if len(pieces) == 1 else [(p,) for p in train.text]
    chosen = subwords.spread(train.pairs, most_pairs)
    some = subwords.spread(train.pairs, min(most_pairs or _ROUGH_PAIRS, _ROUGH_PAIRS))
    learnings = [learning, replace(learning, tags=())][: len(pieces)]  # tags are of sources
    kinds = list(zip(texts, pieces, learnings, strict=True))
    first = [_rough(text, some, count, of_side) for text, count, of_side in kinds]
    if first[0] is not None and first[-1] is not None:
        kept = encoding.kept(train.text, chosen, (first[0], first[-1]), limit)
        chosen = kept if kept.any() else chosen  # the end says of how many pairs none is left
    options = [kind.size_option for kind in _VOCABULARIES[-len(pieces) :]]
    return [
        subwords.train(subwords.sample(text, chosen), count, of_side, option)
        for (text, count, of_side), option in zip(kinds, options, strict=True)
    ]


def _rough(
    text: Sequence[Path], chosen: np.ndarray, pieces: int, learning: subwords.Learning
) -> bytes | None:
    """A first vocabulary, without rare characters, to tell which pairs encoding keeps.

    A line of noise may have thousands of characters that are nowhere else, each of which would get
    a piece. Where they are too many even so, they come on top of the pieces that are wanted, so
    that it is still the noise that is long.
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

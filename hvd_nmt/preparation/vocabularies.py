"""The vocabularies of a data directory: learned from its training text, or taken as they are."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sentencepiece import SentencePieceProcessor

from hvd_nmt.common.errors import DataError
from hvd_nmt.data import corpus
from hvd_nmt.preparation import encoding, subwords
from hvd_nmt.preparation.encoding import LengthLimit
from hvd_nmt.preparation.parts import PartState

_ROUGH_PAIRS, _ROUGH_COVERAGE = 100_000, 0.995
"""by which training pairs are judged before the vocabulary is learned"""


class _Kind(NamedTuple):
    model: str
    """file of the SentencePiece model"""
    text: str
    """file of its pieces as text"""
    size_option: str
    """asks for a number of pieces"""


_KINDS = (
    _Kind(corpus.SPM_SOURCE_MODEL, corpus.SPM_SOURCE_VOCAB, "--source-vocabulary-size"),
    _Kind(corpus.SPM_MODEL, corpus.SPM_VOCAB, "--vocabulary-size"),
)
"""of source and target; the last is that of both where it is joint"""


def take(result: Path, given: Sequence[tuple[Path, str]], tags: Sequence[str]) -> None:
    """Puts models into a folder byte for byte, for checkpoints are bound to their hashes.

    `given` are the joint one, or those of source and target, with their sha256. DataError: one is
    not what it was, or lacks a tag.
    """
    kinds = _KINDS[-len(given) :]
    for kind, (path, sha256) in zip(kinds, given, strict=True):
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DataError(
                f"{path} has changed since the command began: give the same command again when "
                "nobody writes to it."
            )
        _write(result, kind, content)
    subwords.require_tags(subwords.read(result / kinds[0].model), tags)


def learn(
    result: Path, train: PartState, pieces: Sequence[int], most_pairs: int,
    learning: subwords.Learning, limit: LengthLimit,
) -> None:  # fmt: skip
    """Learns vocabularies from the pairs that encoding keeps, which depends on vocabularies.

    Args:
        result: folder for the SentencePiece models, and for their pieces as text.
        pieces: of the joint vocabulary, or of those of source and target.
        most_pairs: that they are learned from, 0: all.

    Raises:
        DataError: none can be learned.
    """
    texts: list[tuple[Path, ...]] = [train.text] if len(pieces) == 1 else [(p,) for p in train.text]
    learnings = [learning, replace(learning, tags=())][: len(pieces)]  # tags are of sources
    wanted = list(zip(texts, pieces, learnings, _KINDS[-len(pieces) :], strict=True))
    chosen = subwords.spread(train.pairs, most_pairs)
    some = subwords.spread(train.pairs, min(most_pairs or _ROUGH_PAIRS, _ROUGH_PAIRS))
    rough = [_rough(text, some, count, of_side) for text, count, of_side, _ in wanted]
    if rough[0] is not None and rough[-1] is not None:
        kept = encoding.kept(train.text, chosen, (rough[0], rough[-1]), limit)
        chosen = kept if kept.any() else chosen  # the end says of how many pairs none is left
    for text, count, of_side, kind in wanted:
        lines = subwords.sample(text, chosen)
        model = subwords.load(subwords.train(lines, count, of_side, kind.size_option))
        _write(result, kind, model.serialized_model_proto())


def models(result: Path) -> tuple[SentencePieceProcessor, SentencePieceProcessor]:
    """The vocabularies of source and target in a folder; the same where it is joint."""
    target = subwords.read(result / corpus.SPM_MODEL)
    path = result / corpus.SPM_SOURCE_MODEL
    return (subwords.read(path) if path.exists() else target), target


def sizes(source: SentencePieceProcessor, target: SentencePieceProcessor) -> dict[str, Any]:
    """What the manifest says of the vocabularies.

    Where two models give each piece the same id, as in OPUS-MT, one matrix serves both sides.
    """
    found = {
        "vocabulary_pieces": target.get_piece_size(),
        "vocabulary_size": subwords.rounded_up(target.get_piece_size()),
    }
    if source is not target:
        shared = subwords.pieces(source) == subwords.pieces(target)
        found["source_vocabulary_pieces"] = source.get_piece_size()
        rows = 0 if shared else subwords.rounded_up(source.get_piece_size())
        found["source_vocabulary_size"] = rows
    return found


def _write(result: Path, kind: _Kind, content: bytes) -> None:
    (result / kind.model).write_bytes(content)
    model = subwords.read(result / kind.model)
    lines = (f"{piece}\t{model.get_score(i):g}\n" for i, piece in enumerate(subwords.pieces(model)))
    (result / kind.text).write_text("".join(lines), encoding="utf-8", newline="\n")


def _rough(
    text: Sequence[Path], chosen: np.ndarray, pieces: int, learning: subwords.Learning
) -> SentencePieceProcessor | None:
    """A first vocabulary, without rare characters, to tell which pairs encoding keeps.

    A line of noise may have thousands of characters that are nowhere else, each of which would get
    a piece. Where they are too many even so, they come on top of the pieces that are wanted, so
    that it is still the noise that is long. None: what is wrong is said of the real one, which has
    more characters.
    """
    coverage = min(learning.character_coverage, _ROUGH_COVERAGE)
    rough = replace(learning, character_coverage=coverage)
    for _ in range(2):
        try:
            return subwords.load(subwords.train(subwords.sample(text, chosen), pieces, rough))
        except subwords.TooFewPiecesError as error:
            pieces += error.least
        except DataError:
            return None
    return None

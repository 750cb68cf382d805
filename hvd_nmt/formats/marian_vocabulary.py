"""The vocabulary of an OPUS-MT model as SentencePiece models with our ids.

    source.spm           cuts source text into pieces; target.spm does so for the other language
    vocab.json           gives the pieces of both their ids: </s> 0, <unk> 1, ..., <pad> last
    target_vocab.json    those of the target, where each side has an embedding of its own

With one vocab.json both models that are made here hold the pieces of both languages under the same
ids, so that one embedding serves them. Each cuts text as its own .spm does, because what that does
not know is marked as unused, and puts any of the pieces together to text.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvd_nmt.common.errors import RunError
from hvd_nmt.config import BOS, EOS, PAD, UNK
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.sentencepiece_model import CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED

_UNKNOWN_PENALTY = 10.0
"""by which SentencePiece holds an unknown character for less likely than its rarest piece"""
_SPECIAL = {PAD: "<pad>", EOS: "</s>", UNK: "<unk>"}


class Numbering(NamedTuple):
    """Our ids of the pieces of a vocab.json, and of those of .spm files that it lacks."""

    names: list[str]
    """the pieces from our fifth on"""
    rows: list[int]
    """for each of our ids the id in vocab.json, whose weights are taken; they fill up to 8"""
    never: list[int]
    """our ids that must not be predicted: they stand for no piece of vocab.json, or for <pad>"""
    known: int
    """pieces of vocab.json"""


class MarianVocabulary(NamedTuple):
    """SentencePiece models, serialised, and where their pieces come from."""

    model: bytes
    """of the target"""
    source_model: bytes
    target: Numbering
    source: Numbering


def read(folder: Path, separate: bool = False) -> MarianVocabulary:
    """Join .spm and .json files; where embeddings are `separate` there are two .json files.

    Raises:
        RunError: a file is missing, or is not what its name says.
    """
    source, target = (_model(folder / f"{side}.spm") for side in ("source", "target"))
    ids = _ids(folder / "vocab.json")
    if separate:
        of_source = _numbering(ids, [source])
        of_target = _numbering(_ids(folder / "target_vocab.json"), [target])
        if of_source.names == of_target.names:
            raise RunError(  # which piece has which id tells training whether there is one matrix
                f"{folder} has the same pieces in vocab.json and target_vocab.json and yet a "
                "matrix for each: only models with different pieces or one matrix can be imported."
            )
    else:
        of_source = of_target = _numbering(ids, [source, target])
    return MarianVocabulary(
        _with_our_ids(target, of_target.names, UNUSED),
        _with_our_ids(source, of_source.names, USER_DEFINED),
        of_target,
        of_source,
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; RunError: it cannot be read, or is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from None
    if not isinstance(found, dict):
        raise RunError(f"{path} holds no JSON object.")
    return found


def _numbering(ids: dict[str, int], models: Sequence[Any]) -> Numbering:
    lacking = dict.fromkeys(name for model in models for name in _known(model) if name not in ids)
    in_order = sorted(ids.keys() - set(_SPECIAL.values()), key=lambda name: ids[name])
    names = [*in_order, *lacking]
    special = [ids[_SPECIAL.get(number, "<pad>")] for number in range(4)]
    rows = special + [ids.get(name, ids["<unk>"]) for name in names]
    unknown = range(4 + len(in_order), len(rows) + -len(rows) % 8)
    rows += [ids["<pad>"]] * (-len(rows) % 8)
    return Numbering(names, rows, [PAD, BOS, *unknown], len(ids))


def _known(model: Any) -> dict[str, Any]:
    """The pieces that text is cut into, by name."""
    return {p.piece: p for p in model.pieces if p.type not in (UNKNOWN, CONTROL)}


def _with_our_ids(model: Any, names: Sequence[str], of_tags: int) -> bytes:
    """A .spm, which is changed, with all pieces of a numbering in their order, serialised."""
    known, rare = _known(model), min(p.score for p in model.pieces) - _UNKNOWN_PENALTY
    specials = _SPECIAL | {BOS: "<start>"}
    del model.pieces[:]
    for number in range(4):
        kind = UNKNOWN if number == UNK else CONTROL
        model.pieces.add(piece=specials[number], score=0.0, type=kind)
    for name in names:
        if name in known:
            model.pieces.add(piece=name, score=known[name].score, type=known[name].type)
        elif name.startswith(">>") and name.endswith("<<"):
            # ">>fra<<" before the text names the language to translate to; the space before a
            # sentence is part of its first piece.
            model.pieces.add(piece=SPACE + name, score=0.0, type=of_tags)
        elif len(name) == 1:
            # A character that only the other .spm knows is looked up in vocab.json all the same.
            model.pieces.add(piece=name, score=rare, type=NORMAL)
        else:
            model.pieces.add(piece=name, score=0.0, type=UNUSED)
    trainer = model.trainer_spec
    trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = PAD, EOS, BOS, UNK
    trainer.pad_piece, trainer.eos_piece = specials[PAD], specials[EOS]
    trainer.bos_piece, trainer.unk_piece = specials[BOS], specials[UNK]
    trainer.vocab_size = len(model.pieces)
    return model.SerializeToString()


def _ids(path: Path) -> dict[str, int]:
    ids = read_json(path)
    if sorted(ids.values()) != list(range(len(ids))):
        raise RunError(f"{path} is no vocabulary: it must give each piece an id of its own from 0.")
    if lacking := [name for name in _SPECIAL.values() if name not in ids]:
        raise RunError(f"{path} lacks {', '.join(lacking)}.")
    return ids


def _model(path: Path) -> Any:
    try:
        return sentencepiece_model.parsed(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read as a SentencePiece model: {error}.") from None

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_nmt.common.errors import RunError
from hvd_nmt.config import BOS, EOS, PAD, UNK
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.sentencepiece_model import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

_UNKNOWN_PENALTY = 10.0
"""by which SentencePiece holds an unknown character for less likely than its rarest piece"""
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


@dataclass(frozen=True)
class Numbering:
    """Our ids of the pieces of a vocab.json, and of pieces that it lacks."""

    ids: dict[str, int]
    """of vocab.json"""
    lacking: list[str]
    """pieces of a .spm that are not in it"""
    tags: list[str]
    """names of languages in it, such as >>fra<<, that are no pieces of a .spm"""

    @property
    def names(self) -> list[str]:
        """The pieces from our fifth on."""
        in_order = sorted(self.ids, key=lambda name: self.ids[name])
        return [name for name in in_order if name not in _SPECIAL] + self.lacking

    @property
    def marian_ids(self) -> list[int | None]:
        """For each of our ids the id in vocab.json; None: bos, and rows that fill up to 8."""
        ids = self.ids
        found: list[int | None] = [None] * 4
        found[PAD], found[EOS], found[UNK] = ids["<pad>"], ids["</s>"], ids["<unk>"]
        found += [ids.get(name, ids["<unk>"]) for name in self.names]
        return found + [None] * (-len(found) % 8)

    @property
    def unknown(self) -> list[int]:
        """Our ids of the pieces that vocab.json lacks: each means <unk>."""
        end = 4 + len(self.names)
        return list(range(end - len(self.lacking), end))


@dataclass(frozen=True)
class MarianVocabulary:
    """SentencePiece models, and where their pieces come from."""

    model: bytes
    """of the target, or joint; serialised"""
    source_model: bytes | None
    """of the source; None: source.spm and target.spm cut text alike, so `model` is right for both
    languages"""
    target: Numbering
    """the pieces of `model`"""
    source: Numbering
    """those of the source; `target` itself where one vocab.json serves both"""

    @property
    def marian_ids(self) -> list[int | None]:
        """Those of the target, see `Numbering`."""
        return self.target.marian_ids

    @property
    def unknown(self) -> list[int]:
        """Those of the target, see `Numbering`."""
        return self.target.unknown


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
    else:
        of_source = of_target = _numbering(ids, [source, target])
    alike = [[(p.piece, p.score, p.type) for p in model.pieces] for model in (source, target)]
    source_model = _with_our_ids(source, of_source, USER_DEFINED)
    if alike[0] == alike[1] and not separate:
        return MarianVocabulary(source_model, None, of_target, of_source)
    target_model = _with_our_ids(target, of_target, UNUSED)
    return MarianVocabulary(target_model, source_model, of_target, of_source)


def _numbering(ids: dict[str, int], models: Sequence[Any]) -> Numbering:
    known = dict.fromkeys(name for model in models for name in _known(model))
    tags = [name for name in ids if name.startswith(">>") and name.endswith("<<")]
    lacking = [name for name in known if name not in ids]
    return Numbering(ids, lacking, [name for name in tags if name not in known])


def _known(model: Any) -> dict[str, Any]:
    """The pieces that text is cut into, by name."""
    return {p.piece: p for p in model.pieces if p.type not in (UNKNOWN, CONTROL)}


def _with_our_ids(model: Any, numbering: Numbering, of_tags: int) -> bytes:
    """A .spm, which is changed, with all pieces of a numbering in their order, serialised."""
    known, rare = _known(model), min(p.score for p in model.pieces) - _UNKNOWN_PENALTY
    specials = {PAD: "<pad>", EOS: "</s>", BOS: "<start>", UNK: "<unk>"}
    del model.pieces[:]
    for number in range(4):
        kind = UNKNOWN if number == UNK else CONTROL
        model.pieces.add(piece=specials[number], score=0.0, type=kind)
    for name in numbering.names:
        if name in numbering.tags:
            # ">>fra<<" before the text names the language to translate to; the space before a
            # sentence is part of its first piece.
            model.pieces.add(piece=_SPACE + name, score=0.0, type=of_tags)
        elif name in known:
            model.pieces.add(piece=name, score=known[name].score, type=known[name].type)
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


_SPECIAL = ("<pad>", "</s>", "<unk>")


def _ids(path: Path) -> dict[str, int]:
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from None
    if not isinstance(ids, dict) or sorted(ids.values()) != list(range(len(ids))):
        raise RunError(f"{path} is no vocabulary: it must give each piece an id of its own from 0.")
    if lacking := [name for name in _SPECIAL if name not in ids]:
        raise RunError(f"{path} lacks {', '.join(lacking)}.")
    return ids


def _model(path: Path) -> Any:
    try:
        return sentencepiece_model.parsed(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read as a SentencePiece model: {error}.") from None

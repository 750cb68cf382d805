"""What becomes of text before it is cut into pieces: rules that a SentencePiece model holds.

So all that reads the model does the same: training, translation, a SavedModel, CTranslate2.
SentencePiece's NFKC rules make one of compatible characters: `½`, `…`, full-width marks and the
joiners of Persian are lost, in translations too. Our own rules lose nothing that people write.
"""

import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import chain, permutations, product
from pathlib import Path
from typing import Any, Literal

import regex
import sentencepiece

from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.sentencepiece_model import SPACE

Rule = Literal["auto", "nfc", "visible", "identity", "nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf"]


# Soft hyphen, direction marks, zero-width space, word joiner: text is read alike without them.
# Joiners and the selectors of variants are not among them: they change what is read.
_INVISIBLE = regex.compile(r"(?V1)[\p{Default_Ignorable_Code_Point}--[\p{M}\p{L}\p{Join_C}]]")
_BLOCKS = (
    (0, 0xD800), (0xE000, 0x10000), (0x11080, 0x11360), (0x11480, 0x115E0), (0x1D100, 0x1D800),
    (0x1EE00, 0x1F300), (0x1FBF0, 0x1FC00), (0x2F800, 0x2FA20), (0xE0000, 0xE1000),
)  # fmt: skip
_IGNORABLE = regex.compile(r"\p{Default_Ignorable_Code_Point}")


@cache
def normalizer(rule: str) -> Callable[[str], str]:
    """What makes of a line its normal form, without blanks at its ends and double ones within."""
    return normalizer_of(_charsmap_model(rule))


def normalized(lines: Iterable[str], rule: str) -> Iterator[str]:
    """Lines to learn pieces from, their blanks as they may be."""
    normal = normalizer(rule)
    keeps_ascii = normal("A") == "A"
    return (line if keeps_ascii and line.isascii() else normal(line) for line in lines)


def normalizer_of(model: bytes) -> Callable[[str], str]:
    """What makes of a line its normal form by the rule of a serialised model."""
    made = sentencepiece.SentencePieceNormalizer(
        model_proto=model, add_dummy_prefix=False, escape_whitespaces=False,
        remove_extra_whitespaces=True,
    )  # fmt: skip
    return made.normalize


def changes(
    normal: Callable[[str], str], lines: Iterable[str]
) -> tuple[int, Counter[tuple[str, str]]]:
    """How many lines normalisation changes (blanks aside), and in how many it makes which of what.

    Placeholders are counted too, which a model with some leaves as they are.
    """
    count, made = 0, Counter[tuple[str, str]]()
    alone = lru_cache(None)(lambda text: normal(f"|{text}|")[1:-1])  # a lone space would be lost
    for line in lines:
        if normal(line) != " ".join(filter(None, line.split(" "))):
            count += 1
            new = {text: alone(text) for text in set(line)}
            if all(text == of for text, of in new.items()):  # letters with their marks
                new = {text: alone(text) for text in set(regex.findall(r"\X", line))}
            made.update((text, of) for text, of in new.items() if text not in (of, " "))
    return count, made


def with_rule(model: bytes, rule: str, folds: bool = False) -> bytes:
    """A serialised model that normalises text by another rule.

    `folds`: a character without a piece is read as those with pieces that it is made of or stands
    for: full-width letters and foreign digits as ASCII, a letter with a rare mark without it (but
    not where bytes can write it).
    """
    parsed = sentencepiece_model.parsed(model)
    known = frozenset(
        piece.piece for piece in parsed.pieces
        if piece.type == sentencepiece_model.NORMAL and len(piece.piece) == 1
    )  # fmt: skip
    has_bytes = any(piece.type == sentencepiece_model.BYTE for piece in parsed.pieces)
    table = sentencepiece_model.parsed(_charsmap_model(rule, known if folds else None, has_bytes))
    parsed.normalizer_spec.name = rule
    parsed.normalizer_spec.precompiled_charsmap = table.normalizer_spec.precompiled_charsmap
    loaded = sentencepiece.SentencePieceProcessor(model_proto=parsed.SerializeToString())
    return bytes(loaded.serialized_model_proto())


@cache
def _charsmap_model(
    rule: str, known: frozenset[str] | None = None, has_bytes: bool = False
) -> bytes:
    """A serialised model that holds the rule and nothing else; to fold, with `known` pieces."""
    sentencepiece.SetMinLogLevel(2)  # it prints what it compiles
    if rule not in ("nfc", "visible"):
        return _serialized(rule_name=rule)
    changes = dict(_compositions())
    if rule == "visible":
        changes |= _visible()
    if known is not None:
        folded = _folded(known, has_bytes)
        changes = folded | {
            old: "".join(folded.get(character, character) for character in new)
            for old, new in changes.items()
        }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.tsv"
        rows = (f"{_codes(old)}\t{_codes(new)}\n" for old, new in sorted(changes.items()))
        path.write_text("".join(rows), encoding="ascii")
        return _serialized(rule_tsv=str(path))


def _serialized(**rule: Any) -> bytes:
    return bytes(sentencepiece.SentencePieceNormalizer(**rule).serialized_model_proto())


@cache
def _codes(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)


@cache
def _characters() -> str:
    """Characters of blocks to which no Python adds a composed one or a digit, alike everywhere."""
    return "".join(map(chr, chain.from_iterable(range(*block) for block in _BLOCKS)))


@cache
def _decomposable() -> list[str]:
    return [one for one in _characters() if unicodedata.normalize("NFKD", one) != one]


@cache
def _compositions() -> Mapping[str, str]:
    """Each way to write a composed character with marks, and the character.

    A table cannot put any number of marks in order, but those that become one character.
    """
    compositions = {}
    for composed in _decomposable():
        parts = unicodedata.normalize("NFD", composed)
        if len(parts) == 1 or unicodedata.normalize("NFC", composed) != composed:
            continue
        if "\uac00" <= composed <= "\ud7a3":  # a Korean syllable, by the thousands: its parts alone
            compositions[parts] = composed
            continue
        for order, done in product(permutations(parts[1:]), range(len(parts) - 1)):
            start = unicodedata.normalize("NFC", parts[0] + "".join(order[:done]))
            text = start + "".join(order[done:])
            if unicodedata.normalize("NFC", text) == composed:
                compositions[text] = composed
    return compositions


def _visible() -> dict[str, str]:
    changes = dict.fromkeys(_INVISIBLE.findall(_characters()), "")
    changes |= dict.fromkeys(regex.findall(r"(?V1)[\p{Zs}--\x20]", _characters()), " ")
    for character in _decomposable():
        composed = unicodedata.normalize("NFC", character)
        if composed != character:  # which Unicode has twice, as Å or letters with a nukta
            changes[character] = composed
    return changes


def _folded(known: frozenset[str], has_bytes: bool) -> dict[str, str]:
    """Unknown characters -> what is known of them."""
    known_forms = dict.fromkeys(_IGNORABLE.findall(_characters()), "")
    known_forms |= {digit: str(int(digit)) for digit in filter(str.isdecimal, _characters())}
    for character in (one for one in _decomposable() if one not in known):
        parts = unicodedata.normalize("NFKD", character)
        whole = unicodedata.normalize("NFKC", character)
        letters = "".join(part for part in parts if not unicodedata.combining(part))
        for way in (whole,) if has_bytes else (whole, letters):
            if way and known.issuperset(way.replace(" ", SPACE)):
                known_forms.setdefault(character, way)
                break
    return {
        old: new for old, new in known_forms.items()
        if old not in known and known.issuperset(new.replace(" ", SPACE))
    }  # fmt: skip

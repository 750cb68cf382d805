"""What somebody who has not read the text should know of it, corpus by corpus, to be printed."""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import sentencepiece

from hvd_nmt.config import UNK
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.language import script_shares
from hvd_nmt.data.text import read_lines
from hvd_nmt.preparation import subwords
from hvd_nmt.preparation.corpora import CorpusFiles
from hvd_nmt.preparation.normalization import normalizer_of
from hvd_nmt.preparation.parts import PartState

SIDES = ("source", "target")
_SAMPLE = 20_000
"""pairs of a corpus by whose letters its scripts are told"""
_SHOWN = 3
"""the most frequent changes, or unknown characters"""
_LEAST_SHARE = 0.01
"""of the letters, to name a script"""

Models = Sequence[sentencepiece.SentencePieceProcessor]


def corpora(
    files: Sequence[CorpusFiles], train: PartState, encoded: PartState
) -> list[dict[str, Any]]:
    """Of each corpus its scripts, the sentences that are normalised, what usual rules would remove.

    Args:
        train: the training pairs before some were left out for their length.
        encoded: those that are kept, encoded.
    """
    shares: list[dict[str, dict[str, float]]] = [{} for _ in files]
    for side, path in zip(SIDES, train.text, strict=True):
        for number, of in enumerate(shares):
            own = np.flatnonzero(train.corpora == number)
            chosen = np.zeros(len(train.corpora), bool)
            chosen[own[subwords.spread(len(own), _SAMPLE)]] = True
            of[side] = script_shares(compress(read_lines(path), chosen))
    return [
        {
            "name": each.name,
            "languages": list(each.languages),
            "pairs": int((encoded.corpora == number).sum()),
            "scripts": shares[number],
            "normalized": {
                side: int(changed[encoded.corpora == number].sum())
                for side, changed in zip(SIDES, encoded.normalized, strict=True)
            },
            "usual_rules": dict(train.usual[number]),
        }
        for number, each in enumerate(files)
    ]


def normalization(models: Models, encoded: PartState) -> dict[str, Any]:
    """The rule of each side, and its most frequent changes: [text, what becomes of it, lines]."""
    return {
        side: {
            "rule": sentencepiece_model.parsed(model.serialized_model_proto()).normalizer_spec.name,
            "changes": [[*change, lines] for change, lines in changes.most_common(_SHOWN)],
        }
        for side, model, changes in zip(SIDES, models, encoded.changes, strict=True)
    }


def unknown(models: Models, part: PartState) -> dict[str, Any]:
    """Of each side the lines with characters that its vocabulary does not know, and those."""
    found = {}
    for side, model, path in zip(SIDES, models, part.text, strict=True):
        pieces, normal = "".join(subwords.pieces(model)), normalizer_of(model)
        lines = list(read_lines(path))
        ids = subwords.encode_lines(model, lines)
        lines = [line for line, own in zip(lines, ids, strict=True) if UNK in own]
        characters = Counter(c for line in lines for c in {*normal(line)} - {*pieces, " "})
        found[side] = {"lines": len(lines), "characters": characters.most_common(_SHOWN)}
    return found


def table(report: Mapping[str, Any]) -> Iterator[str]:
    """What was found, as lines to print."""
    for of in report["corpora"]:
        start = f"corpus {of['name']}:" if of["name"] else "train "
        letters = zip(of["languages"], map(_shares, of["scripts"].values()), strict=True)
        yield f"{start} letters: {'; '.join(map(' '.join, letters))}"
        for side in SIDES:
            rule, count = report["normalization"][side]["rule"], of["normalized"][side]
            if count:
                yield f"{start} normalization {rule} changes {side}s of {_of(count, of['pairs'])}"
        for option, count in of["usual_rules"].items():
            yield f"{start} {option} is off; it would remove {_of(count, of['pairs'])}"
            if option.startswith("--min-script") and 2 * count > of["pairs"]:
                yield (
                    f"{start} is hardly written in {' and '.join(of['languages'])}: check "
                    "--source-language and --target-language."
                )
    for side in SIDES:
        for old, new, lines in report["normalization"][side]["changes"]:
            yield f"train  {lines:,} {side}s: {_name(old)} becomes {_name(new) or 'nothing'}"
    for part, sides in report["unknown"].items():
        for side, of in sides.items():
            if of["lines"]:
                names = ", ".join(_name(character) for character, _ in of["characters"])
                yield f"{part:6} {side}s with characters without a piece: {of['lines']:,} ({names})"


def _shares(scripts: Mapping[str, float]) -> str:
    shown = ((name, share) for name, share in scripts.items() if share >= _LEAST_SHARE)
    return ", ".join(f"{name} {100 * share:.1f} %" for name, share in shown) or "none"


def _of(count: int, pairs: int) -> str:
    return f"{count:,} pairs ({100 * count / max(1, pairs):.2f} %)"


def _name(text: str) -> str:
    """Text of which each character can be seen."""
    if text == " ":
        return "a space"
    unseen = any(unicodedata.category(character)[0] in "CZM" for character in text)
    return " + ".join(f"U+{ord(c):04X}" for c in text) if unseen else text

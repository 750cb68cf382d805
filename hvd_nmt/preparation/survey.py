"""What somebody who has not read the text should know of it: lines to print."""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress

import numpy as np

from hvd_nmt.config import UNK
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.language import script_shares
from hvd_nmt.data.text import read_lines
from hvd_nmt.preparation import subwords
from hvd_nmt.preparation.corpora import CorpusFiles
from hvd_nmt.preparation.encoding import Models
from hvd_nmt.preparation.normalization import normalizer_of
from hvd_nmt.preparation.parts import PartState
from hvd_nmt.preparation.quality import SIDES

_SAMPLE = 20_000
"""pairs of a corpus by whose letters its scripts are told"""
_SHOWN = 3
"""the most frequent changes, or unknown characters"""
_LEAST_SHARE = 0.01
"""of the letters, to name a script"""


def lines(
    corpora: Sequence[CorpusFiles], train: PartState, made: Mapping[str, PartState], models: Models
) -> Iterator[str]:
    """Of each corpus its scripts, what is normalised, what usual rules would remove; the unknown.

    Args:
        train: the training pairs before some went for their length.
        made: the parts in the end.
    """
    for number, corpus in enumerate(corpora):
        start = f"corpus {corpus.name}:" if corpus.name else "train "
        own = np.flatnonzero(train.corpora == number)
        chosen = np.zeros(train.pairs, bool)
        chosen[own[subwords.spread(len(own), _SAMPLE)]] = True
        letters = (_shares(compress(read_lines(path), chosen)) for path in train.text)
        of_sides = zip(corpus.languages, letters, strict=True)
        yield f"{start} letters: {'; '.join(map(' '.join, of_sides))}"
        encoded = made["train"].corpora == number
        for side, changed in zip(SIDES, made["train"].normalized, strict=True):
            if count := int(changed[encoded].sum()):
                yield f"{start} normalization changes {side}s of {_share(count, len(own))}"
        for option, count in train.usual[number].items():
            yield f"{start} {option} is off; it would remove {_share(count, len(own))}"
            if option.startswith("--min-script") and 2 * count > len(own):
                yield (
                    f"{start} is hardly written in {' and '.join(corpus.languages)}: check "
                    "--source-language and --target-language."
                )
    specs = (sentencepiece_model.parsed(model.serialized_model_proto()) for model in models)
    rules = (
        f"{spec.normalizer_spec.name} of {side}s" for side, spec in zip(SIDES, specs, strict=True)
    )
    yield f"train  normalization: {', '.join(rules)}"
    for side, changes in zip(SIDES, made["train"].changes, strict=True):
        for (old, new), count in changes.most_common(_SHOWN):
            yield f"train  {count:,} {side}s: {_name(old)} becomes {_name(new) or 'nothing'}"
    for part in (name for name in ("dev", "test") if name in made):
        for side, model, path in zip(SIDES, models, made[part].text, strict=True):
            text, normal = list(read_lines(path)), normalizer_of(model)
            encoded = subwords.encode_lines(model, text)
            unknown = [normal(line) for line, ids in zip(text, encoded, strict=True) if UNK in ids]
            if unknown:
                known = {*"".join(subwords.pieces(model)), " "}
                counts = Counter(one for line in unknown for one in {*line} - known)
                names = ", ".join(_name(one) for one, _ in counts.most_common(_SHOWN))
                yield f"{part:6} {side}s with unknown characters: {len(unknown):,} ({names})"


def _shares(text: Iterator[str]) -> str:
    shares = script_shares(text).items()
    named = (f"{name} {100 * share:.1f} %" for name, share in shares if share >= _LEAST_SHARE)
    return ", ".join(named) or "none"


def _share(count: int, of: int) -> str:
    return f"{count:,} pairs ({100 * count / of:.2f} %)"


def _name(text: str) -> str:
    """Text of which each character can be seen."""
    if text == " ":
        return "a space"
    unseen = any(unicodedata.category(character)[0] in "CZM" for character in text)
    return " + ".join(f"U+{ord(c):04X}" for c in text) if unseen else text

"""What somebody who has not read the text should know of it: lines to print."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress

import numpy as np

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import UNK
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.language import named, script_shares, scripts
from hvd_nmt.data.sentencepiece_model import without_tags
from hvd_nmt.data.text import read_lines
from hvd_nmt.preparation import cleaning, subwords
from hvd_nmt.preparation.corpus_files import CorpusFiles
from hvd_nmt.preparation.encoding import Models
from hvd_nmt.preparation.normalization import changes, normalizer, normalizer_of
from hvd_nmt.preparation.parts import PartState
from hvd_nmt.preparation.quality import SIDES

_SAMPLE = 1_000
"""clean pairs of a corpus that are looked at, evenly spread"""
_SHOWN = 3
"""the most frequent changes, or unknown characters"""
_LEAST_SHARE = 0.01
"""share of the letters of a script that is named"""


def lines(
    corpora: Sequence[CorpusFiles], parts: Mapping[str, PartState], models: Models
) -> Iterator[str]:
    """Scripts, normalised text, pairs that usual rules would remove; then unknown characters.

    The part "train" is that before some pairs went for their length.
    """
    serialized = [bytes(model.serialized_model_proto()) for model in models]
    normal = [*map(normalizer_of, serialized)]
    specs = map(sentencepiece_model.parsed, serialized)
    rules = zip((spec.normalizer_spec.name for spec in specs), SIDES, strict=True)
    yield f"train  normalization: {', '.join(f'{rule} of {side}s' for rule, side in rules)}"
    train = parts["train"]
    for number, corpus in enumerate(corpora):
        start = f"corpus {corpus.name}:" if corpus.name else "train "
        places, chosen = np.flatnonzero(train.kept["corpus"] == number), np.zeros(train.pairs, bool)
        chosen[places[subwords.spread(len(places), _SAMPLE)]] = True
        sources, targets = (list(compress(read_lines(path), chosen)) for path in train.text)
        sample = [without_tags(line, corpus.tags) for line in sources], targets
        for remark in _of_corpus(corpus, sample, normal):
            yield f"{start} {remark}"
    for part in (name for name in ("dev", "test") if name in parts):
        for side, model, function, path in zip(
            SIDES, models, normal, parts[part].text, strict=True
        ):
            text = list(read_lines(path))
            known = {*"".join(subwords.pieces(model)), " "}
            ids = subwords.encode_lines(model, text)
            unknown = [
                {*function(line)} - known
                for line, of_line in zip(text, ids, strict=True) if UNK in of_line
            ]  # fmt: skip
            if unknown:
                counts = Counter(one for characters in unknown for one in characters)
                names = ", ".join(named(one) for one, _ in counts.most_common(_SHOWN))
                yield f"{part:6} {side}s with unknown characters: {len(unknown):,} ({names})"


def _of_corpus(
    corpus: CorpusFiles, sample: Sequence[list[str]], normal: Sequence[Callable[[str], str]]
) -> Iterator[str]:
    of, letters = max(len(sample[0]), 1), []
    for language, text in zip(corpus.languages, sample, strict=True):
        shares = script_shares(text).items()
        shown = (f"{name} {100 * share:.1f} %" for name, share in shares if share >= _LEAST_SHARE)
        letters.append(f"{language} {', '.join(shown) or 'none'}")
    yield f"letters: {'; '.join(letters)}"
    for code in corpus.languages:
        try:
            scripts(code)
        except ConfigError as error:
            yield f"{error} Until then its words are those between blanks."
    for side, function, text in zip(SIDES, normal, sample, strict=True):
        count, made = changes(function, text)
        most = (f"{named(a)} to {named(b) or 'nothing'}" for (a, b), _ in made.most_common(_SHOWN))
        if count:
            yield f"normalization changes {100 * count / of:.2f} % of {side}s: {', '.join(most)}"
    if would := changes(normalizer("visible"), sample[1])[0] - changes(normal[1], sample[1])[0]:
        yield (
            f"--normalization-rule visible is off; it would change {100 * would / of:.2f} % of "
            "targets"
        )
    for option, cleaner in cleaning.usual(corpus.rules, corpus.languages).items():
        count = sum(cleaner(*pair)[0] is not None for pair in zip(*sample, strict=True))
        if count:
            yield f"{option} is off; it would remove {100 * count / of:.2f} %"
        if option.startswith("--min-script") and 2 * count > of:
            languages = " and ".join(corpus.languages)
            yield f"letters hardly fit {languages}: check --source-language, --target-language"

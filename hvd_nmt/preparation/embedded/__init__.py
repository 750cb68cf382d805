"""The embedded English-German corpus: sentences generated from CLDR and numbers in words.

It needs no download, so that the package can train, translate and be tested anywhere. The words
come from the package's dependencies (Babel's CLDR: countries, languages, cities, dates, times,
units, currencies; num2words: numbers), the grammar and the sentence frames from this sub-package.
An English sentence determines its German one.

- `frames`   the sentences, in a small template notation
- `frame`    that notation: pools of inflected words, frames with slots
- `people`, `places`, `dates`, `things`, `amounts`    the pools
- `words`    clean text, numbers in words, German articles
"""

import random
from collections.abc import Sequence

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.preparation.embedded.frame import Frame
from hvd_nmt.preparation.embedded.frames import all_frames

__all__ = ["combinations", "generate"]

_PATIENCE = 50_000
"""Draws in a row that may bring nothing new before the space counts as exhausted."""


def generate(
    seed: int, train: int = 52_000, dev: int = 500, test: int = 500
) -> dict[str, list[tuple[str, str]]]:
    """Generates the corpus: a pure function of its arguments (and of Babel's and num2words' data).

    All sources are distinct over the three parts. The test and dev parts are drawn first, so that
    they stay the same when only `train` grows.

    Args:
        seed: Any integer; its sign does not matter (as in `random.Random`).
        train: Number of training pairs.
        dev: Number of development pairs.
        test: Number of test pairs.

    Returns:
        {"train": [(english, german), ...], "dev": ..., "test": ...}

    Raises:
        ConfigError: If a count is negative, or if there are not that many distinct sentences.
    """
    counts = {"train": train, "dev": dev, "test": test}
    for name, count in counts.items():
        if count < 0:
            raise ConfigError(
                f"the embedded corpus cannot have {count} {name} pairs; give 0 or more"
            )
    possible = combinations()
    if sum(counts.values()) > possible:
        raise _too_many(sum(counts.values()), possible)
    rng = random.Random(seed)
    seen: set[str] = set()
    drawn = {name: _draw(rng, counts[name], seen) for name in ("test", "dev", "train")}
    return {name: drawn[name] for name in counts}


def combinations() -> int:
    """The ways to fill the frames: an upper bound on the distinct pairs."""
    return sum(frame.combinations for frame in all_frames())


def _draw(rng: random.Random, count: int, seen: set[str]) -> list[tuple[str, str]]:
    """Draws pairs whose English is not in `seen`, and adds it there."""
    choices: Sequence[Frame] = all_frames()
    pairs: list[tuple[str, str]] = []
    misses = 0
    while len(pairs) < count:
        english, german = choices[int(len(choices) * rng.random())].draw(rng)
        if english in seen:
            misses += 1
            if misses > _PATIENCE:
                raise _too_many(count, len(seen))
            continue
        misses = 0
        seen.add(english)
        pairs.append((english, german))
    return pairs


def _too_many(wanted: int, possible: int) -> ConfigError:
    return ConfigError(
        f"{wanted:,} pairs of the embedded corpus were asked for, but only about {possible:,} "
        f"distinct ones can be made; ask for fewer"
    )

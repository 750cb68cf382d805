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

from hvd_nmt.preparation.embedded.frames import all_frames

TEXT_VERSION = "a8792c521a621ab991acf6760952ed2f3acb1a82d9451949eb0130d0fac64e03"
"""Stands for the text in the request of a prepared directory: give it another value when the text
changes, and at no other time. (Version 0.1.0 wrote the hash of its code, and the same text.)"""


def generate(
    seed: int, train: int = 52_000, dev: int = 500, test: int = 500
) -> dict[str, list[tuple[str, str]]]:
    """Generates the corpus: a pure function of its arguments (and of Babel's and num2words' data).

    All sources are distinct over the three parts. The test and dev parts are drawn first, so that
    they stay the same when only `train` grows.

    Args:
        seed: any integer; its sign does not matter (as in `random.Random`).
        train: number of training pairs.
        dev: number of development pairs.
        test: number of test pairs.

    Returns:
        {"train": [(english, german), ...], "dev": ..., "test": ...}
    """
    counts = {"train": train, "dev": dev, "test": test}
    rng = random.Random(seed)
    seen: set[str] = set()
    drawn = {name: _draw(rng, counts[name], seen) for name in ("test", "dev", "train")}
    return {name: drawn[name] for name in counts}


def _draw(rng: random.Random, count: int, seen: set[str]) -> list[tuple[str, str]]:
    """Draws pairs whose English is not in `seen`, and adds it there."""
    frames = all_frames()
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        english, german = frames[int(len(frames) * rng.random())].draw(rng)
        if english not in seen:
            seen.add(english)
            pairs.append((english, german))
    return pairs

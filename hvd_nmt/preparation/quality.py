"""How good a training set is: lengths, sentences over the limit, duplicates, leakage.

`prepare` writes it into the data directory as `quality.json`. Counts of lines, bytes, tokens and
rules are those of the manifest; counted here are

- lengths: tokens of each sentence with eos, before anything is cut or left out for its length;
  where pairs are left out for it, each unknown character counts, as it does for that;
- over the limit: sentences longer than `max_length`, which are cut or left out;
- duplicates: pairs equal to an earlier one, and sources and targets equal to an earlier one;
- leakage: training pairs whose source or target is also a sentence of dev or test. BLEU on such
  sentences is too good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from hvd_nmt.common.units import data_size
from hvd_nmt.data.corpus import Part, Side
from hvd_nmt.preparation.cleaning import leaks, pair_keys

REPORT = "quality.json"
FORMAT_VERSION = 1
LONGEST_COUNTED = 1024
"""tokens: the histograms count longer sentences as of this length"""
SIDES = ("source", "target")


@final
class Quality:
    """How long training sentences are. Chunks are counted apart and merged; can be pickled."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self._histograms = np.zeros((2, LONGEST_COUNTED + 1), np.int64)
        self._tokens = np.zeros(2, np.int64)
        self._longest = np.zeros(2, np.int64)
        self._over = np.zeros(3, np.int64)  # sources, targets, pairs with either

    def add(
        self, source_lengths: Sequence[int] | np.ndarray, target_lengths: Sequence[int] | np.ndarray
    ) -> None:
        """Counts some pairs by their tokens, eos counted, not cut to max_length."""
        lengths = np.array([source_lengths, target_lengths], np.int64)
        if not lengths.size:
            return
        for side in (0, 1):
            counted = np.minimum(lengths[side], LONGEST_COUNTED)
            self._histograms[side] += np.bincount(counted, minlength=LONGEST_COUNTED + 1)
        self._tokens += lengths.sum(axis=1)
        self._longest = np.maximum(self._longest, lengths.max(axis=1))
        over = lengths > self.max_length
        self._over += *over.sum(axis=1), over.any(axis=0).sum()

    def merge(self, other: Quality) -> None:
        """Adds what another has counted of other pairs."""
        self._histograms += other._histograms
        self._tokens += other._tokens
        self._longest = np.maximum(self._longest, other._longest)
        self._over += other._over

    def counted(self, keys: np.ndarray, held_out: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """A part of `report`, by the `cleaning.keys` of these pairs and of each other part."""
        n_pairs = len(keys)
        over = dict(zip((*SIDES, "pairs"), map(int, self._over), strict=True))
        duplicates = {
            "source": _repeated(keys[:, 0]),
            "target": _repeated(keys[:, 1]),
            "pairs": _repeated(pair_keys(keys)),
        }
        return {
            "max_length": self.max_length,
            "over_max_length": _shares(over, n_pairs),
            "lengths": {side: self._lengths(index, n_pairs) for index, side in enumerate(SIDES)},
            "duplicates": _shares(duplicates, n_pairs),
            "leakage": {part: _leakage(keys, held) for part, held in held_out.items()},
        }

    def _lengths(self, side: int, n_pairs: int) -> dict[str, Any]:
        histogram, percents = self._histograms[side], (5, 50, 95, 99)
        places = np.searchsorted(np.cumsum(histogram), np.array(percents) * n_pairs / 100)
        return {
            "tokens": int(self._tokens[side]),
            "mean": round(float(self._tokens[side]) / max(1, n_pairs), 3),
            **{f"p{percent}": int(at) for percent, at in zip(percents, places, strict=True)},
            "longest": int(self._longest[side]),
            "histogram": np.trim_zeros(histogram, "b").tolist(),
        }


def report(
    languages: tuple[str, str], parts: Mapping[str, Part], counted: Mapping[str, Any]
) -> dict[str, Any]:
    """All that is known of the data, as plain JSON values.

    Args:
        parts: what the manifest records of "train", "dev" and "test".
        counted: what `Quality.counted` gave, or a copy of it read from JSON.
    """
    return {
        "format_version": FORMAT_VERSION,
        "languages": dict(zip(SIDES, languages, strict=True)),
        "parts": {name: _part(part) for name, part in parts.items()},
        **counted,
    }


def write(directory: Path, report: Mapping[str, Any]) -> None:
    """Writes `quality.json` into an existing directory."""
    text = json.dumps(report, indent=1, ensure_ascii=False)
    (directory / REPORT).write_text(text + "\n", encoding="utf-8", newline="\n")


def table(report: Mapping[str, Any]) -> str:
    """What a report says, as lines to print."""
    lines = []
    for name, part in report["parts"].items():
        read = " + ".join(data_size(1e6 * part[side]["read_mb"]) for side in SIDES)
        kept = " + ".join(data_size(1e6 * part[side]["kept_mb"]) for side in SIDES)
        lines.append(
            f"{name:6} {part['pairs_read']:,} pairs, {read} read; "
            f"{part['pairs']:,} pairs, {kept} kept"
        )
        for rule, count in part["removed"].items():
            share = _percent(count, part["pairs_read"])
            lines.append(f"{'':6} {count:>12,}  {share:>8}  removed: {rule}")
    limit, over = report["max_length"], report["over_max_length"]
    duplicates = report["duplicates"]
    lines += [
        f"train  over {limit} tokens: {_pairs(over)}; "
        f"{over['source']:,} sources, {over['target']:,} targets",
        f"train  duplicates: {_pairs(duplicates)}; repeated "
        f"{duplicates['source']:,} sources, {duplicates['target']:,} targets",
    ]
    for part, found in report["leakage"].items():
        lines.append(
            f"train  leakage from {part}: {found['train_pairs']:,} training pairs; of its "
            f"{found['pairs']:,} pairs, {found['source']:,} sources, {found['target']:,} targets "
            f"and {found['both']:,} whole pairs are in train"
        )
    for side in SIDES:
        of = report["lengths"][side]
        lines.append(
            f"train  {report['languages'][side]} tokens a sentence: mean {of['mean']:.1f}, "
            f"median {of['p50']}, 95 % up to {of['p95']}, 99 % up to {of['p99']}, "
            f"longest {of['longest']:,}"
        )
    return "\n".join(lines)


def _part(part: Part) -> dict[str, Any]:
    return {
        "pairs_read": part.pairs_read,
        "pairs": part.pairs,
        "removed": dict(sorted(part.removed.items(), key=lambda item: (-item[1], item[0]))),
        "truncated": part.truncated,
        "source": _side(part.source),
        "target": _side(part.target),
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "read_mb": round(side.text_bytes / 1e6, 6),
        "kept_mb": round(side.kept_text_bytes / 1e6, 6),
        "tokens": side.tokens or None,  # test is not encoded
    }


def _repeated(values: np.ndarray) -> int:
    """How many values there are beside the first of each kind."""
    return len(values) - len(np.unique(values))


def _leakage(train: np.ndarray, held_out: np.ndarray) -> dict[str, int]:
    """Counts the training pairs that leak, and the pairs of the other part that they give away."""
    leaking = train[leaks(train, held_out).any(axis=1)]
    given_away = leaks(held_out, leaking)
    return {
        "pairs": len(held_out),
        "train_pairs": len(leaking),
        "source": int(given_away[:, 0].sum()),
        "target": int(given_away[:, 1].sum()),
        "both": int(np.isin(pair_keys(held_out), pair_keys(leaking)).sum()),
    }


def _shares(counts: Mapping[str, int], of: int) -> dict[str, Any]:
    return {**counts, "share_of_pairs": round(counts["pairs"] / max(1, of), 6), "of": of}


def _pairs(counts: Mapping[str, int]) -> str:
    return f"{counts['pairs']:,} pairs ({_percent(counts['pairs'], counts['of'])})"


def _percent(count: int, of: int) -> str:
    return f"{100 * count / max(1, of):.2f} %"

"""How good a training set is: lengths, sentences over the limit, duplicates, leakage.

`prepare` writes it into the data directory: `quality.json`, and `lengths.png` for the eye. The
counts of lines, bytes, tokens and rules are those of the manifest; what is counted here besides are

- lengths: tokens of each sentence with eos, before anything is cut or left out for its length;
  where pairs are left out for it, each unknown character counts, as it does for that;
- over the limit: sentences longer than `max_length`, which are cut or left out;
- duplicates: pairs equal to an earlier one, and sources and targets equal to an earlier one;
- leakage: training pairs whose source or target is also a sentence of dev or test. What was learned
  by heart says nothing of quality, so BLEU on such sentences is too good.

Memory: 16 bytes a pair, two hashes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from hvd_nmt.common.units import data_size
from hvd_nmt.data.corpus import Part, Side
from hvd_nmt.preparation.cleaning import Pair, keys, leaks, pair_keys

REPORT = "quality.json"
FIGURE = "lengths.png"
FORMAT_VERSION = 1
LONGEST_COUNTED = 1024
"""tokens: the histograms count longer sentences as of this length"""
SIDES = ("source", "target")
_AT_ONCE = 1_000_000
"""pairs that are looked for in other parts at once"""


@final
class Quality:
    """What is counted of the training pairs. Chunks are counted apart and merged. Can be pickled.

    Args:
        max_length: most tokens of a sentence, eos counted.
        tags: that sources may begin with, see `cleaning.keys`.
    """

    def __init__(self, max_length: int, tags: Sequence[str] = ()) -> None:
        self.max_length, self.tags = max_length, tags
        self._histograms = np.zeros((2, LONGEST_COUNTED + 1), np.int64)
        self._tokens = np.zeros(2, np.int64)
        self._longest = np.zeros(2, np.int64)
        self._over = np.zeros(3, np.int64)  # sources, targets, pairs with either
        self._keys: list[np.ndarray] = []

    def add(
        self,
        pairs: Sequence[Pair],
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
    ) -> None:
        """Counts some cleaned pairs.

        Args:
            pairs: their text.
            source_lengths: tokens of each source, eos counted, not cut to max_length.
            target_lengths: the same of the targets.
        """
        if not pairs:
            return
        lengths = np.array([source_lengths, target_lengths], np.int64)
        for side in (0, 1):
            counted = np.minimum(lengths[side], LONGEST_COUNTED)
            self._histograms[side] += np.bincount(counted, minlength=LONGEST_COUNTED + 1)
        self._tokens += lengths.sum(axis=1)
        self._longest = np.maximum(self._longest, lengths.max(axis=1))
        over = lengths > self.max_length
        self._over += *over.sum(axis=1), over.any(axis=0).sum()
        self._keys.append(keys(pairs, self.tags))

    def merge(self, other: Quality) -> None:
        """Adds what another has counted of other pairs."""
        self._histograms += other._histograms
        self._tokens += other._tokens
        self._longest = np.maximum(self._longest, other._longest)
        self._over += other._over
        self._keys += other._keys

    def counted(self, held_out: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """What was counted, as plain JSON values: a part of `report`.

        Args:
            held_out: the `cleaning.keys` of the pairs of each part but "train".
        """
        all_keys = np.concatenate([np.zeros((0, 2), np.uint64), *self._keys])
        self._keys = [all_keys]  # the same once, not twice: they are 16 bytes a pair
        n_pairs = len(all_keys)
        over = dict(zip((*SIDES, "pairs"), map(int, self._over), strict=True))
        duplicates = {
            "source": _repeated(all_keys[:, 0].copy()),
            "target": _repeated(all_keys[:, 1].copy()),
            "pairs": _repeated(pair_keys(all_keys)),
        }
        return {
            "max_length": self.max_length,
            "over_max_length": _shares(over, n_pairs),
            "lengths": {side: self._lengths(index, n_pairs) for index, side in enumerate(SIDES)},
            "duplicates": _shares(duplicates, n_pairs),
            "leakage": {part: _leakage(all_keys, held) for part, held in held_out.items()},
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
        languages: source and target language.
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
    """Writes `quality.json` and `lengths.png` into an existing directory."""
    text = json.dumps(report, indent=1, ensure_ascii=False)
    (directory / REPORT).write_text(text + "\n", encoding="utf-8", newline="\n")
    _draw(directory / FIGURE, report)


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
    """What the manifest records of a part, for reading."""
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
    """How many values there are beside the first of each kind; sorts them."""
    values.sort()
    return int(np.count_nonzero(values[1:] == values[:-1]))


def _leakage(train: np.ndarray, held_out: np.ndarray) -> dict[str, int]:
    """Counts the training pairs that leak, and the pairs of the other part that they give away."""
    # In blocks, and then only with what was found: `np.isin` sorts copies of both.
    blocks = [train[first : first + _AT_ONCE] for first in range(0, len(train), _AT_ONCE)]
    found = (block[leaks(block, held_out).any(axis=1)] for block in blocks)
    leaking = np.concatenate([train[:0], *found])
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


def _draw(path: Path, report: Mapping[str, Any]) -> None:
    """Draws both histograms. No pyplot: a figure here is a value without global state."""
    # Here and not above: worker processes that only count need not load a drawing library.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    limit = report["max_length"]
    for side, colour in zip(SIDES, ("#1f6fb4", "#d2691e"), strict=True):
        of = report["lengths"][side]
        lengths = np.arange(len(of["histogram"]))
        label = f"{report['languages'][side]}: mean {of['mean']:.1f}, 99 % up to {of['p99']}"
        axes.step(lengths, of["histogram"], where="mid", color=colour, label=label)
        axes.fill_between(lengths, of["histogram"], step="mid", color=colour, alpha=0.15)
    over = report["over_max_length"]
    label = f"limit {limit}: {_pairs(over)} are longer"
    axes.axvline(limit, color="0.3", linestyle="--", linewidth=1.0, label=label)
    rightmost = max(report["lengths"][side]["p99"] for side in SIDES)
    axes.set_xlim(0, 1.1 * max(limit, rightmost))
    axes.set_ylim(bottom=0)
    axes.set(xlabel="tokens in a sentence, with eos", ylabel="sentences")
    axes.set_title(f"Lengths of {over['of']:,} training pairs")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(edgecolor="none")
    # Without the program's name the same data give the same bytes.
    figure.savefig(path, metadata={"Software": None})

"""What is known of the prepared text: `quality.json` in the data directory, and what is printed.

Lengths are tokens with eos, before anything is cut or removed for its length. Leakage: training
pairs whose source or target is also a sentence of dev or test, on which BLEU is too good.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hvd_nmt.common.units import data_size
from hvd_nmt.data import corpus
from hvd_nmt.data.corpus import Part
from hvd_nmt.preparation.cleaning import leaks, pair_keys

REPORT = "quality.json"
SIDES = ("source", "target")
LONGEST_COUNTED = 1024
"""tokens: the histograms count longer sentences as of this length"""


def report(
    languages: tuple[str, str], parts: Mapping[str, Part], lengths: np.ndarray, keys: np.ndarray,
    held_out: Mapping[str, np.ndarray], max_length: int,
) -> dict[str, Any]:  # fmt: skip
    """All that is known of the data, as plain JSON values.

    Args:
        parts: what the manifest records of "train", "dev" and "test".
        lengths: int [2, pairs], tokens of the sources and targets of training, of `encode_part`.
        keys: their `cleaning.keys`.
        held_out: those of each other part.
    """
    over = lengths > max_length
    too_long = [int(which.sum()) for which in (*over, over.any(axis=0))]
    of_pairs = keys[:, 0], keys[:, 1], pair_keys(keys)
    return {
        "format_version": 1,
        "languages": dict(zip(SIDES, languages, strict=True)),
        "parts": {name: _part(part) for name, part in parts.items()},
        "max_length": max_length,
        "over_max_length": _shares(too_long, len(keys)),
        "lengths": {side: _lengths(of) for side, of in zip(SIDES, lengths, strict=True)},
        "duplicates": _shares([len(keys) - len(np.unique(key)) for key in of_pairs], len(keys)),
        "leakage": {part: _leakage(keys, held) for part, held in held_out.items()},
    }


def summary(out: Path) -> str:
    """The lines that `prepare` prints when it is done."""
    manifest = corpus.load(out).manifest
    report = json.loads((out / REPORT).read_text(encoding="utf-8"))
    lines = [*table(report), *report["survey"]]
    lines += [
        f"{name}: {part.truncated:,} pairs cut to {manifest.max_length} tokens"
        for name, part in reversed(manifest.parts.items())
        if part.truncated
    ]
    removed = report["removed"]
    for mixed in manifest.corpora:
        as_is = isinstance(mixed.weight, str)
        weight = "each once an epoch" if as_is else f"weight {mixed.weight:g}"
        pairs = f"{mixed.pairs['train']:,} training pairs"
        words = ", ".join((mixed.direction, pairs, weight, *mixed.tags))
        lines.append(f"corpus {mixed.name}: {words}")
        counts = ", ".join(f"{pairs:,} {rule}" for rule, pairs in removed[mixed.name].items())
        lines += [f"corpus {mixed.name}: removed {counts}"] if counts else []
    kind = "joint"
    if source_rows := manifest.source_vocabulary_size:
        kind, pieces = "target", manifest.source_vocabulary_pieces
        lines.append(f"source vocabulary: {pieces:,} pieces, {source_rows:,} embedding rows")
    rows = f"{manifest.vocabulary_size:,} embedding rows"
    asked = 0 if "vocabulary" in manifest.request else manifest.request.get("pieces", 0)
    if manifest.vocabulary_pieces < asked:
        rows += f"; {asked:,} were asked for: the text has no more"
    lines.append(f"{kind} vocabulary: {manifest.vocabulary_pieces:,} pieces, {rows}")
    lines.append(f"data {manifest.hash[:12]}, vocabulary {manifest.vocabulary_hash[:12]} in {out}")
    return "\n".join(lines)


def table(report: Mapping[str, Any]) -> Iterator[str]:
    """What a report says, as lines to print."""
    for name, part in report["parts"].items():
        read, kept = (
            " + ".join(data_size(1e6 * part[side][f"{which}_mb"]) for side in SIDES)
            for which in ("read", "kept")
        )
        pairs_read = part["pairs_read"]
        tagged = any(part[side]["kept_mb"] > part[side]["read_mb"] for side in SIDES)
        kept += " kept, tags counted" if tagged else " kept"
        yield f"{name:6} {pairs_read:,} pairs, {read} read; {part['pairs']:,} pairs, {kept}"
        for rule, count in part["removed"].items():
            yield f"{'':6} {count:>12,}  {_percent(count, pairs_read):>8}  removed: {rule}"
    over = f"over {report['max_length']} tokens"
    for what, of in ((over, report["over_max_length"]), ("kept repeats", report["duplicates"])):
        yield (
            f"train  {what}: {of['pairs']:,} pairs ({_percent(of['pairs'], of['of'])}), "
            f"{of['source']:,} sources, {of['target']:,} targets"
        )
    for part, leaked in report["leakage"].items():
        yield (
            f"train  leakage from {part}: {leaked['train_pairs']:,} training pairs; "
            f"{leaked['source']:,} sources, {leaked['target']:,} targets, {leaked['both']:,} both "
            f"of its {leaked['pairs']:,}"
        )
    for side in SIDES:
        of = report["lengths"][side]
        yield (
            f"train  {report['languages'][side]}: mean {of['mean']:.1f} tokens, "
            f"median {of['p50']}, 95 % up to {of['p95']}, 99 % up to {of['p99']}, "
            f"longest {of['longest']:,}"
        )


def _part(part: Part) -> dict[str, Any]:
    return {
        "pairs_read": part.pairs_read,
        "pairs": part.pairs,
        "removed": dict(sorted(part.removed.items(), key=lambda item: (-item[1], item[0]))),
        "truncated": part.truncated,
        **{
            name: {
                "read_mb": round(side.text_bytes / 1e6, 6),
                "kept_mb": round(side.kept_text_bytes / 1e6, 6),
                "tokens": side.tokens or None,  # test is not encoded
            }
            for name, side in zip(SIDES, (part.source, part.target), strict=True)
        },
    }


def _lengths(lengths: np.ndarray) -> dict[str, Any]:
    histogram = np.bincount(np.minimum(lengths, LONGEST_COUNTED))
    percents = (5, 50, 95, 99)
    places = np.searchsorted(np.cumsum(histogram), np.array(percents) * len(lengths) / 100)
    return {
        "tokens": int(lengths.sum()),
        "mean": round(float(lengths.sum()) / max(1, len(lengths)), 3),
        **{f"p{percent}": int(at) for percent, at in zip(percents, places, strict=True)},
        "longest": int(lengths.max(initial=0)),
        "histogram": histogram.tolist(),
    }


def _leakage(train: np.ndarray, held_out: np.ndarray) -> dict[str, int]:
    """Counts the training pairs that leak, and the pairs of the other part that they give away."""
    leaking = train[leaks(train, held_out).any(axis=1)]
    given_away = leaks(held_out, leaking)
    pairs, leaking_pairs = (pair_keys(np.sort(sides, axis=1)) for sides in (held_out, leaking))
    return {
        "pairs": len(held_out),
        "train_pairs": len(leaking),
        "source": int(given_away[:, 0].sum()),
        "target": int(given_away[:, 1].sum()),
        "both": int(np.isin(pairs, leaking_pairs).sum()),
    }


def _shares(counts: list[int], of: int) -> dict[str, Any]:
    names = dict(zip((*SIDES, "pairs"), counts, strict=True))
    return {**names, "share_of_pairs": round(names["pairs"] / max(1, of), 6), "of": of}


def _percent(count: int, of: int) -> str:
    return f"{100 * count / max(1, of):.2f} %"

"""What `prepare` prints when it is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from hvd_nmt.data import corpus
from hvd_nmt.preparation import quality


def summary(
    out: Path, wanted_pieces: int, wanted_of_source: int, seconds: Mapping[str, float]
) -> str:
    """The lines to print: the quality of the text, the vocabulary, the times, the hashes.

    `wanted_pieces` were asked for (0: none in particular), and `wanted_of_source` for the source's
    own vocabulary (0: as the target's).
    """
    manifest = corpus.load(out).manifest
    report = json.loads((out / quality.REPORT).read_text(encoding="utf-8"))
    stages = ", ".join(f"{name} {stage_s:.1f} s" for name, stage_s in seconds.items())
    cut = [
        f"{name}: {part.truncated:,} pairs cut to {manifest.max_length} tokens"
        for name, part in reversed(manifest.parts.items())
        if part.truncated
    ]
    return "\n".join(
        [
            quality.table(report),
            *cut,
            *_corpora(manifest),
            *_vocabularies(manifest, wanted_pieces, wanted_of_source),
            f"time: {stages}",
            f"data {manifest.hash[:12]}, vocabulary {manifest.vocabulary_hash[:12]} in {out}",
        ]
    )


def _corpora(manifest: corpus.Manifest) -> list[str]:
    return [
        f"corpus {each.name}: {each.direction}, {each.pairs['train']:,} training pairs, "
        + (each.weight if isinstance(each.weight, str) else f"weight {each.weight:g}")
        + "".join(f", {tag}" for tag in each.tags)
        for each in manifest.corpora
    ]


def _vocabularies(manifest: corpus.Manifest, wanted: int, wanted_of_source: int) -> list[str]:
    """A line of the joint vocabulary, or one of each side's."""
    pieces, rows = manifest.vocabulary_pieces, manifest.vocabulary_size
    found = f"{rows:,} embedding rows{_another_size(pieces, wanted)}"
    if not manifest.source_has_own:
        return [f"vocabulary: {pieces:,} joint pieces, {found}"]
    own, own_rows = manifest.source_vocabulary_pieces, manifest.source_vocabulary_size
    of_source = f"{own_rows:,} embedding rows{_another_size(own, wanted_of_source or wanted)}"
    if not own_rows:
        of_source = "each with the id that it has in the target: one embedding for both"
    return [
        f"source vocabulary: {own:,} pieces, {of_source}",
        f"target vocabulary: {pieces:,} pieces, {found}",
    ]


def _another_size(pieces: int, wanted: int) -> str:
    """Why there are not as many pieces as were asked for."""
    if wanted in (0, pieces):
        return ""
    why = "the number is rounded up to a multiple of 8"
    if pieces < wanted:
        why = "the text gives no more"
    return f" ({wanted:,} pieces were asked for; {why})"

"""What `prepare` prints when it is done."""

from __future__ import annotations

import json
from pathlib import Path

from hvd_nmt.data import corpus
from hvd_nmt.preparation import quality
from hvd_nmt.preparation.journal import Journal


def summary(out: Path, wanted_pieces: int, journal: Journal) -> str:
    """The lines to print: the quality of the text, the vocabulary, the times, the hashes.

    Args:
        out: the prepared directory.
        wanted_pieces: size of the vocabulary that was asked for, 0: none in particular.
        journal: of the stages.
    """
    manifest = corpus.load(out).manifest
    report = json.loads((out / quality.REPORT).read_text(encoding="utf-8"))
    stages = ", ".join(
        f"{name} {stage_s:.1f} s" + " (before)" * (name in journal.resumed)
        for name, stage_s in journal.seconds.items()
    )
    pieces = manifest.vocabulary_pieces
    another_size = ""
    if wanted_pieces not in (0, pieces):
        why = "the number is rounded up to a multiple of 8"
        if pieces < wanted_pieces:
            why = "the text gives no more"
        another_size = f" ({wanted_pieces:,} pieces were asked for; {why})"
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
            f"vocabulary: {pieces:,} joint pieces, {manifest.vocabulary_size:,} embedding rows"
            f"{another_size}",
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

"""A model for a vocabulary that has grown: old rows stay, new ones begin as a mean of old ones.

    runs/x-extended/
        model.ckpt-2400.*       the weights with more rows, under the step they are from
        config.yaml spm.model   of the run, with the new vocabulary
        extend.json             which checkpoint, and each new piece with the old ids it replaces

As in a mean of checkpoints there is no state of the optimizer: a new run begins with these weights
(`training.init_from`).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.run_files import (
    CONFIG,
    IMPORTED,
    SOURCE_VOCABULARY,
    VOCABULARY,
    load_config,
    write_record,
)
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.state import run_state
from hvd_nmt.checkpoints.weights import load_model
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import fingerprint
from hvd_nmt.config import PAD
from hvd_nmt.model import architectures
from hvd_nmt.model.batching import padded
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.tokenizer import Tokenizer, Tokenizers
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.model.translator import Translator

if TYPE_CHECKING:  # SentencePiece's trainer shares no process with TensorFlow
    from hvd_nmt.preparation.vocabulary_extension import Extension

RECORD = "extend.json"
_ROUNDING = 1e-5
"""of the largest logit: a product with more columns may add in another order"""
_AT_ONCE = 16


class Parity(NamedTuple):
    """What the extension has changed for sentences that hold no new piece: it must be nothing."""

    sentences: int
    """sentences that were looked at"""
    with_new: int
    """sentences looked at that hold a new piece: they are to have other ids"""
    other_ids: int
    """sentences without one whose ids have changed"""
    other_translations: int
    """sentences without one whose greedy translation has changed"""
    logit_change: float
    """largest change of a logit of an old piece, as a share of the largest logit"""

    @property
    def holds(self) -> bool:
        """Nothing has changed but the last digits."""
        changed = self.other_ids + self.other_translations
        return not changed and self.logit_change < _ROUNDING

    def line(self) -> str:
        """The result for a reader."""
        compared = self.sentences - self.with_new
        return (
            f"parity      {'holds' if self.holds else 'FAILS'}: of {compared:,} sentences without "
            f"a new piece {self.other_ids:,} have other ids and {self.other_translations:,} "
            f"another greedy translation; logits of old pieces moved by {self.logit_change:.1e} of "
            f"the largest ({self.with_new:,} sentences hold a new piece)"
        )


def write(
    run_dir: Path, which: str, extension: Extension, draft: Path, output: Path, side: str = ""
) -> tuple[Transformer, Transformer]:
    """Write the run directory of an extended model.

    A new row is the mean of the rows of the pieces that were written in its place. So its logit is
    the mean of theirs and never the largest: until it is trained, a greedy translation does not
    hold it. A row beyond the last piece is that of padding, which was never a target either.

    Args:
        run_dir: the run whose vocabulary has grown.
        which: its checkpoint, see `find`; with `training.ema_decay` the averaged weights.
        extension: the new vocabulary.
        draft: an empty folder that gets the files.
        output: what the folder will be called.
        side: source or target, whose own vocabulary has grown; "": it is joint.

    Raises:
        RunError: source and target cut text in their own ways into the same pieces.

    Source: Gee et al. 2022, "Fast Vocabulary Transfer for Language Model Compression", section 3.
    """
    origin = Checkpoint.at(find(run_dir, which))
    old, step = load_model(run_dir, os.fspath(origin.prefix))
    target_rows, source_rows = old.vocabulary_size, old.source_vocabulary_size
    if side and not source_rows:
        raise RunError(
            f"{run_dir} has one embedding for two SentencePiece models, which must give each piece "
            "the same id: neither of them can grow alone."
        )
    of_source = side == "source"
    target_rows, source_rows = (
        (target_rows, extension.rows) if of_source else (extension.rows, source_rows)
    )
    new = architectures.build(old.config, target_rows, source_vocabulary_size=source_rows)
    growing = [old.source_embedding] if of_source else [old.embedding, old.logits_bias]
    for weight, source in zip(new.trainable_variables, old.trainable_variables, strict=True):
        values = source.numpy()
        if any(source is one for one in growing):  # a row for each piece
            values = _grown(values[: extension.old_pieces], extension)
        weight.assign(values)
    configuration.save(dataclasses.replace(load_config(run_dir), run_dir=output), draft / CONFIG)
    grown, other = (VOCABULARY, SOURCE_VOCABULARY)[:: -1 if of_source else 1]
    (draft / grown).write_bytes(extension.model)
    if side:
        shutil.copyfile(run_dir / other, draft / other)
    write_record(draft / RECORD, _record(origin, extension))
    if (run_dir / IMPORTED).exists():  # which tells how it is searched
        shutil.copyfile(run_dir / IMPORTED, draft / IMPORTED)
    facts = origin.manifest.facts() | {
        "freeze": "",
        "vocabulary_size": target_rows,
        "source_vocabulary_size": source_rows,
        f"{'source_' * of_source}vocabulary_hash": fingerprint(draft / grown).sha256,
    }
    Saver(draft, run_state(new, step), facts, keep=1, keep_best=1).save(step)
    return old, new


def compare(
    old: Transformer,
    new: Transformer,
    tokenizers: tuple[Tokenizers, Tokenizers],
    names: Sequence[str],
    lines: Sequence[str],
) -> Parity:
    """Try sentences with the model before and after.

    Args:
        old: the model before.
        new: the extended model.
        tokenizers: of the old and of the new vocabularies. Where the target has its own, the old
            translations are looked at, too.
        names: the new pieces.
        lines: sentences of the source language.
    """
    before, after = tokenizers
    same, with_new = _same_ids(before.source, after.source, names, lines)
    other_ids = len(lines) - with_new - len(same)
    sources = [ids for ids in same if 1 < len(ids) <= old.max_length]
    theirs, ours = (_greedy(model, sources) for model in (old, new))
    if before.target is not before.source:
        texts = before.target.decode(theirs)
        unchanged, hold_new = _same_ids(before.target, after.target, names, texts)
        other_ids += len(texts) - hold_new - len(unchanged)
    return Parity(
        sentences=len(lines),
        with_new=with_new,
        other_ids=other_ids,
        other_translations=sum(not np.array_equal(a, b) for a, b in zip(theirs, ours, strict=True)),
        logit_change=_logit_change(old, new, sources, theirs, before.target.vocabulary_size),
    )


def _same_ids(
    before: Tokenizer, after: Tokenizer, names: Sequence[str], lines: Sequence[str]
) -> tuple[list[np.ndarray], int]:
    """The ids of the lines for which they are the same, and how many others hold a new piece."""
    same, with_new = [], 0
    for ids, new_ids in zip(before.encode(lines), after.encode(lines), strict=True):
        text = "".join(before.pieces[number] for number in ids)
        if np.array_equal(ids, new_ids):
            same.append(ids)
        elif new_ids.max() >= before.vocabulary_size or any(name in text for name in names):
            with_new += 1
    return same, with_new


def _record(origin: Checkpoint, extension: Extension) -> dict[str, Any]:
    new = zip(extension.pieces, extension.parts, strict=True)
    return {
        "what": "the weights of this checkpoint with rows for more pieces",
        "checkpoint": origin.record(),
        "pieces": [
            {"id": number, "piece": name, "instead_of": list(ids)}
            for number, (name, ids) in enumerate(new, start=extension.old_pieces)
        ],
    }


def _grown(values: np.ndarray, extension: Extension) -> np.ndarray:
    """The rows of the old pieces, the means of some of them, and that of padding."""
    means = [values[list(ids)].mean(0, dtype=np.float64) for ids in extension.parts]
    padding = [values[PAD]] * (extension.rows - len(values) - len(means))
    return np.stack([*values, *means, *padding]).astype(np.float32)


def _greedy(model: Transformer, sources: Sequence[np.ndarray]) -> list[np.ndarray]:
    found = dict(Translator(model, Decoding(beam_size=1)).translate(sources))
    return [found[index][0].ids for index in range(len(sources))]


def _logit_change(
    old: Transformer,
    new: Transformer,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    old_pieces: int,
) -> float:
    """Of the old pieces, with the old translations as targets; a share of the largest logit."""
    change = largest = 0.0
    for start in range(0, len(sources), _AT_ONCE):
        batch = [padded(side[start : start + _AT_ONCE]) for side in (sources, targets)]
        theirs, ours = (model(*map(tf.constant, batch)).numpy() for model in (old, new))
        difference = ours[..., :old_pieces] - theirs[..., :old_pieces]
        change = max(change, float(np.abs(difference).max(initial=0.0)))
        largest = max(largest, float(np.abs(theirs).max(initial=0.0)))
    return change / largest if largest else 0.0

"""Whether an exported model translates as the run that it was made of."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.progress import progress
from hvd_nmt.data.text import is_blank, read_lines
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.translation import prepared_text
from hvd_nmt.translation.settings import Settings

if TYPE_CHECKING:
    from hvd_nmt.translation.engine import Engine

# Below this share of equal lines a model with all its digits is called suspect.
_EXPECTED = 0.97
# Lines that a SavedModel translates at once, of similar length.
_BATCH_LINES = 32
_SHOWN = 3


def lines_to_compare(run: Path, text: Path | None, count: int) -> list[str]:
    """The first `count` lines with text of a file, plain or .gz; None: of the run's dev set.

    [], with a word on stderr, where the run's data are not on this machine.
    """
    lines: Iterable[str]
    if text is not None:
        lines = read_lines(text, lenient=True)
    else:
        try:
            lines = prepared_text.load(run, "dev")[0].lines
        except prepared_text.MissingDataError:
            print(
                "hvd_nmt.export: the run's data are not on this machine, so the export will not be "
                "compared with the run: give --verify-on FILE to do so.",
                file=sys.stderr,
            )
            return []
    found = list(itertools.islice((line for line in lines if not is_blank(line)), count))
    if not found:
        raise DataError(
            f"{text or 'The dev set of the run'} holds no text to compare on: give "
            "--verify-on FILE with some, or --no-verify."
        )
    return found


def compare(
    lines: list[str], run: Path, checkpoint: str, exported: Path, decoding: Decoding, exact: bool
) -> None:
    """Translate with the run's model and with the export, and print how many lines are equal.

    `exported` is the directory of a SavedModel or of a CTranslate2 model; `exact` says that it has
    all digits of the weights, so that lines must hardly differ.
    """
    from hvd_nmt.formats import saved_model
    from hvd_nmt.translation import engine

    settings = Settings(precision="float32", decoding=decoding)
    loaded = engine.load(run, [checkpoint], settings)
    # The run splits a line that is too long, a SavedModel cuts it.
    limit, encode = loaded.backend.max_length, loaded.tokenizers.source.encode
    lines = [line for line in lines if len(encode([line])[0]) <= limit]
    by_run = _translated_by_engine(lines, loaded, "the run")
    if saved_model.is_saved_model(exported):
        by_export = _translated_by_saved_model(lines, exported)
    else:
        from hvd_nmt.formats.ctranslate2_translator import CTranslate2Translator

        backend = CTranslate2Translator(exported, loaded.settings.decoding)
        other = dataclasses.replace(loaded, backend=backend, models=[])
        by_export = _translated_by_engine(lines, other, "the export")
    triples = list(zip(lines, by_run, by_export, strict=True))
    different = [triple for triple in triples if triple[1] != triple[2]]
    equal = len(lines) - len(different)
    print(f"verified    {equal} of {len(lines)} lines are translated as {run} does")
    for line, wanted, found in different[:_SHOWN]:
        print(f"  {line}\n    run     {wanted}\n    export  {found}")
    if equal < _EXPECTED * len(lines) and exact:
        print(
            f"hvd_nmt.export: {len(different)} of {len(lines)} lines differ, more than rounding "
            "explains in a trained model: compare the BLEU of both before you use it.",
            file=sys.stderr,
        )


def _translated_by_engine(lines: list[str], engine: Engine, name: str) -> list[str]:
    with progress(len(lines), "lines", name) as bar:
        results = engine.search(lines, advance=bar.update)
    return [found[0].text for found in results.lines]


def _translated_by_saved_model(lines: list[str], path: Path) -> list[str]:
    import tensorflow as tf

    model = tf.saved_model.load(os.fspath(path))
    translate = model.signatures["serving_default"]
    order = sorted(range(len(lines)), key=lambda index: len(lines[index]))
    best: dict[int, str] = {}
    with progress(len(lines), "lines", "the export") as bar:
        for batch in (order[i : i + _BATCH_LINES] for i in range(0, len(order), _BATCH_LINES)):
            found = translate(text=tf.constant([lines[index] for index in batch]))
            texts = [text.decode("utf-8") for text in found["translations"].numpy()]
            best.update(zip(batch, texts, strict=True))
            bar.update(len(batch))
    return [best[index] for index in range(len(lines))]

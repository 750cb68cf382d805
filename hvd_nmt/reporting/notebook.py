"""What the notebooks show: answers, tables, figures, translated sentences, where a model looks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import sacrebleu
from IPython.display import HTML

from hvd_nmt.common.errors import RunError
from hvd_nmt.config import EOS
from hvd_nmt.data import corpus
from hvd_nmt.data.text import read_lines
from hvd_nmt.records.record import Run
from hvd_nmt.reporting import render
from hvd_nmt.reporting.answer import Answer, Table, blocks, html
from hvd_nmt.reporting.answer import table as markdown_table
from hvd_nmt.telemetry.events import HYPOTHESES_DIR

if TYPE_CHECKING:
    from hvd_nmt.model.tokenizer import Tokenizer, Tokenizers
    from hvd_nmt.model.transformer import Transformer


def figures(*drawn: str) -> HTML:
    """Figures of `reporting.plots`; a sentence where the run has no data for them."""
    found = "".join(drawn) or "The run has no data for this figure."
    return HTML(f'<div style="max-width:620px">{found}</div>')


def table(head: tuple[str, ...], rows: Iterable[Sequence[object]]) -> HTML:
    """A table; whole numbers get separators, other numbers three digits."""
    cells = tuple(tuple(map(_cell, row)) for row in rows)
    return HTML(html(markdown_table(Table("", head, cells))))


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def answer(number: int, shown: Answer) -> HTML:
    """A question with its answer, evidence, tables, and how it was computed."""
    return HTML(html(blocks(*render.answered(number, shown))))


@dataclass(frozen=True)
class Sentence:
    """A sentence of the dev set with its translation."""

    number: int
    """line of the dev set, from 1"""
    source: str
    reference: str
    hypothesis: str
    chrf: float
    """chrF2 of this sentence alone, 0 to 100"""


def read_sentences(run: Run) -> list[Sentence]:
    """The dev sentences that a run translated last, in the dev set's order.

    Raises:
        RunError: the run holds no such translations, or its data are not on this machine.
        DataError: the data directory is damaged.
    """
    paths = {int(path.name.split(".")[1]): path
             for path in (run.path / HYPOTHESES_DIR).glob("dev.*.txt")}  # fmt: skip
    if not paths:
        raise RunError(f"{run.path} holds no translations of the dev set: it was not evaluated.")
    if "directory" not in run.manifest:
        raise RunError(
            f"The dev set of {run.path} is not on this machine: copy the data directory of its "
            "config.yaml here, or start in the directory in which the run was started."
        )
    data = corpus.load(run.manifest["directory"])
    sources, references = data.text("dev")
    hypotheses = list(read_lines(paths[max(paths)]))
    chrf = sacrebleu.CHRF()
    translated = data.manifest.sample("dev", len(hypotheses))
    return [
        Sentence(index + 1, sources[index], references[index], hypothesis,
                 chrf.sentence_score(hypothesis, [references[index]]).score)
        for index, hypothesis in zip(translated, hypotheses, strict=True)
    ]  # fmt: skip


def cross_attention(
    model: "Transformer", tokenizers: "Tokenizers", source: str, target: str
) -> tuple[list[str], list[str], np.ndarray]:
    """What the decoder looks at while it writes a given translation, its own or the reference.

    Returns the S pieces of the source, the T pieces of the target, and LxHxTxS float32: how much
    each source piece counts, in each layer and head, while a target piece is predicted. Over the
    source they sum to 1, less what a model gives to positions of its own.
    """
    import tensorflow as tf

    from hvd_nmt.model.batching import cut

    source_S, target_T = (
        cut(ids, model.max_length)
        for ids in (tokenizers.source.encode([source])[0], tokenizers.target.encode([target])[0])
    )
    memory = model.encode(tf.constant(source_S[None]))
    _, attention = model.decode_with_attention(tf.constant(target_T[None]), memory)
    weights_LxHxTxS = np.stack([x[0].numpy().astype(np.float32) for x in attention])
    source_pieces = _pieces(tokenizers.source, source_S)
    return source_pieces, _pieces(tokenizers.target, target_T), weights_LxHxTxS


def _pieces(tokenizer: "Tokenizer", ids_T: np.ndarray) -> list[str]:
    texts = zip(ids_T, tokenizer.decode([[number] for number in ids_T]), strict=True)
    return ["(end)" if number == EOS else text or "_" for number, text in texts]

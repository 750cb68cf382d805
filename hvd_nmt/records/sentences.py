"""The dev set sentence by sentence: what a run translated badly, and how length matters."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import sacrebleu

from hvd_nmt.common.errors import RunError
from hvd_nmt.data import corpus
from hvd_nmt.data.text import read_lines
from hvd_nmt.records.record import Run
from hvd_nmt.telemetry.events import HYPOTHESES_DIR

LENGTHS = (1, 6, 11, 16, 21, 31)
"""first number of words of each class of source lengths; the last has no upper limit"""


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


@dataclass(frozen=True)
class LengthClass:
    """The sentences whose sources have a similar number of words."""

    name: str
    """such as 6-10"""
    sentences: int
    bleu: float
    """sacreBLEU of these sentences as a corpus, 0 to 100"""


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
    if len(hypotheses) > len(sources):
        raise RunError(
            f"{paths[max(paths)]} has {len(hypotheses)} lines and the dev set in "
            f"{run.manifest['directory']} {len(sources)}: it is of another data directory."
        )
    chrf = sacrebleu.CHRF()
    translated = data.manifest.sample("dev", len(hypotheses))
    return [
        Sentence(index + 1, sources[index], references[index], hypothesis,
                 chrf.sentence_score(hypothesis, [references[index]]).score)
        for index, hypothesis in zip(translated, hypotheses, strict=True)
    ]  # fmt: skip


def bleu_by_length(sentences: Sequence[Sentence]) -> list[LengthClass]:
    """BLEU of short and of long sentences, by classes that have a sentence, shortest first."""
    found = []
    for number, first in enumerate(LENGTHS, start=1):
        members = [
            sentence for sentence in sentences
            if bisect_right(LENGTHS, len(sentence.source.split())) == number
        ]  # fmt: skip
        if members:
            name = f"{first}-{LENGTHS[number] - 1}" if number < len(LENGTHS) else f"{first}+"
            bleu = sacrebleu.BLEU().corpus_score(
                [sentence.hypothesis for sentence in members],
                [[sentence.reference for sentence in members]],
            )
            found.append(LengthClass(name, len(members), bleu.score))
    return found

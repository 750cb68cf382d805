"""The dev set sentence by sentence: what a run translated badly, and how length matters."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import sacrebleu

from hvd_nmt.common.errors import RunError
from hvd_nmt.data import corpus
from hvd_nmt.data.text import read_lines
from hvd_nmt.records.record import Run
from hvd_nmt.telemetry.events import HYPOTHESES_DIR

_LENGTHS = (1, 6, 11, 16, 21, 31)
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


def bleu_by_length(sentences: Sequence[Sentence]) -> list[tuple[str, int, float]]:
    """Short and long sentences apart, by words of the source, such as 6-10; shortest first.

    Returns the name of each class that has a sentence, how many it has, and their sacreBLEU as a
    corpus, 0 to 100.
    """
    found = []
    for first, after in itertools.pairwise((*_LENGTHS, math.inf)):
        members = [each for each in sentences if first <= len(each.source.split()) < after]
        if members:
            name = f"{first}+" if after == math.inf else f"{first}-{after - 1}"
            translated = [each.hypothesis for each in members]
            bleu = sacrebleu.corpus_bleu(translated, [[each.reference for each in members]])
            found.append((name, len(members), bleu.score))
    return found

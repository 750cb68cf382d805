"""The dev set sentence by sentence: what a run translated badly, and how length matters."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sacrebleu

from hvd_nmt.common.errors import RunError
from hvd_nmt.data import corpus
from hvd_nmt.data.text import read_lines
from hvd_nmt.records.record import Run
from hvd_nmt.telemetry.events import HYPOTHESES_DIR

LENGTHS = (1, 6, 11, 16, 21, 31)
"""first number of words of each class of source lengths"""


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


def read_sentences(run: Run, step: int | None = None) -> list[Sentence]:
    """The dev sentences that a run translated at a step (None: the newest), in the dev set's order.

    Raises:
        RunError: the run holds no such translations, or its data are not on this machine.
        DataError: the data directory is damaged.
    """
    path = _hypotheses(run.path, step)
    if "directory" not in run.manifest:
        raise RunError(
            f"The dev set of {run.path} is not on this machine: copy the data directory of its "
            "config.yaml here, or start in the directory in which the run was started."
        )
    data = corpus.load(run.manifest["directory"])
    sources, references = data.text("dev")
    hypotheses = list(read_lines(path))
    if len(hypotheses) > len(sources):
        raise RunError(
            f"{path} has {len(hypotheses)} lines and the dev set in {run.manifest['directory']} "
            f"{len(sources)}: it is of another data directory."
        )
    chrf = sacrebleu.CHRF()
    translated = data.manifest.sample("dev", len(hypotheses))
    return [
        Sentence(index + 1, sources[index], references[index], hypothesis,
                 chrf.sentence_score(hypothesis, [references[index]]).score)
        for index, hypothesis in zip(translated, hypotheses, strict=True)
    ]  # fmt: skip


def worst(sentences: Sequence[Sentence], count: int) -> list[Sentence]:
    """The `count` sentences with the lowest chrF, worst first."""
    return sorted(sentences, key=lambda sentence: sentence.chrf)[:count]


def bleu_by_length(
    sentences: Sequence[Sentence], first_lengths: Sequence[int] = LENGTHS
) -> list[LengthClass]:
    """BLEU of short and of long sentences, by classes that have a sentence, shortest first.

    `first_lengths`: the smallest number of source words of each class, rising; the last class has
    no upper limit. Shorter sources than the first are left out.
    """
    members: dict[int, list[Sentence]] = {}
    for sentence in sentences:
        number = bisect_right(first_lengths, len(sentence.source.split()))
        members.setdefault(number, []).append(sentence)
    upper = itertools.pairwise(first_lengths)
    names = [*(f"{first}-{after - 1}" for first, after in upper), f"{first_lengths[-1]}+"]
    return [
        LengthClass(name, len(members[number]), _bleu(members[number]))
        for number, name in enumerate(names, start=1)
        if number in members
    ]


def _bleu(sentences: Sequence[Sentence]) -> float:
    hypotheses = [sentence.hypothesis for sentence in sentences]
    references = [[sentence.reference for sentence in sentences]]
    return sacrebleu.BLEU().corpus_score(hypotheses, references).score


def _hypotheses(run_dir: Path, step: int | None) -> Path:
    found = {
        int(match[1]): path
        for path in (run_dir / HYPOTHESES_DIR).glob("dev.*.txt")
        if (match := re.fullmatch(r"dev\.(\d+)\.txt", path.name))
    }
    if not found:
        raise RunError(f"{run_dir} holds no translations of the dev set: it was not evaluated yet.")
    wanted = max(found) if step is None else step
    if wanted not in found:
        steps = ", ".join(str(number) for number in sorted(found))
        raise RunError(f"{run_dir} was not evaluated at step {wanted}, only at {steps}.")
    return found[wanted]

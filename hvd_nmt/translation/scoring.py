"""Translations of several systems scored against references: BLEU, chrF2 and TER by sacreBLEU.

Each score has a 95 % interval by bootstrap over the sentences, and each system after the first a
p-value of its difference from the first. All is computed by `sacrebleu.significance.PairedTest`, so
the numbers are those of the command `sacrebleu` on the same files, and the signatures say how to
get them again. One thing differs: where two scores are equal, sacreBLEU's p-value is the smallest
there is, because no resample differs by more than nothing; here it is 1.

Sources: Koehn 2004 (paired bootstrap); Riezler and Maxwell 2005 (approximate randomisation).
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sacrebleu
from sacrebleu.significance import PairedTest

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.data.text import read_lines

METRICS = (sacrebleu.BLEU, sacrebleu.CHRF, sacrebleu.TER)
RESAMPLES = 1_000
"""bootstrap resamples, behind the intervals and behind the paired bootstrap test"""
TRIALS = 10_000
"""trials of approximate randomisation"""
SIGNIFICANT = 0.05
"""a p-value below it gets a mark"""
Test = Literal["bs", "ar"]
"""paired bootstrap resampling, or approximate randomisation"""

_SEED_VARIABLE, _DEFAULT_SEED = "SACREBLEU_SEED", "12345"


@dataclass(frozen=True)
class Text:
    """Lines of a source, of a reference or of a system's translations."""

    name: str
    """file, or name of the system"""
    lines: Sequence[str]


@dataclass(frozen=True)
class Score:
    """One metric of one system."""

    score: float
    """BLEU and chrF2 0 to 100, higher is better; TER from 0, in percent, lower is better"""
    mean: float
    """mean of the score over the bootstrap resamples"""
    margin: float
    """half width of the 95 % interval, which is mean - margin to mean + margin"""
    p_value: float | None
    """how likely a difference from the first system as large as this is by chance alone; None for
    the first system"""

    def as_json(self) -> dict[str, float | None]:
        """The score with the bounds of its interval."""
        low, high = self.mean - self.margin, self.mean + self.margin
        return {"score": self.score, "mean": self.mean, "low": low, "high": high,
                "p_value": self.p_value}  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Systems scored against the same references."""

    systems: tuple[str, ...]
    """names; the first is what the others are compared with"""
    scores: dict[str, tuple[Score, ...]]
    """name of the metric -> score of each system"""
    signatures: dict[str, str]
    """name of the metric -> how it was computed"""
    sentences: int
    references: int
    """number of references of each sentence"""
    test: Test
    seed: int
    """seed of the resampling"""


def read(path: Path) -> Text:
    """The lines of a text file, plain or .gz."""
    text = Text(str(path), list(read_lines(path)))
    if not text.lines:
        raise DataError(f"{path} is empty: it needs one sentence per line.")
    return text


def part(text: Text, lines: range) -> Text:
    """Some lines of a text, one after the other."""
    return Text(text.name, text.lines[lines.start : lines.stop])


def require_equal_lengths(texts: Sequence[Text]) -> None:
    """See that texts can belong to each other line by line."""
    for text in texts[1:]:
        if len(text.lines) != len(texts[0].lines):
            raise DataError(
                f"{texts[0].name} has {len(texts[0].lines)} lines, but {text.name} has "
                f"{len(text.lines)}: line i of one must belong to line i of the other."
            )


def seed() -> int:
    """The seed of resampling: sacreBLEU's own, or that in the environment variable it reads."""
    value = os.environ.get(_SEED_VARIABLE, _DEFAULT_SEED)
    if not (value.isascii() and value.isdecimal() and int(value) > 0):
        raise ConfigError(
            f"The environment variable {_SEED_VARIABLE} is {value!r}: give a whole number from 1, "
            "or unset it."
        )
    return int(value)


def compare(
    systems: Sequence[Text],
    references: Sequence[Text],
    test: Test = "bs",
    advance: Callable[[], object] = lambda: None,
) -> Comparison:
    """Scores systems and compares each with the first.

    Args:
        systems: one or more.
        references: one or more.
        test: how p-values are computed.
        advance: called after each of the metrics.

    Raises:
        ConfigError: see `seed`.
        DataError: the texts have different numbers of lines, or too many for the memory.
    """
    require_equal_lengths([*references, *systems])
    found: dict[str, tuple[Score, ...]] = {}
    signatures: dict[str, str] = {}
    used_seed = seed()
    named = [(system.name, system.lines) for system in systems]
    lines = [reference.lines for reference in references]
    try:
        for metric in METRICS:
            name, signature, scores = _scored(metric(references=lines), named, test)
            found[name], signatures[name] = scores, signature
            advance()
    except MemoryError:
        raise DataError(
            f"{references[0].name} has {len(lines[0])} lines, too many to resample in the memory "
            "there is: score a part of them."
        ) from None
    return Comparison(
        tuple(system.name for system in systems), found, signatures, len(lines[0]), len(lines),
        test, used_seed,
    )  # fmt: skip


def table(comparison: Comparison) -> str:
    """One row per system; below it what the numbers mean, and the signatures."""
    width = max(map(len, comparison.signatures))
    signatures = (f"{name:{width}}  {text}" for name, text in comparison.signatures.items())
    return "\n".join([*rows(comparison), "", *_notes(comparison), "", *signatures])


def rows(comparison: Comparison) -> list[str]:
    """A line of titles, and one for each system."""
    columns = [["system", *comparison.systems]]
    for name, scores in comparison.scores.items():
        values = _right(f"{score.score:.2f}" for score in scores)
        margins = _right(f"{score.margin:.2f}" for score in scores)
        cells = zip(values, margins, map(_p_value, scores), strict=True)
        columns.append([name, *(f"{value} ± {margin}{p}" for value, margin, p in cells)])
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison with all digits, of types that JSON has."""
    by_metric = comparison.scores
    return {
        "sentences": comparison.sentences,
        "test": comparison.test,
        "seed": comparison.seed,
        "signatures": comparison.signatures,
        "systems": [
            {"name": name, "scores": {m: scores[i].as_json() for m, scores in by_metric.items()}}
            for i, name in enumerate(comparison.systems)
        ],
    }


def _scored(
    metric: sacrebleu.metrics.base.Metric, systems: list[tuple[str, Sequence[str]]], test: Test
) -> tuple[str, str, tuple[Score, ...]]:
    """Name and signature of a metric that knows the references, and the score of each system."""
    # A system alone is compared with nothing, so its signature names no test.
    resampling = test == "bs" or len(systems) == 1
    paired = PairedTest(
        systems,
        {"metric": metric},
        references=None,
        test_type="bs" if resampling else "ar",
        n_samples=RESAMPLES if resampling else TRIALS,
        n_ar_confidence=-1 if resampling else RESAMPLES,
        n_jobs=1,
    )
    signatures, results = paired()
    ((name, signature),) = signatures.items()
    first, *others = results[name]
    p_values = [None, *(1.0 if r.score == first.score else r.p_value for r in others)]
    scores = tuple(
        Score(float(result.score), float(result.mean), float(result.ci), p_value)
        for result, p_value in zip(results[name], p_values, strict=True)
    )
    return name, signature.format(), scores


def _p_value(score: Score) -> str:
    if score.p_value is None:
        return ""
    return f"  p={score.p_value:.4f}{'*' if score.p_value < SIGNIFICANT else ' '}"


def _right(cells: Iterable[str]) -> list[str]:
    texts = list(cells)
    width = max(map(len, texts))
    return [text.rjust(width) for text in texts]


def _notes(comparison: Comparison) -> list[str]:
    notes = [
        f"{comparison.sentences:,} sentences, references of each: {comparison.references}. "
        "TER: lower is better; all others: higher.",
        f"±  half width of the 95 % interval, from {RESAMPLES:,} bootstrap resamples of the "
        "sentences",
    ]
    if len(comparison.systems) > 1:
        how = (
            f"paired bootstrap, {RESAMPLES:,} resamples"
            if comparison.test == "bs"
            else f"paired approximate randomisation, {TRIALS:,} trials"
        )
        notes += [
            f"p  how likely chance alone gives a difference from {comparison.systems[0]} as large "
            "as this",
            f"   ({how}); * marks p < {SIGNIFICANT}",
        ]
    return notes

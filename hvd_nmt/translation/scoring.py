"""Translations of several systems scored against references: BLEU, chrF2 and TER by sacreBLEU.

BLEU and chrF2 have a 95 % interval by bootstrap over the sentences, and after the first system a
p-value of the difference from it, all by `sacrebleu.significance.PairedTest`: the numbers are those
of the command `sacrebleu` on the same files. One thing differs: where two scores are equal,
sacreBLEU's p-value is the smallest there is; here it is 1.

Sources: Koehn 2004 (paired bootstrap); Riezler and Maxwell 2005 (approximate randomisation).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sacrebleu
from sacrebleu.significance import PairedTest, Result

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.data.text import read_lines

METRICS = (sacrebleu.BLEU, sacrebleu.CHRF)
"""those that are resampled; TER is a value only"""
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
class Comparison:
    """Systems scored against the same references."""

    systems: tuple[str, ...]
    """names; the first is what the others are compared with"""
    scores: dict[str, list[Result]]
    """BLEU and chrF2, 0 to 100, of each system: score; mean over the resamples; ci, half width of
    the interval around it; p_value, None for the first"""
    ter: list[float]
    """of each system, from 0, in percent, lower is better"""
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


def compare(systems: Sequence[Text], references: Sequence[Text], test: Test = "bs") -> Comparison:
    """Scores systems and compares each with the first.

    Raises:
        ConfigError: see `seed`.
        DataError: the texts have different numbers of lines, or too many for the memory.
    """
    require_equal_lengths([*references, *systems])
    used_seed, lines = seed(), [reference.lines for reference in references]
    # A system alone is compared with nothing, so its signature names no test.
    resampling = test == "bs" or len(systems) == 1
    try:
        signatures, scores = PairedTest(
            [(system.name, system.lines) for system in systems],
            {metric.__name__: metric(references=lines) for metric in METRICS},
            references=None,
            test_type="bs" if resampling else "ar",
            n_samples=RESAMPLES if resampling else TRIALS,
            n_ar_confidence=-1 if resampling else RESAMPLES,
            n_jobs=1,
        )()
    except MemoryError:
        raise DataError(
            f"{references[0].name} has {len(lines[0])} lines, too many to resample in the memory "
            "there is: score a part of them."
        ) from None
    del scores["System"]
    for first, *others in scores.values():
        for result in others:
            result.p_value = 1.0 if result.score == first.score else result.p_value
    ter = sacrebleu.TER(references=lines)
    return Comparison(
        systems=tuple(system.name for system in systems),
        scores=scores,
        ter=[ter.corpus_score(system.lines, None).score for system in systems],
        signatures={name: each.format() for name, each in signatures.items()}
        | {"TER": ter.get_signature().format()},
        sentences=len(lines[0]),
        references=len(lines),
        test=test,
        seed=used_seed,
    )


def table(comparison: Comparison) -> str:
    """One row per system; below it what the numbers mean, and the signatures."""
    width = max(map(len, comparison.signatures))
    signatures = (f"{name:{width}}  {text}" for name, text in comparison.signatures.items())
    return "\n".join([*rows(comparison), "", *_notes(comparison), "", *signatures])


def rows(comparison: Comparison) -> list[str]:
    """A line of titles, and one for each system."""
    columns = [["system", *comparison.systems]]
    for name, results in comparison.scores.items():
        columns.append([name, *map(_cell, results)])
    columns.append(["TER", *(f"{score:6.2f}" for score in comparison.ter)])
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison with all digits, of types that JSON has."""
    return {
        "sentences": comparison.sentences,
        "test": comparison.test,
        "seed": comparison.seed,
        "signatures": comparison.signatures,
        "systems": [
            {"name": name, "scores": {
                metric: _facts(results[i]) for metric, results in comparison.scores.items()
            } | {"TER": {"score": comparison.ter[i]}}}
            for i, name in enumerate(comparison.systems)
        ],
    }  # fmt: skip


def _facts(result: Result) -> dict[str, float | None]:
    score, mean, margin = float(result.score), float(result.mean), float(result.ci)
    return {"score": score, "mean": mean, "low": mean - margin, "high": mean + margin,
            "p_value": result.p_value}  # fmt: skip


def _cell(result: Result) -> str:
    interval = f"{result.score:6.2f} ± {result.ci:5.2f}"
    if result.p_value is None:
        return interval
    return f"{interval}  p={result.p_value:.4f}{'*' if result.p_value < SIGNIFICANT else ' '}"


def _notes(comparison: Comparison) -> list[str]:
    notes = [
        f"{comparison.sentences:,} sentences, references of each: {comparison.references}. "
        "TER: lower is better; all others: higher.",
        f"±  half width of the 95 % interval, from {RESAMPLES:,} bootstrap resamples",
    ]
    if len(comparison.systems) > 1:
        how = {
            "bs": f"paired bootstrap, {RESAMPLES:,} resamples",
            "ar": f"paired approximate randomisation, {TRIALS:,} trials",
        }[comparison.test]
        notes.append(
            f"p  how likely chance alone gives such a difference from {comparison.systems[0]} "
            f"({how}); * p < {SIGNIFICANT}"
        )
    return notes

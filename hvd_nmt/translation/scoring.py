"""Texts, and translations of several systems scored: BLEU, chrF2 and TER by sacreBLEU.

BLEU and chrF2 have a 95 % interval by bootstrap over the sentences, and after the first system a
p-value of the difference from it. These are the numbers of the command `sacrebleu`, but for the
p-value of two equal scores: ours is 1, the command's the smallest there is.

Source: Koehn 2004 (paired bootstrap). The seed is sacreBLEU's, which SACREBLEU_SEED changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import sacrebleu
from sacrebleu.dataset import DATASETS
from sacrebleu.significance import PairedTest, Result
from sacrebleu.utils import SACREBLEU_DIR, get_reference_files, get_source_file

from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.progress import print_line, progress
from hvd_nmt.config.serialization import nearest
from hvd_nmt.data import bleu, corpus, language
from hvd_nmt.data.text import read_lines
from hvd_nmt.records import metrics
from hvd_nmt.translation.settings import Settings

RESAMPLES = 1_000
"""bootstrap resamples, of the intervals and of the paired bootstrap test"""
SIGNIFICANT = 0.05
"""p-value below which a difference gets a mark"""


class Text(NamedTuple):
    """Lines of a source, of a reference or of a system's translations."""

    name: str
    """file, or name of the system"""
    lines: Sequence[str]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Systems scored against the same references."""

    systems: tuple[str, ...]
    """names; the first is what the others are compared with"""
    scores: dict[str, list[Result]]
    """BLEU and chrF2 of each system, 0 to 100; `ci` is half the interval around `mean`"""
    ter: list[float]
    """TER of each system, from 0, in percent, lower is better"""
    signatures: dict[str, str]
    """name of the metric -> its signature, how it was computed"""
    sentences: int
    references: int
    """number of references of each sentence"""
    seed: int | None
    """seed of the resampling; None: another each time"""
    tokenizer: str
    """tokenizer of BLEU"""

    def __repr__(self) -> str:
        """One row per system; below it what the numbers mean, and the signatures."""
        up_to = "up to " if self.references > 1 else ""
        notes = [
            f"{self.sentences:,} sentences, references of each: {up_to}{self.references}. "
            "TER: lower is better; all others: higher.",
            f"±  half width of the 95 % interval, from {RESAMPLES:,} bootstrap resamples",
        ]
        if len(self.systems) > 1:
            notes.append(
                f"p  how likely chance alone gives such a difference from {self.systems[0]};\n"
                f"   paired bootstrap, {RESAMPLES:,} resamples; * p < {SIGNIFICANT}"
            )
        signatures = [f"{name:5}  {text}" for name, text in self.signatures.items()]
        return "\n".join([*rows(self), "", *notes, "", *signatures])


def read(path: Path) -> Text:
    """The lines of a text file, plain or .gz."""
    text = Text(str(path), list(read_lines(path)))
    if not text.lines:
        raise DataError(f"{path} is empty: it needs one sentence per line.")
    return text


def prepared(run: Path, part: str) -> tuple[Text, Text]:
    """Source and target text of dev or test in a run's data; DataError: they are not here."""
    directory, manifest = RunDirectory(run).data()
    data = corpus.load(directory)
    languages = (manifest.source_language, manifest.target_language)
    source, target = (
        Text(str(data.text_path(part, language)), lines)
        for language, lines in zip(languages, data.text(part), strict=True)
    )
    if not source.lines:
        raise DataError(f"{source.name} is empty: name the text yourself.")
    return source, target


def test_set(name: str, run: Path, to: str) -> tuple[Text, list[Text], dict[str, str]]:
    """Source and references of a test set of sacreBLEU, and its part of the signatures.

    Its languages are those of the run, to the language `to` if it has several; or "wmt20:en-de"
    names them. ConfigError: there is no such test set; DataError: it cannot be downloaded.
    """
    name, _, direction = name.partition(":")
    if name not in DATASETS:
        raise ConfigError(
            f"sacreBLEU has no test set {name!r}{nearest(name, DATASETS)}: `sacrebleu --list` "
            "shows those that it has."
        )
    pairs = [direction]
    if not direction:
        known = RunDirectory(run).data()[1].directions
        wanted = [pair for pair in known if pair[1] == to] or known
        pairs = sorted({"-".join(map(language.base, pair)) for pair in wanted})
    if len(pairs) != 1:
        raise ConfigError(f"The run has {', '.join(pairs)}: add --to, one of the targets.")
    if pairs[0] not in DATASETS[name].langpairs:
        has = ", ".join(DATASETS[name].langpairs)
        raise ConfigError(f"sacreBLEU's test set {name} has no {pairs[0]}, but {has}.")
    if not [*Path(SACREBLEU_DIR, name).glob(f"*.{pairs[0]}.src")]:
        print_line(f"sacreBLEU downloads {name} to {SACREBLEU_DIR}, for which it needs the network")
    try:
        files = get_source_file(name, pairs[0]), *get_reference_files(name, pairs[0])
    except (OSError, SystemExit) as error:  # it ends the process where a checksum is wrong
        raise DataError(
            f"sacreBLEU cannot get {name} ({getattr(error, 'reason', error)}): see that the "
            f"network is there, remove {Path(SACREBLEU_DIR, name)} if a download was cut off, or "
            "copy it from another machine."
        ) from None
    source, *references = (read(Path(file)) for file in files)
    return source, references, {"test": name, "lang": pairs[0]}


def tokenizers(run: Path, are_own: bool) -> dict[str, str]:
    """Tokenizers of BLEU in the training of a run, by corpus, and "" for all text.

    What no training made, as an average, has those of its data, or {} for text not its own.
    """
    config, now = RunDirectory(run).read_config(), dict[str, str]()
    if are_own:
        now = bleu.tokenizers(config.evaluation.tokenize, RunDirectory(run).data()[1])
    return metrics.tokenizers(now, metrics.records(RunDirectory(run).read_metrics([])))


def tokenizer(trained: Mapping[str, str], references: Sequence[Text], are_own: bool) -> str:
    """That of BLEU: as in training; else, and for other text if it had several, by the letters."""
    if len({*trained.values()}) == 1 or (trained and are_own):
        return trained[""]
    lines = (line for reference in references for line in reference.lines)
    return language.bleu_tokenizer(language.language_of(lines))


def by_corpus(run: Path, part: str) -> dict[str, range]:
    """Which lines of `prepared` are of each of several corpora, as "fr (en-fr)"; {}: no names."""
    manifest = RunDirectory(run).data()[1]
    directions = {corpus.name: corpus.direction for corpus in manifest.corpora}
    ranges = {name: pairs for name, pairs in manifest.by_corpus(part).items() if pairs}
    return {f"{name} ({directions[name]})": pairs for name, pairs in ranges.items()}


def translated(
    run: Path, checkpoints: Sequence[str], source: Text, settings: Settings, keep: Path | None
) -> dict[Path, Text]:
    """Prefix of each checkpoint -> its translations of a text.

    They are kept in the folder `keep`, unless it is None, and are called by the last part of the
    prefix, or by all of it where two share that. RunError: a checkpoint cannot be used.
    """
    # TensorFlow takes seconds to import: not for texts that are scored as they are.
    from hvd_nmt.checkpoints.find import find
    from hvd_nmt.translation import engine

    texts, prefixes = {}, [find(run, which) for which in checkpoints]
    short = [prefix.name for prefix in prefixes]
    for prefix in prefixes:
        name = prefix.name if short.count(prefix.name) == 1 else str(prefix)
        remarks = engine.Remarks(f"{name}: {source.name}, ", print_line)
        loaded = engine.load(run, [str(prefix)], settings)
        with progress(len(source.lines), "lines", name) as bar:
            lines = list(loaded.stream(source.lines, remarks, bar.update))
        remarks.end()
        texts[prefix] = Text(name, lines)
        if keep is not None:
            content = "".join(line + "\n" for line in lines)
            (keep / f"{name.replace('/', '_')}.txt").write_bytes(content.encode())
    return texts


def require_equal_lengths(texts: Sequence[Text]) -> None:
    """See that texts can belong to each other line by line."""
    for text in texts[1:]:
        if len(text.lines) != len(texts[0].lines):
            raise DataError(
                f"{texts[0].name} has {len(texts[0].lines)} lines, but {text.name} has "
                f"{len(text.lines)}: line i of one must belong to line i of the other."
            )


def compare(
    systems: Sequence[Text], references: Sequence[Text], tokenizer: str = bleu.USUAL,
    named: Mapping[str, str] | None = None,
) -> Comparison:  # fmt: skip
    """Scores systems and compares each with the first; see `require_equal_lengths`.

    `named` goes into the signatures, as `test_set` gives it.
    """
    lines = _without_blank([reference.lines for reference in references])
    measures = {"BLEU": bleu.metric(tokenizer, references=lines)}
    measures |= {"CHRF": sacrebleu.CHRF(references=lines)}
    signatures, results = PairedTest(
        list(systems), measures, references=None, test_type="bs", n_samples=RESAMPLES, n_jobs=1
    )()
    del results["System"]
    for first, *others in results.values():
        for other in others:
            if other.score == first.score:
                other.p_value = 1.0
    ter, seed = bleu.ter(tokenizer, references=lines), signatures["BLEU"].info["seed"]
    signatures["TER"] = ter.get_signature()
    for signature in signatures.values():
        signature.info |= named or {}
    return Comparison(
        systems=tuple(system.name for system in systems),
        scores=results,
        ter=[ter.corpus_score(system.lines, None).score for system in systems],
        signatures={name: signature.format() for name, signature in signatures.items()},
        sentences=len(lines[0]),
        references=len(lines),
        seed=None if seed == "none" else int(seed),
        tokenizer=tokenizer,
    )


def _without_blank(references: list[Sequence[str]]) -> list[list[str | None]]:
    """References in which a blank line is none, unless a sentence has nothing else.

    sacreBLEU would take it for a translation of length 0, to which a short one is nearest.
    """
    by_sentence = [
        [line for line in lines if line.strip()] or list(lines[:1])
        for lines in zip(*references, strict=True)
    ]
    return [
        [lines[i] if i < len(lines) else None for lines in by_sentence]
        for i in range(len(references))
    ]


def record(
    run: Path, prefixes: Iterable[Path], text: str, comparison: Comparison, beam_size: int
) -> None:
    """Note the scores of checkpoints, the first systems of a comparison, for the model's card."""
    for number, prefix in enumerate(prefixes):
        values = {name: float(of[number].score) for name, of in comparison.scores.items()}
        RunDirectory(run).add_scores({
            "checkpoint": prefix.name,
            "sha256": Checkpoint.at(prefix).record()["sha256"],
            "text": text,
            "sentences": comparison.sentences,
            "beam_size": beam_size,
            "scores": values | {"TER": comparison.ter[number]},
            "signatures": comparison.signatures,
        })  # fmt: skip


def rows(comparison: Comparison) -> list[str]:
    """A line of titles, and one for each system."""
    columns = [["system", *comparison.systems]]
    for name, results in comparison.scores.items():
        title = bleu.name(comparison.tokenizer) if name == "BLEU" else name
        columns.append([title, *map(_cell, results)])
    columns.append(["TER", *(f"{score:6.2f}" for score in comparison.ter)])
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison with all digits, of types that JSON has."""
    systems = []
    for number, (name, ter) in enumerate(zip(comparison.systems, comparison.ter, strict=True)):
        scores = {metric: _facts(of[number]) for metric, of in comparison.scores.items()}
        systems.append({"name": name, "scores": scores | {"TER": {"score": ter}}})
    facts = {"sentences": comparison.sentences, "test": "bs", "seed": comparison.seed}
    return facts | {"signatures": comparison.signatures, "systems": systems}


def _facts(result: Result) -> dict[str, float | None]:
    score, mean, margin = float(result.score), float(result.mean), float(result.ci)
    ends = {"low": mean - margin, "high": mean + margin}
    return {"score": score, "mean": mean, **ends, "p_value": result.p_value}


def _cell(score: Result) -> str:
    interval = f"{score.score:6.2f} ± {score.ci:5.2f}"
    if score.p_value is None:
        return interval
    return f"{interval}  p={score.p_value:.4f}{'*' if score.p_value < SIGNIFICANT else ' '}"

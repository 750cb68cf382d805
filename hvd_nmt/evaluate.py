"""Score translations: sacreBLEU's BLEU, chrF2 and TER, with intervals, significance, signatures.

    python -m hvd_nmt.evaluate --run runs/demo
    python -m hvd_nmt.evaluate --run runs/demo --checkpoint best latest model.ckpt-600 --part test
    python -m hvd_nmt.evaluate --run runs/demo --source a.en --reference a.de --hypotheses their.de
    python -m hvd_nmt.evaluate --reference a.de b.de --hypotheses ours.de theirs.de

Checkpoints of the run are translated as hvd_nmt.translate does it; hypothesis files are scored as
they are. Each system is compared with the first one, checkpoints before files. The seed of
resampling is fixed, so the same command prints the same numbers. Exit codes: 0 done, 2 wrong
command line, 3 wrong text or vocabulary, 4 wrong run directory or checkpoint, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from hvd_nmt import command_line, quiet
from hvd_nmt.analysis import ours, scoring
from hvd_nmt.analysis.scoring import Text
from hvd_nmt.data import corpus
from hvd_nmt.errors import ConfigError, DataError, RunError, reported, speak_utf8
from hvd_nmt.translate import LINE_CHARACTERS


@dataclass(frozen=True)
class Options:
    """Which systems, on which text."""

    run: Path | None = None
    """run directory with checkpoints, config.yaml and spm.model"""
    checkpoint: tuple[str, ...] = ()
    """one or more of: best (lowest validation loss), latest (newest), the prefix of a checkpoint's
    files; by default best"""
    source: Path | None = None
    """text to translate, one sentence per line, plain or .gz; by default that of the run's data"""
    reference: tuple[Path, ...] = ()
    """right translations of the source, one file or more; by default those of the run's data"""
    part: Literal["dev", "test"] = "dev"
    """part of the run's prepared data, for what is not given"""
    hypotheses: tuple[Path, ...] = ()
    """translations made by others or earlier, scored beside those of the checkpoints"""
    paired: scoring.Test = "bs"
    """test of significance: bs, paired bootstrap; ar, approximate randomisation (slower)"""
    beam_size: int = 4
    """hypotheses kept per sentence; 1 is greedy and fastest"""
    length_penalty: float = 0.6
    """alpha of ((5+length)/6)^alpha; larger gives longer translations"""
    batch_tokens: int = 4096
    """source tokens, padding included, translated at once; less needs less memory"""
    keep: Path | None = None
    """folder for the translations of the checkpoints, each as NAME.txt; by default not kept"""
    json: bool = False
    """print JSON with all digits instead of the table"""

    def __post_init__(self) -> None:
        if self.run is None and not self.hypotheses:
            raise ConfigError("Nothing to score: give --run, --hypotheses, or both.")
        for name in ("checkpoint", "source", "keep"):
            if self.run is None and getattr(self, name):
                raise ConfigError(f"--{name} needs --run, the directory of a run.")
        if self.run is None and not self.reference:
            raise ConfigError("Hypotheses without --run need --reference, what they should say.")
        if self.source is not None and not self.reference:
            raise ConfigError("--source needs --reference, its right translation.")
        for path in self.hypotheses:
            if self.hypotheses.count(path) > 1:
                raise ConfigError(f"--hypotheses {path} is given twice: give each file once.")
        if self.beam_size < 1 or self.batch_tokens < 1:
            raise ConfigError("--beam-size and --batch-tokens must be at least 1.")
        if not 0 <= self.length_penalty < float("inf"):
            raise ConfigError(f"--length-penalty is {self.length_penalty}: give 0 or more.")


@dataclass(frozen=True)
class _Texts:
    """Everything that is read before a model is loaded."""

    source: Text | None
    """None if there is no checkpoint to translate with"""
    references: list[Text]
    hypotheses: list[Text]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    speak_utf8()
    with reported("hvd_nmt.evaluate") as outcome:
        options = command_line.options(
            Options, prog="python -m hvd_nmt.evaluate", description=str(__doc__), argv=argv
        )
        evaluate(options)
    return outcome.exit_code


def evaluate(options: Options) -> None:
    """Translates, scores, and prints the table or JSON.

    Raises:
        UserError: the run, a checkpoint or a text cannot be used.
    """
    scoring.seed()  # a wrong one is said before anything is translated
    texts = _read(options)
    translations = {} if texts.source is None else _translations(options, texts)
    systems = [*translations.values(), *texts.hypotheses]
    with _progress(len(scoring.METRICS), "scoring", "metrics") as progress:
        comparison = scoring.compare(systems, texts.references, options.paired, progress.update)
    if options.json:
        told = _provenance(options, texts, list(translations))
        print(json.dumps(told | scoring.as_json(comparison), indent=2, ensure_ascii=False))
    else:
        print(scoring.table(comparison))


def _read(options: Options) -> _Texts:
    """All texts, seen to have the same number of lines."""
    references = [scoring.read(path) for path in options.reference]
    source = None
    if options.run is not None:
        if options.source is not None:
            source = scoring.read(options.source)
        else:
            source, target = _prepared(options.run, options.part)
            references = references or [target]
    hypotheses = [scoring.read(path) for path in options.hypotheses]
    scoring.require_equal_lengths([*([source] if source else []), *references, *hypotheses])
    return _Texts(source, references, hypotheses)


def _prepared(run: Path, part: str) -> tuple[Text, Text]:
    """Source and target text of the run's prepared data."""
    directory = ours.read(run).manifest.get("directory")
    if directory is None:
        raise RunError(
            f"The data that {run} was trained on are not on this machine: copy the directory named "
            "in its config.yaml here, start where the run was started, or give --source and "
            "--reference."
        )
    data = corpus.load(directory)
    manifest = data.manifest
    languages = (manifest.source_language, manifest.target_language)
    source, target = (
        Text(str(data.text_path(part, language)), lines)
        for language, lines in zip(languages, data.text(part), strict=True)
    )
    if not source.lines:
        raise DataError(f"{source.name} is empty: give --source and --reference.")
    return source, target


def _translations(options: Options, texts: _Texts) -> dict[Path, Text]:
    """Prefix of each checkpoint -> its translations."""
    assert options.run is not None
    assert texts.source is not None
    # TensorFlow takes seconds to import: not for --help, nor for files that are scored as they are.
    quiet.import_tensorflow()
    from hvd_nmt.training.checkpoints import find

    names = _named([find(options.run, which) for which in options.checkpoint or ("best",)])
    kept = {prefix: _place(options, texts, name) for prefix, name in names.items()}
    found = {}
    for prefix, name in names.items():
        found[prefix] = Text(name, _translated(prefix, name, texts.source, options))
        if (path := kept[prefix]) is not None:
            _write(path, found[prefix].lines)
    return found


def _translated(prefix: Path, name: str, source: Text, options: Options) -> list[str]:
    import tensorflow as tf

    from hvd_nmt.model.tokenizer import Tokenizer
    from hvd_nmt.model.translator import Translator
    from hvd_nmt.training.weights import load_model

    assert options.run is not None
    model, _ = load_model(options.run, str(prefix))
    tokenizer = Tokenizer(options.run / "spm.model")
    translator = Translator(
        model, beam_size=options.beam_size, length_penalty=options.length_penalty
    )
    ids = tokenizer.encode([line[:LINE_CHARACTERS] for line in source.lines])
    cut = [
        len(line_ids) > translator.max_length or len(line) > LINE_CHARACTERS
        for line_ids, line in zip(ids, source.lines, strict=True)
    ]
    _note(source, name, cut, f"cut to the model's {translator.max_length:,} tokens")
    best: dict[int, np.ndarray] = {}
    silent = np.zeros(len(ids), bool)
    try:
        with _progress(len(ids), name, "lines") as progress:
            for index, translation in translator.translate(ids, options.batch_tokens):
                best[index] = translation.ids
                silent[index] = translation.score == -float("inf")
                progress.update()
    except tf.errors.ResourceExhaustedError:
        raise ConfigError(
            f"--batch-tokens {options.batch_tokens} with --beam-size {options.beam_size} needs more"
            " memory than there is: lower one of them."
        ) from None
    _note(source, name, silent, "no translation (the model's weights may hold NaN)")
    return tokenizer.decode(best[index] for index in range(len(ids)))


def _named(prefixes: Sequence[Path]) -> dict[Path, str]:
    """Each checkpoint with its name: the last part of its prefix, or all where two share it."""
    for prefix in prefixes:
        if prefixes.count(prefix) > 1:
            raise ConfigError(f"--checkpoint names {prefix} twice: give each checkpoint once.")
    short = [prefix.name for prefix in prefixes]
    return {p: p.name if short.count(p.name) == 1 else str(p) for p in prefixes}


def _place(options: Options, texts: _Texts, name: str) -> Path | None:
    """The file for the translations of a checkpoint, seen to be none of the inputs."""
    if options.keep is None:
        return None
    path = options.keep / f"{name.replace('/', '_')}.txt"
    assert texts.source is not None
    for text in (texts.source, *texts.references, *texts.hypotheses):
        if path.exists() and Path(text.name).exists() and path.samefile(text.name):
            raise ConfigError(f"--keep would write over {text.name}: give another folder.")
    with _explained(options.keep):
        options.keep.mkdir(parents=True, exist_ok=True)
    return path


def _write(path: Path, lines: Sequence[str]) -> None:
    with _explained(path):
        path.write_bytes("".join(line + "\n" for line in lines).encode())


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from None


def _note(source: Text, name: str, which: Sequence[bool] | np.ndarray, what: str) -> None:
    """Say on stderr what befell lines of the source, if it befell any."""
    if lines := [number for number, befell in enumerate(which, start=1) if befell]:
        more = f" and {len(lines) - 1:,} more" if len(lines) > 1 else ""
        print(f"{name}: {what}: {source.name}, line {lines[0]:,}{more}", file=sys.stderr)


def _progress(total: int, what: str, unit: str) -> tqdm:
    return tqdm(
        total=total, desc=what, unit=f" {unit}", leave=False, disable=not sys.stderr.isatty()
    )


def _provenance(options: Options, texts: _Texts, prefixes: Sequence[Path]) -> dict[str, Any]:
    """What was scored, and how it was translated."""
    told: dict[str, Any] = {"references": [text.name for text in texts.references]}
    if texts.source is not None:
        told |= {
            "source": texts.source.name,
            "run": str(options.run),
            "checkpoints": [str(prefix) for prefix in prefixes],
            "beam_size": options.beam_size,
            "length_penalty": options.length_penalty,
        }
    return told | {"hypotheses": [text.name for text in texts.hypotheses]}


if __name__ == "__main__":
    sys.exit(main())

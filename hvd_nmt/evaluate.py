"""Score translations: sacreBLEU's BLEU, chrF2 and TER, with intervals, significance, signatures.

    python -m hvd_nmt.evaluate --run runs/demo
    python -m hvd_nmt.evaluate --run runs/demo --checkpoint best latest model.ckpt-600 --part test
    python -m hvd_nmt.evaluate --run runs/demo --source a.en --reference a.de --hypotheses their.de
    python -m hvd_nmt.evaluate --reference a.de b.de --hypotheses ours.de theirs.de

Checkpoints of the run are translated as hvd_nmt.translate does it; hypothesis files are scored as
they are. Each system is compared with the first one, checkpoints before files. The seed of
resampling is fixed, so the same command prints the same numbers.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tyro.conf import OmitArgPrefixes

from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.progress import progress
from hvd_nmt.config import command_line
from hvd_nmt.translation import scoring, texts
from hvd_nmt.translation.scoring import Text
from hvd_nmt.translation.settings import Settings

_REMARKS = 5
"""lines of the source of which stderr says what befell them, for each system"""


@dataclasses.dataclass(frozen=True)
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
    keep: Path | None = None
    """folder for the translations of the checkpoints, each as NAME.txt; by default not kept"""
    json: bool = False
    """print JSON with all digits instead of the table"""
    settings: OmitArgPrefixes[Settings] = dataclasses.field(default_factory=Settings)

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


@dataclasses.dataclass(frozen=True)
class _Texts:
    """Everything that is read before a model is loaded."""

    source: Text | None
    """None if there is no checkpoint to translate with"""
    references: list[Text]
    hypotheses: list[Text]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return command_line.run("hvd_nmt.evaluate", Options, evaluate, str(__doc__), argv)


def evaluate(options: Options) -> None:
    """Translates, scores, and prints the table or JSON.

    Raises:
        UserError: the run, a checkpoint or a text cannot be used.
    """
    scoring.seed()  # a wrong one is said before anything is translated
    read = _read(options)
    translations = {} if read.source is None else _translations(options, read)
    systems = [*translations.values(), *read.hypotheses]
    with progress(len(scoring.METRICS), "metrics", "scoring") as bar:
        comparison = scoring.compare(systems, read.references, options.paired, bar.update)
    if options.json:
        told = _provenance(options, read, list(translations))
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
            source, target = texts.prepared(options.run, options.part)
            references = references or [target]
    hypotheses = [scoring.read(path) for path in options.hypotheses]
    scoring.require_equal_lengths([*([source] if source else []), *references, *hypotheses])
    return _Texts(source, references, hypotheses)


def _translations(options: Options, read: _Texts) -> dict[Path, Text]:
    """Prefix of each checkpoint -> its translations."""
    assert options.run is not None
    assert read.source is not None
    # TensorFlow takes seconds to import: not for --help, nor for files that are scored as they are.
    tensorflow_import.import_tensorflow()
    from hvd_nmt.checkpoints.find import find

    names = _named([find(options.run, which) for which in options.checkpoint or ("best",)])
    kept = {prefix: _place(options, read, name) for prefix, name in names.items()}
    found = {}
    for prefix, name in names.items():
        found[prefix] = Text(name, _translated(prefix, name, read.source, options))
        if (path := kept[prefix]) is not None:
            _write(path, found[prefix].lines)
    return found


def _translated(prefix: Path, name: str, source: Text, options: Options) -> list[str]:
    from hvd_nmt.translation import engine

    assert options.run is not None
    loaded = engine.load(options.run, [str(prefix)], options.settings)
    remarks: list[str] = []
    with progress(len(source.lines), "lines", name) as bar:
        found = loaded.texts(
            source.lines, bar.update,
            lambda number, text: remarks.append(f"{name}: {source.name}, line {number}: {text}"),
        )  # fmt: skip
        lines = list(found)
    for remark in remarks[:_REMARKS]:
        print(remark, file=sys.stderr)
    if len(remarks) > _REMARKS:
        print(f"{name}: and {len(remarks) - _REMARKS:,} such lines more", file=sys.stderr)
    return lines


def _named(prefixes: Sequence[Path]) -> dict[Path, str]:
    """Each checkpoint with its name: the last part of its prefix, or all where two share it."""
    for prefix in prefixes:
        if prefixes.count(prefix) > 1:
            raise ConfigError(f"--checkpoint names {prefix} twice: give each checkpoint once.")
    short = [prefix.name for prefix in prefixes]
    return {p: p.name if short.count(p.name) == 1 else str(p) for p in prefixes}


def _place(options: Options, read: _Texts, name: str) -> Path | None:
    """The file for the translations of a checkpoint, seen to be none of the inputs."""
    if options.keep is None:
        return None
    path = options.keep / f"{name.replace('/', '_')}.txt"
    assert read.source is not None
    for text in (read.source, *read.references, *read.hypotheses):
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


def _provenance(options: Options, read: _Texts, prefixes: Sequence[Path]) -> dict[str, Any]:
    """What was scored, and how it was translated."""
    told: dict[str, Any] = {"references": [text.name for text in read.references]}
    if read.source is not None:
        settings = options.settings.decisive()
        settings["draws_seed"] = settings.pop("seed")  # seed alone is that of resampling
        told |= {
            "source": read.source.name,
            "run": str(options.run),
            "checkpoints": [str(prefix) for prefix in prefixes],
        } | settings
    return told | {"hypotheses": [text.name for text in read.hypotheses]}


if __name__ == "__main__":
    sys.exit(main())

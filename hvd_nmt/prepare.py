"""Raw parallel text to a prepared data directory: clean, train SentencePiece, encode.

    python -m hvd_nmt.prepare --corpus embedded --out data/embedded-en-de
    python -m hvd_nmt.prepare --train-source train.en.gz --train-target train.de.gz \\
        --dev-source val.en.gz --dev-target val.de.gz --source-language en --target-language de \\
        --vocabulary-size 8000 --out data/multi30k

Training pairs with an empty side, and pairs longer than --max-length, are left out and counted.
Dev and test pairs are all kept, so that BLEU stays comparable; an over-long dev sentence is cut for
the loss, its text is not. The same command again sees that the work is done. Exit codes: 0 done,
2 wrong command line, 3 wrong data. No TensorFlow in this process (see hvd_nmt.data.subwords).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import sentencepiece

from hvd_nmt import __version__, command_line
from hvd_nmt.data import corpus, drafts, embedded, subwords
from hvd_nmt.data.atomic import exclusive, replacing
from hvd_nmt.data.drafts import Draft
from hvd_nmt.data.text import read_lines
from hvd_nmt.errors import ConfigError, DataError, reported


@dataclass(frozen=True)
class Options:
    """What to prepare."""

    out: Path
    """directory to make"""
    corpus: Literal["files", "embedded"] = "files"
    """files: those named below; embedded: the package's own English-German corpus"""
    train_source: Path | None = None
    """training text, one sentence per line, UTF-8, plain or .gz"""
    train_target: Path | None = None
    """its translation, line by line"""
    dev_source: Path | None = None
    """dev text, for the validation loss and BLEU while training"""
    dev_target: Path | None = None
    """its translation"""
    test_source: Path | None = None
    """test text, kept as it is"""
    test_target: Path | None = None
    """its translation"""
    dev_size: int = 0
    """without dev files: training pairs to hold out instead, evenly spread over the corpus"""
    source_language: str = "en"
    """name of the source language, used in file names"""
    target_language: str = "de"
    """name of the target language, used in file names"""
    vocabulary_size: int = 0
    """joint SentencePiece pieces; 0: 8,000 for files, 4,000 for the embedded corpus"""
    max_length: int = 128
    """longest training sentence, subword tokens with eos"""
    too_long: Literal["skip", "truncate"] = "skip"
    """what becomes of a training pair with a longer sentence"""
    seed: int = 1
    """seed of the embedded corpus"""
    overwrite: bool = False
    """replace a directory that was prepared with other settings"""

    def __post_init__(self) -> None:
        if not self.out.name:
            raise ConfigError("--out is the working directory: give a directory of its own.")
        for part in ("train", "dev", "test"):
            sides = getattr(self, f"{part}_source"), getattr(self, f"{part}_target")
            if sides.count(None) == 1:
                raise ConfigError(f"Give both --{part}-source and --{part}-target, or neither.")
        if self.corpus == "embedded":
            if self.files or self.dev_size or self.languages != ("en", "de"):
                raise ConfigError(
                    "The embedded corpus is English to German and brings its own dev and test "
                    "parts: give no files, languages or --dev-size to it."
                )
        elif "train" not in self.files:
            raise ConfigError(
                "Give --train-source and --train-target, or --corpus embedded for the package's "
                "own corpus."
            )
        elif ("dev" in self.files) == (self.dev_size > 0):
            raise ConfigError(
                "Give either --dev-source and --dev-target, or --dev-size 1000 to hold 1,000 "
                "training pairs out."
            )
        for language in self.languages:
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", language):
                raise ConfigError(f"{language!r} is no language name: use one like en or pt_BR.")
        if self.source_language == self.target_language:
            raise ConfigError("The two languages name files: they must have different names.")
        if self.max_length < 2 or self.vocabulary_size < 0 or self.dev_size < 0 or self.seed < 0:
            raise ConfigError(
                "--max-length must be at least 2; --vocabulary-size, --dev-size and --seed at "
                "least 0."
            )

    @property
    def files(self) -> dict[str, tuple[Path, Path]]:
        """The source and target file of each part that was given."""
        given = {
            "train": (self.train_source, self.train_target),
            "dev": (self.dev_source, self.dev_target),
            "test": (self.test_source, self.test_target),
        }
        return {part: (s, t) for part, (s, t) in given.items() if s is not None and t is not None}

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.source_language, self.target_language

    @property
    def pieces(self) -> int:
        """SentencePiece pieces to ask for."""
        return self.vocabulary_size or (4000 if self.corpus == "embedded" else 8000)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    with reported("hvd_nmt.prepare") as outcome:
        options = command_line.options(
            Options, prog="python -m hvd_nmt.prepare", description=str(__doc__), argv=argv
        )
        prepare(options)
    return outcome.exit_code


def prepare(options: Options) -> None:
    """Makes the data directory, unless it is there already.

    Raises:
        DataError: the inputs cannot be used, or another directory is in the way.
    """
    request = _request(options)
    with exclusive(options.out):
        if _is_done(options, request):
            print(f"{options.out} is already prepared with these settings.")
            return
        seconds: dict[str, float] = {}
        with replacing(options.out) as directory:
            manifest = _build(options, request, directory, seconds)
    print(_summary(options, manifest, seconds))


def _request(options: Options) -> dict[str, Any]:
    """All that decides the result: the settings, and what is in the inputs (not their names)."""
    request: dict[str, Any] = {
        "corpus": options.corpus,
        "languages": list(options.languages),
        "pieces": options.pieces,
        "max_length": options.max_length,
        "too_long": options.too_long,
        "dev_size": options.dev_size,
    }
    if options.corpus == "embedded":
        # The words come from these two packages, the sentences from the generator's own code.
        words = {package: metadata.version(package) for package in ("babel", "num2words")}
        code = sorted(Path(embedded.__file__).parent.glob("*.py"))
        digests = "".join(corpus.fingerprint(file).sha256 for file in code)
        generator = hashlib.sha256(digests.encode()).hexdigest()
        return request | {"seed": options.seed, "words": words, "generator": generator}
    try:
        inputs = {
            part: [corpus.fingerprint(path).sha256 for path in paths]
            for part, paths in options.files.items()
        }
        return request | {"inputs": inputs}
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}.") from None


def _is_done(options: Options, request: dict[str, Any]) -> bool:
    """Whether the directory holds the very result; False if it may be made.

    Raises:
        DataError: something else is there, which is not ours to replace.
    """
    out = options.out
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / corpus.MANIFEST).is_file():
        raise DataError(f"{out} exists and is not a prepared data directory: choose another --out.")
    try:
        if corpus.load(out).manifest.request == request:
            return True
        state = f"{out} was prepared with other settings or from other text."
    except DataError as error:
        state = str(error)
    if options.overwrite:
        return False
    raise DataError(f"{state} Choose another --out, or add --overwrite to replace it.")


def _build(
    options: Options, request: dict[str, Any], directory: Path, seconds: dict[str, float]
) -> corpus.Manifest:
    """Fills an empty directory, counts the seconds of each stage, and returns the manifest."""
    work = directory / "work"
    work.mkdir()
    with _stage(seconds, "read"):
        parts = _read(options, directory, work)
    train = parts["train"]
    with _stage(seconds, "vocabulary"):
        text = chain.from_iterable(map(read_lines, train.text))
        model = subwords.load(subwords.train(text, options.pieces))
        (directory / corpus.SPM_MODEL).write_bytes(model.serialized_model_proto())
        subwords.write_vocabulary(model, directory / corpus.SPM_VOCAB)
    with _stage(seconds, "encode"):
        skip = options.too_long == "skip"
        drafts.encode(train, model, options.max_length, skip, _paths(directory, "train", options))
        drafts.encode(
            parts["dev"], model, options.max_length, False, _paths(directory, "dev", options)
        )
    if not train.pairs:
        raise DataError(
            f"No training pair is left of {train.pairs_read}: {_rules(train.removed)} "
            f"(--max-length {options.max_length})."
        )
    shutil.rmtree(work)
    with _stage(seconds, "check sums"):
        manifest = corpus.Manifest(
            format_version=corpus.FORMAT_VERSION,
            source_language=options.source_language,
            target_language=options.target_language,
            vocabulary_pieces=model.get_piece_size(),
            vocabulary_size=subwords.rounded_up(model.get_piece_size()),
            max_length=options.max_length,
            request=request,
            versions={"hvd_nmt": __version__, "sentencepiece": sentencepiece.__version__},
            parts={part: draft.finished() for part, draft in parts.items()},
            files={path.name: corpus.fingerprint(path) for path in sorted(directory.iterdir())},
        )
        corpus.write_manifest(directory, manifest)
    return manifest


def _read(options: Options, directory: Path, work: Path) -> dict[str, Draft]:
    """Reads all parts. The text of dev and test goes to the directory, that of train does not."""
    inputs = _generated(options, work) if options.corpus == "embedded" else options.files
    parts = {}
    for part, paths in inputs.items():
        files = corpus.fingerprint(paths[0]), corpus.fingerprint(paths[1])
        text = _paths(work if part == "train" else directory, part, options)
        parts[part] = drafts.read(paths, files, text, drop_blank=part == "train")
    if options.dev_size:
        text = _paths(directory, "dev", options)
        parts["dev"] = drafts.hold_out(parts["train"], options.dev_size, text)
    return parts


def _generated(options: Options, work: Path) -> dict[str, tuple[Path, Path]]:
    """Writes the embedded corpus to files, to go the same way as any other text."""
    inputs = {}
    for part, pairs in embedded.generate(options.seed).items():
        paths = _paths(work, f"raw.{part}", options)
        for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
            path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        inputs[part] = paths
    return inputs


def _paths(directory: Path, part: str, options: Options) -> tuple[Path, Path]:
    source, target = (directory / f"{part}.{language}" for language in options.languages)
    return source, target


@contextmanager
def _stage(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[name] = time.monotonic() - start


def _summary(options: Options, manifest: corpus.Manifest, seconds: dict[str, float]) -> str:
    """The table that `prepare` prints."""
    source, target = options.languages
    lines = [
        f"{'part':8}{'pairs read':>12}{'kept':>12}{f'{source} MB':>10}{f'{target} MB':>10}"
        f"{f'{source} tokens':>14}{f'{target} tokens':>14}  removed"
    ]
    for name, part in manifest.parts.items():
        mb = [f"{side.kept_text_bytes / 1e6:.3f}" for side in (part.source, part.target)]
        tokens = [f"{side.tokens:,}" if side.tokens else "-" for side in (part.source, part.target)]
        removed = _rules(part.removed)
        if part.truncated:
            removed += f"; {part.truncated:,} cut to {manifest.max_length} tokens"
        lines.append(
            f"{name:8}{part.pairs_read:>12,}{part.pairs:>12,}{mb[0]:>10}{mb[1]:>10}"
            f"{tokens[0]:>14}{tokens[1]:>14}  {removed}"
        )
    stages = ", ".join(f"{name} {stage_s:.1f} s" for name, stage_s in seconds.items())
    lines += [
        f"vocabulary: {manifest.vocabulary_pieces:,} joint pieces, "
        f"{manifest.vocabulary_size:,} embedding rows",
        f"time: {stages}",
        f"data {manifest.hash[:12]}, vocabulary {manifest.vocabulary_hash[:12]} in {options.out}",
    ]
    return "\n".join(lines)


def _rules(removed: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {rule}" for rule, count in sorted(removed.items())) or "none"


if __name__ == "__main__":
    sys.exit(main())

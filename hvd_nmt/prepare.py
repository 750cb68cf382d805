"""Raw parallel text to a prepared data directory: clean, train SentencePiece, encode.

    python -m hvd_nmt.prepare --corpus embedded --out data/embedded-en-de
    python -m hvd_nmt.prepare --dataset wmt16-en-de --max-length 56 --out data/wmt16-en-de
    python -m hvd_nmt.prepare --train-source train.en.gz --train-target train.de.gz \\
        --dev-source val.en.gz --dev-target val.de.gz --source-language en --target-language de \\
        --vocabulary-size 8000 --out data/multi30k

Training pairs with an empty side, and pairs longer than --max-length, are left out and counted.
Dev and test pairs are all kept, so that BLEU stays comparable; an over-long dev sentence is cut for
the loss, its text is not. The same command again sees that the work is done; after a kill it goes
on behind the last finished stage, with OUT.work, and the result is the same to the byte. Exit
codes: 0 done, 2 wrong command line, 3 wrong data. No TensorFlow in this process (see
hvd_nmt.preparation.subwords).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from hvd_nmt import __version__, code_hash
from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.files import exclusive, put_in_place, require_free
from hvd_nmt.config import command_line
from hvd_nmt.data import corpus
from hvd_nmt.data.corpus import File
from hvd_nmt.data.text import read_lines, read_pairs
from hvd_nmt.preparation import (
    cleaning,
    embedded,
    encoding,
    openseq2seq_files,
    quality,
    removed,
    subwords,
)
from hvd_nmt.preparation import stages as drafts
from hvd_nmt.preparation.journal import Journal, discard
from hvd_nmt.preparation.options import Inputs, Options, fingerprints, inputs, request
from hvd_nmt.preparation.stages import Cleaning, Draft, Paths
from hvd_nmt.preparation.workers import WorkerKilledError

_RESULT = "result"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return command_line.run("hvd_nmt.prepare", Options, prepare, str(__doc__), argv)


def prepare(options: Options) -> None:
    """Makes the data directory, unless it is there already.

    Raises:
        ConfigError: `removed` is an input, is there already or has no folder to be in, or
            `write_recipe` is there already.
        DataError: the inputs cannot be used, or another directory is in the way.
    """
    if options.write_recipe:
        require_free(options.write_recipe, "--write-recipe")
    if options.vocabulary:
        subwords.require_marks(options.vocabulary)
    work = options.out.with_name(f"{options.out.name}.work")
    _check_removed(options, work)
    with exclusive(options.out):
        if options.removed and not options.removed.parent.is_dir():
            raise ConfigError(f"--removed: there is no folder {options.removed.parent}.")
        if options.removed and not (options.out / corpus.MANIFEST).is_file():
            removed.require_new(options.removed, work)
        given = inputs(options)
        files = {part: fingerprints(paths) for part, paths in given.items()}
        wanted = request(options, files)
        if _is_done(options, wanted):
            print(f"{options.out} is already prepared with these settings.")
            if options.removed and not options.removed.exists():
                why = "it is written only while data are prepared"
                print(f"{options.removed} is not made: {why}.", file=sys.stderr)
            discard(work)
        else:
            if options.removed:  # once more: a download may have made a file of that name
                removed.require_new(options.removed, work)
            try:
                key = {"request": wanted, "removed": bool(options.removed), "code": code_hash(),
                       "sentencepiece": sentencepiece.__version__}  # fmt: skip
                _make(options, wanted, given, files, _journal(work, key))
            except WorkerKilledError:
                raise  # what is done is right
            except DataError:
                discard(work)
                raise
            except OSError as error:
                raise DataError(
                    f"{options.out} cannot be written: {error.strerror or error}. The same "
                    f"command goes on with what is in {work}."
                ) from error
    if options.write_recipe:
        with exclusive(options.write_recipe):
            require_free(options.write_recipe, "--write-recipe")  # still, after hours perhaps
            openseq2seq_files.write(options.write_recipe, corpus.load(options.out))
        print(f"the recipe's files are in {options.write_recipe}")


def _check_removed(options: Options, work: Path) -> None:
    """See that --removed would overwrite nothing that this command reads or makes."""
    if not options.removed:
        return
    read = [path for paths in options.files.values() for path in paths]
    read += [options.vocabulary] if options.vocabulary else []
    made = [("--out", options.out)]
    made += [("--write-recipe", options.write_recipe)] if options.write_recipe else []
    locks = [(option, path.with_name(f"{path.name}.lock")) for option, path in made]
    removed.require_place(options.removed, read, [*made, ("--out", work), *locks])


def _journal(work: Path, key: dict[str, Any]) -> Journal:
    journal = Journal(work, key)
    if journal.has("check sums") and not (work / _RESULT / corpus.MANIFEST).is_file():
        discard(work)  # it was put in place, and then somebody removed it
        journal = Journal(work, key)
    return journal


def _make(
    options: Options, wanted: dict[str, Any], given: Inputs,
    files: Mapping[str, tuple[File, File]], journal: Journal,
) -> None:  # fmt: skip
    """All stages; those that were finished before are not done again."""
    result = journal.directory / _RESULT
    result.mkdir(exist_ok=True)
    if options.dataset_dir:
        parts, counted = _read_recipe(options, given, files, journal, result)
    else:
        parts, counted = _read_text(options, given, files, journal, result)
    _require_pairs(parts["train"], f" (--max-length {options.max_length})")
    journal.stage("check sums", lambda: _finish(options, wanted, result, parts, counted))
    if options.removed:
        removed.write(journal.directory, options.removed)
    put_in_place(result, options.out)
    discard(journal.directory)
    print(_summary(options, corpus.load(options.out).manifest, journal))


def _read_text(
    options: Options, given: Inputs, files: Mapping[str, tuple[File, File]], journal: Journal,
    result: Path,
) -> tuple[dict[str, Draft], dict[str, Any]]:  # fmt: skip
    """Cleans text, trains the vocabulary, encodes; returns the parts and what quality counts."""
    work = journal.directory
    if options.corpus == "embedded":
        journal.stage("generate", lambda: _generate(options, work))
        given = {part: [_paths(work, f"raw.{part}", options)] for part in ("train", "dev", "test")}
        files = {part: fingerprints(paths) for part, paths in given.items()}
    parts: dict[str, Draft] = {}
    for part in sorted(given, key=["dev", "test", "train"].index):
        folder = work if part == "train" else result
        text = _paths(folder, part, options)

        def clean(part: str = part, text: Paths = text) -> dict[str, Any]:
            source, target = (next(read_lines(path, lenient=True), "") for path in given[part][0])
            held_out = _keys_of(parts, options, result)
            how = _cleaning(options, part, held_out, work, (source, target))
            return drafts.read(given[part], files[part], text, how).as_plain()

        parts[part] = Draft.from_plain(journal.stage(f"read {part}", clean), folder)
    _require_pairs(parts["train"])
    if options.dev_size:
        rest = _paths(work, "rest", options)

        def hold_out() -> list[Any]:
            text = _paths(result, "dev", options)
            leaks = options.rules.remove_leaks
            both = drafts.hold_out(parts["train"], options.dev_size, text, rest, leaks)
            return [draft.as_plain() for draft in both]

        train, dev = journal.stage("hold out", hold_out)
        parts |= {"train": Draft.from_plain(train, work), "dev": Draft.from_plain(dev, result)}
    _require_pairs(parts["train"])
    journal.stage("vocabulary", lambda: _train_vocabulary(options, parts["train"], result))

    def encode(part: str) -> list[Any]:
        draft, skip = parts[part], part == "train" and options.too_long == "skip"
        model = (result / corpus.SPM_MODEL).read_bytes()
        counts = quality.Quality(options.max_length) if part == "train" else None
        stems = _paths(result, part, options)
        encoding.encode(draft, model, options.max_length, skip, stems, counts)
        held_out = _keys_of(parts, options, result)
        return [draft.as_plain(), counts.counted(held_out) if counts is not None else None]

    plain, counted = journal.stage("encode train", lambda: encode("train"))
    parts["train"] = Draft.from_plain(plain, work)
    parts["dev"] = Draft.from_plain(journal.stage("encode dev", lambda: encode("dev"))[0], result)
    return parts, counted


def _read_recipe(
    options: Options, given: Inputs, files: Mapping[str, tuple[File, File]], journal: Journal,
    result: Path,
) -> tuple[dict[str, Draft], dict[str, Any]]:  # fmt: skip
    """Encodes the recipe's files; returns the parts and what quality counts."""
    assert options.dataset_dir is not None
    vocabulary = (
        options.dataset_dir / openseq2seq_files.VOCABULARY,
        options.dataset_dir / openseq2seq_files.MODEL,
    )
    pieces = openseq2seq_files.pieces_of(*vocabulary)

    def take_vocabulary() -> None:
        for path, name in zip(vocabulary, (corpus.SPM_VOCAB, corpus.SPM_MODEL), strict=True):
            shutil.copyfile(path, result / name)

    def read(part: str) -> list[Any]:
        counts = quality.Quality(options.max_length - 1) if part == "train" else None
        draft = openseq2seq_files.read(
            given[part][0], files[part], pieces, options.max_length, options.too_long == "skip",
            _paths(result, part, options), counts,
        )  # fmt: skip
        held_out = _keys_of(parts, options, result)
        return [draft.as_plain(), counts.counted(held_out) if counts is not None else None]

    journal.stage("vocabulary", take_vocabulary)
    parts: dict[str, Draft] = {}
    counted: dict[str, Any] = {}
    for part in sorted(given, key=["dev", "test", "train"].index):
        plain, counted = journal.stage(f"encode {part}", partial(read, part))
        parts[part] = Draft.from_plain(plain, result)
    return parts, counted


def _finish(
    options: Options, wanted: dict[str, Any], result: Path, parts: Mapping[str, Draft],
    counted: dict[str, Any],
) -> None:  # fmt: skip
    """Writes the manifest and what is known of the text's quality, which is no part of the data."""
    model = subwords.read(result / corpus.SPM_MODEL)
    ours = {corpus.MANIFEST, quality.REPORT, quality.FIGURE}
    files = [path for path in sorted(result.iterdir()) if path.name not in ours]
    manifest = corpus.Manifest(
        format_version=corpus.FORMAT_VERSION,
        source_language=options.source_language,
        target_language=options.target_language,
        vocabulary_pieces=model.get_piece_size(),
        vocabulary_size=subwords.rounded_up(model.get_piece_size()),
        max_length=options.max_length,
        request=wanted,
        versions={"hvd_nmt": __version__, "sentencepiece": sentencepiece.__version__},
        parts={part: parts[part].finished() for part in ("train", "dev", "test") if part in parts},
        files={path.name: corpus.fingerprint(path) for path in files},
    )
    corpus.write_manifest(result, manifest)
    quality.write(result, quality.report(options.languages, manifest.parts, counted))


def _train_vocabulary(options: Options, train: Draft, result: Path) -> None:
    if options.vocabulary:  # byte for byte: checkpoints are bound to its hash
        shutil.copyfile(options.vocabulary, result / corpus.SPM_MODEL)
        subwords.write_vocabulary(subwords.read(options.vocabulary), result / corpus.SPM_VOCAB)
        return
    text = subwords.sample(train.text, train.pairs, options.vocabulary_sample)
    model = subwords.load(subwords.train(text, options.pieces))
    (result / corpus.SPM_MODEL).write_bytes(model.serialized_model_proto())
    subwords.write_vocabulary(model, result / corpus.SPM_VOCAB)


def _generate(options: Options, work: Path) -> None:
    """Writes the embedded corpus to files, to go the same way as any other text."""
    for part, pairs in embedded.generate(options.seed).items():
        paths = _paths(work, f"raw.{part}", options)
        for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
            path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def _cleaning(options: Options, part: str, held_out: dict[str, np.ndarray], work: Path,
              first: tuple[str, str]) -> Cleaning:  # fmt: skip
    """How a part is cleaned. All pairs of dev and test stay, for a score counts them all."""
    if part != "train":
        wrong_bytes = "stop" if options.wrong_bytes == "stop" else "keep"
        return Cleaning(drafts.keep_all, None, wrong_bytes)
    rules = options.cleaning
    return Cleaning(
        cleaning.Cleaner(rules, options.languages, first),
        cleaning.Memory(rules, held_out) if rules.stateful else None,
        options.wrong_bytes,
        work / removed.NAME if options.removed else None,
    )


def _keys_of(parts: Mapping[str, Draft], options: Options, result: Path) -> dict[str, np.ndarray]:
    """Hashes of the pairs of dev and test."""
    return {
        part: cleaning.keys(list(read_pairs(*_paths(result, part, options))))
        for part in ("dev", "test")
        if part in parts
    }


def _is_done(options: Options, wanted: dict[str, Any]) -> bool:
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
        if corpus.load(out).manifest.request == wanted:
            return True
        state = f"{out} was prepared with other settings or from other text."
    except DataError as error:
        state = str(error)
    if options.overwrite:
        return False
    raise DataError(f"{state} Choose another --out, or add --overwrite to replace it.")


def _require_pairs(train: Draft, why: str = "") -> None:
    if not train.pairs:
        raise DataError(
            f"No training pair is left of {train.pairs_read}: {_rules(train.removed)}{why}."
        )


def _paths(directory: Path, part: str, options: Options) -> Paths:
    source, target = (directory / f"{part}.{language}" for language in options.languages)
    return source, target


def _summary(options: Options, manifest: corpus.Manifest, journal: Journal) -> str:
    """What `prepare` prints."""
    report = json.loads((options.out / quality.REPORT).read_text(encoding="utf-8"))
    stages = ", ".join(
        f"{name} {stage_s:.1f} s" + " (before)" * (name in journal.resumed)
        for name, stage_s in journal.seconds.items()
    )
    lines = [
        quality.table(report),
        f"vocabulary: {manifest.vocabulary_pieces:,} joint pieces, "
        f"{manifest.vocabulary_size:,} embedding rows{_other_size(options, manifest)}",
        f"time: {stages}",
        f"data {manifest.hash[:12]}, vocabulary {manifest.vocabulary_hash[:12]} in {options.out}",
    ]
    for name, part in manifest.parts.items():
        if part.truncated:
            lines.insert(1, f"{name}: {part.truncated:,} pairs cut to {manifest.max_length} tokens")
    return "\n".join(lines)


def _other_size(options: Options, manifest: corpus.Manifest) -> str:
    """Why there are not as many pieces as --vocabulary-size asked for; nothing if there are."""
    asked, pieces = options.vocabulary_size, manifest.vocabulary_pieces
    if not asked or asked == pieces:
        return ""
    why = "the number is rounded up to a multiple of 8"
    if pieces < asked:
        why = "the text gives no more"
    return f" ({asked:,} pieces were asked for; {why})"


def _rules(removed: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {rule}" for rule, count in sorted(removed.items())) or "none"


if __name__ == "__main__":
    sys.exit(main())

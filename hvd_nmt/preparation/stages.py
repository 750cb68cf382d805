"""The stages of `prepare` in their order: raw text to a data directory."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress, product
from pathlib import Path
from typing import Any, final

import numpy as np
import sentencepiece
from sentencepiece import SentencePieceProcessor

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import fingerprint
from hvd_nmt.common.progress import announce, print_line
from hvd_nmt.common.version import __version__
from hvd_nmt.data import corpus
from hvd_nmt.data.text import read_lines
from hvd_nmt.preparation import corpus_files, embedded, encoding, parts, quality, subwords, survey
from hvd_nmt.preparation.corpus_files import CorpusFiles, Input, Paths
from hvd_nmt.preparation.encoding import LengthLimit
from hvd_nmt.preparation.normalization import normalized, with_rule
from hvd_nmt.preparation.options import PreparationOptions
from hvd_nmt.preparation.parts import PartState

_ROUGH_PAIRS, _ROUGH_COVERAGE = 100_000, 0.995
"""pairs and coverage of the vocabulary by which pairs are judged before the real one is learned"""


def make_data_directory(
    options: PreparationOptions, corpora: Sequence[CorpusFiles], request: dict[str, Any],
    result: Path,
) -> None:  # fmt: skip
    """Makes the data directory that `request` describes; DataError: no training pair is left."""
    work = result / "work"
    work.mkdir()
    if options.dataset == "embedded":
        raw = {part: Input.of([paths]) for part, paths in embedded.unpack(work).items()}
        corpora = [replace(corpora[0], inputs=raw)]
    build = _Build(options, corpora, result, work)
    for number, path in enumerate(options.vocabularies):
        subwords.require_fit(path, () if number else build.tags)  # tags are of sources
    made = _clean_parts(build)
    for part in reversed(made):
        _require_pairs(part, made[part])
    for part, number in product([name for name in made if name != "train"], range(len(corpora))):
        if part in corpora[number].inputs and parts.look_swapped(made["train"], made[part], number):
            files = corpora[number].inputs[part].paths[0]
            source, target = files[0], files[-1]
            print_line(
                f"The files of {part} or of train look swapped: {source} reads like the targets of "
                f"train, {target} like the sources. Exchange the wrong ones, with --overwrite."
            )
    if any(corpus.dev_size for corpus in corpora):
        held = build.paths(work if "dev" in made else result, "dev")
        rest = build.paths(work, "rest")
        made["train"], dev = parts.hold_out(made["train"], corpora, held, rest)
        if "dev" in made:
            dev = parts.joined_parts([made["dev"], dev], build.paths(result, "dev"))
        made["dev"] = dev
    models = _vocabularies(build, made["train"])
    before, names = replace(made["train"]), [corpus.name for corpus in corpora]
    lengths = encoding.encode_part(
        made["train"], models, build.limit, build.paths(result, "train"), is_train=True,
        copying=options.copying, languages=[corpus.languages for corpus in corpora],
    )  # fmt: skip
    dev_stems = build.paths(result, "dev")
    encoding.encode_part(made["dev"], models, build.limit, dev_stems, is_train=False)
    _require_pairs("train", made["train"], f", --max-length {options.max_length}")
    too_long = encoding.removed_by_length(lengths, build.limit)
    if too_long.any():
        parts.record_removed(before, names, result, too_long)
    surveyed = list(survey.lines(corpora, made | {"train": before}, models))
    shutil.rmtree(work)
    manifest = _manifest(build, made, request, *models)
    corpus.write_manifest(result, manifest)
    report = quality.report(
        build.languages, manifest.parts, lengths, before.kept["keys"], _held_out(made),
        options.max_length,
    ) | {"survey": surveyed, "removed": {
        name: made["train"].removed_by_rule(number) for number, name in enumerate(names) if name
    }}  # fmt: skip
    text = json.dumps(report, indent=1, ensure_ascii=False)
    (result / quality.REPORT).write_text(text + "\n", encoding="utf-8", newline="\n")


@final
class _Build:
    """A data directory in the making: what several stages need to know."""

    def __init__(
        self, options: PreparationOptions, corpora: Sequence[CorpusFiles], result: Path, work: Path
    ) -> None:
        self.options, self.corpora = options, corpora
        self.result, self.work = result, work
        self.languages = corpus_files.side_names(corpora)
        tags = (*options.learning.tags, *(tag for corpus in corpora for tag in corpus.tags))
        self.tags = tuple(dict.fromkeys(tags))
        self.limit = LengthLimit(options.max_length, skip=options.too_long == "skip")

    def paths(self, folder: Path, name: str) -> Paths:
        """A source and a target path, such as `folder/name.en` and `folder/name.de`."""
        return folder / f"{name}.{self.languages[0]}", folder / f"{name}.{self.languages[1]}"


def _clean_parts(build: _Build) -> dict[str, PartState]:
    """Writes the clean text of all parts, train last: what the others hold is taken out of it."""
    made: dict[str, PartState] = {}
    for part in ("dev", "test", "train"):
        if any(part in corpus.inputs for corpus in build.corpora):
            text = build.paths(build.work if part == "train" else build.result, part)
            made[part] = parts.clean_part(
                part, build.corpora, text, build.result, wrong_bytes=build.options.wrong_bytes,
                known_tags=build.tags, held_out=_held_out(made),
            )  # fmt: skip
    return made


def _held_out(made: Mapping[str, PartState]) -> dict[str, np.ndarray]:
    """The `cleaning.keys` of the pairs of dev and test."""
    return {name: made[name].kept["keys"] for name in ("dev", "test") if name in made}


def _vocabularies(build: _Build, train: PartState) -> encoding.Models:
    """Vocabularies of source and target, learned or given; the same where it is joint."""
    given = build.options.vocabularies
    learned = [path.read_bytes() for path in given] if given else _learned(build, train)
    names = (corpus.SPM_SOURCE_MODEL, corpus.SPM_MODEL)[-len(learned) :]
    models = []
    for path, content in zip(map(build.result.joinpath, names), learned, strict=True):
        path.write_bytes(content)  # byte for byte, for checkpoints are bound to their hashes
        models.append(model := subwords.load(content))
        pieces = enumerate(subwords.pieces(model))
        lines = "".join(f"{piece}\t{model.get_score(i):g}\n" for i, piece in pieces)
        path.with_suffix(".vocab").write_text(lines, encoding="utf-8", newline="\n")
    return models[0], models[-1]


def _learned(build: _Build, train: PartState) -> list[bytes]:
    """Vocabularies of the pairs that encoding keeps, which depends on vocabularies.

    Rough ones without rare characters find them first: noise may have thousands of rare characters.
    """
    most = build.options.vocabulary_sample
    chosen = subwords.spread(train.pairs, most)
    tell = print_line if train.pairs > _ROUGH_PAIRS else announce  # in a file what takes long alone
    tell(f"learning the vocabulary from {chosen.sum():,} pairs")
    sample = parts.subset(train, build.paths(build.work, "sample"), chosen)
    some = subwords.spread(train.pairs, min(most or _ROUGH_PAIRS, _ROUGH_PAIRS))
    try:
        rough = [*map(subwords.load, _trained(build, train.text, some, _ROUGH_COVERAGE))]
    except DataError:  # the real ones, which have more characters, say what is wrong
        kept = np.ones(sample.pairs, bool)
    else:
        lengths = encoding.encode_part(
            replace(sample, removed=Counter()), (rough[0], rough[-1]), build.limit,
            build.paths(build.work, "rough"), is_train=True,
        )  # fmt: skip
        kept = encoding.removed_by_length(lengths, build.limit) == ""
    # The end says of how many pairs none is left.
    return _trained(build, sample.text, kept if kept.any() else ~kept)


def _trained(build: _Build, text: Paths, chosen: np.ndarray, coverage: float = 1.0) -> list[bytes]:
    """Models of the chosen pairs, bool [pairs]: a joint one, or those of source and target.

    Of a joint vocabulary there are two models if the sides are normalised by different rules.
    """
    options = build.options
    is_rough = coverage < 1
    coverage = min(options.learning.character_coverage, coverage)
    source_rule, rule = options.normalization_rules
    learning = replace(
        options.learning, tags=build.tags, character_coverage=coverage, normalization_rule=rule
    )
    raw, targets = (compress(read_lines(path), chosen) for path in text)
    sources = normalized(raw, source_rule)
    *_, pieces = options.pieces
    if options.separate_vocabularies:
        of_source = replace(learning, normalization_rule=source_rule)
        source = subwords.train(sources, options.pieces[0], of_source, "--source-vocabulary-size")
        target = subwords.train(targets, pieces, replace(learning, tags=()))
    else:
        source = target = subwords.train(chain(sources, targets), pieces, learning)
    folds = source_rule == "visible" and not is_rough
    if folds or source_rule != rule:
        source = with_rule(source, source_rule, folds)
    return [target] if source == target else [source, target]


def _manifest(
    build: _Build, made: Mapping[str, PartState], request: dict[str, Any],
    source: SentencePieceProcessor, target: SentencePieceProcessor,
) -> corpus.DataManifest:  # fmt: skip
    paths = [p for p in sorted(build.result.iterdir()) if not p.name.startswith("removed.")]
    pieces, copying = subwords.pieces(source), build.options.copying
    has_own = source is not target
    # Where two models give each piece the same id, as in OPUS-MT, one matrix serves both sides.
    has_own_rows = has_own and pieces != subwords.pieces(target)
    pairs = {
        part: np.bincount(state.kept["corpus"], minlength=len(build.corpora))
        for part, state in made.items()
    }
    mixed = [
        corpus.MixedCorpus(
            files.name, *files.languages, list(files.tags), files.weight, files.date,
            pairs={part: int(of_part[number]) for part, of_part in pairs.items()},
        )
        for number, files in enumerate(build.corpora)
        if files.name
    ]  # fmt: skip
    return corpus.DataManifest(
        format_version=corpus.FORMAT_VERSION,
        source_language=build.languages[0],
        target_language=build.languages[1],
        vocabulary_pieces=target.get_piece_size(),
        vocabulary_size=subwords.rounded_up(target.get_piece_size()),
        max_length=build.limit.tokens,
        request=request,
        versions={"hvd_nmt": __version__, "sentencepiece": sentencepiece.__version__},
        parts={part: made[part].finished() for part in ("train", "dev", "test") if part in made},
        files={path.name: fingerprint(path) for path in paths},
        corpora=mixed,
        copies=copying.copies if copying.is_on else 0,
        source_vocabulary_pieces=len(pieces) if has_own else 0,
        source_vocabulary_size=subwords.rounded_up(len(pieces)) if has_own_rows else 0,
    )


def _require_pairs(name: str, part: PartState, why: str = "") -> None:
    if not part.pairs:
        counts = ", ".join(f"{count:,} {rule}" for rule, count in part.removed_by_rule().items())
        pairs = f"{part.pairs_read} {'training' if name == 'train' else name} pairs"
        raise DataError(
            f"Cleaning leaves none of {pairs} ({counts or 'no text'}{why}): check the files and "
            "these rules."
        )

"""The request of a data directory: all that decides its content, as its manifest records it.

A setting at its default is absent. So a new setting that is off by default changes no request, and
directories of earlier versions stay valid.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hvd_nmt.config.mixture import AS_IS
from hvd_nmt.config.serialization import as_plain, flat
from hvd_nmt.preparation import embedded
from hvd_nmt.preparation.bitext import Columns
from hvd_nmt.preparation.cleaning import CleaningRules
from hvd_nmt.preparation.copies import Copying
from hvd_nmt.preparation.corpus_files import CorpusFiles, file_facts
from hvd_nmt.preparation.options import PreparationOptions
from hvd_nmt.preparation.subwords import Learning

FORMAT_VERSION = 2
_DEFAULTS = dict(flat({
    "max_length": PreparationOptions.max_length, "too_long": PreparationOptions.too_long,
    "dev_size": 0, "source_pieces": 0, "vocabulary_sample": PreparationOptions.vocabulary_sample,
    "not_utf8": "stop", "normalization_rules": ["visible", "nfc"],
    "rules": as_plain(CleaningRules(clean="none")), "learning": as_plain(Learning()),
    "copying": as_plain(Copying()),
    # of each of several corpora; n_best is in requests without a format version
    "tags": [], "weight": AS_IS, "date": "", "n_best": False,
    "columns": dict.fromkeys(("train", "dev", "test"), as_plain(Columns())),
}))  # fmt: skip
"""by dotted name"""


def request(options: PreparationOptions, corpora: Sequence[CorpusFiles]) -> dict[str, Any]:
    """The settings by dotted name, and the digests of all inputs; not the names of files."""
    digests = [file_facts(path).sha256 for path in options.vocabularies]
    learning = as_plain(options.learning) | {"normalization_rule": "auto"}
    settings: dict[str, Any] = {
        "corpus": "embedded" if options.dataset == "embedded" else "files",
        "languages": list(options.languages),
        "pieces": options.pieces[-1],
        "source_pieces": options.pieces[0] if options.separate_vocabularies else 0,
        "max_length": options.max_length,
        "too_long": options.too_long,
        "dev_size": options.dev_size,
        "rules": as_plain(options.cleaning),
        "vocabulary_sample": options.vocabulary_sample,
        "learning": learning,
        "normalization_rules": None if digests else list(options.normalization_rules),
        "vocabulary": digests[-1] if digests else None,
        "source_vocabulary": digests[0] if len(digests) > 1 else None,
        "copying": as_plain(options.copying) if options.copying.is_on else None,
        "not_utf8": options.wrong_bytes,
    }
    if options.dataset == "embedded":
        settings |= embedded.REQUEST
    elif options.corpora:
        settings["corpora"] = [_changed(_of_corpus(corpus)) for corpus in corpora]
    else:
        inputs = corpora[0].inputs.items()
        settings["inputs"] = {part: [file.sha256 for file in raw.files] for part, raw in inputs}
    return {"format_version": FORMAT_VERSION} | _changed(settings)


def is_met(options: PreparationOptions, wanted: dict[str, Any], made: dict[str, Any]) -> bool:
    """Whether a directory with the request `made` is what the options want by theirs.

    A request without a format version is nested and has defaults, too. What its version did not
    know is not compared where the options do not ask for it.
    """
    if "format_version" in made:
        return made == wanted
    skipped = {"format_version"}
    if options.source_vocabulary is None:
        skipped |= {"source_vocabulary"} - made.keys()
    if options.chooses_normalization:
        made = {"normalization_rules": ["nmt_nfkc", "nmt_nfkc"]} | made  # the only ones then
    else:
        skipped |= {"normalization_rules"} - made.keys()
    if "corpora" in made:
        made = made | {"corpora": [_changed(_with_columns(corpus)) for corpus in made["corpora"]]}
    return _changed(made) == {name: wanted[name] for name in wanted if name not in skipped}


def _changed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that differ from the defaults, by dotted name."""
    return {name: value for name, value in flat(values) if value != _DEFAULTS.get(name)}


def _of_corpus(corpus: CorpusFiles) -> dict[str, Any]:
    inputs = corpus.inputs.items()
    return as_plain(replace(corpus, inputs={})) | {
        "columns": {part: as_plain(raw.columns) for part, raw in inputs},
        "inputs": {part: [[file.sha256 for file in pair] for pair in raw.facts]
                   for part, raw in inputs},
    }  # fmt: skip


def _with_columns(corpus: dict[str, Any]) -> dict[str, Any]:
    """A corpus of a request without a format version, which has columns as Python writes them."""
    columns = {}
    for part, text in corpus.get("columns", {}).items():
        call: Any = ast.parse(text, mode="eval").body
        columns[part] = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    return corpus | {"columns": columns}

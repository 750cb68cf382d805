"""Several corpora as one: each cleaned by its own rules, then their text one after the other."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

import numpy as np

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import FileFacts
from hvd_nmt.data.corpus import MixedCorpus
from hvd_nmt.preparation.corpora import Corpora
from hvd_nmt.preparation.parts import PartState, Paths, joined_files
from hvd_nmt.preparation.stages import Build, clean_part, require_pairs

_COPIED_BYTES = 1 << 20


def clean(build: Build, corpora: Corpora, wrong_bytes: str) -> dict[str, PartState]:
    """Reads all parts of several corpora and writes their clean text, corpus after corpus.

    Args:
        build: the data directory in the making.
        corpora: which, with their files, rules and tags.
        wrong_bytes: stop or skip, what becomes of a training pair that is not UTF-8.

    Raises:
        DataError: as `stages.clean`.
    """
    found: dict[str, PartState] = {}
    for name in ("dev", "test", "train"):
        if any(name in inputs for inputs in corpora.inputs.values()):
            states = _cleaned(build, corpora, name, wrong_bytes, found)
            text = build.paths(build.work if name == "train" else build.result, name)
            with build.stage(f"join {name}"):
                found[name] = _join(name, states, text)
    require_pairs(found["train"])
    return found


def records(corpora: Corpora, encoded: Mapping[str, PartState]) -> list[MixedCorpus]:
    """What the manifest says of each corpus.

    Args:
        corpora: all.
        encoded: all parts.
    """
    return [
        MixedCorpus(
            name=each.name,
            source_language=each.languages[0],
            target_language=each.languages[1],
            tags=list(each.tags),
            weight=each.weight,
            date=each.date,
            pairs={part: state.by_corpus[index] for part, state in encoded.items()},
        )
        for index, each in enumerate(corpora.corpora)
    ]


def _cleaned(
    build: Build,
    corpora: Corpora,
    part: str,
    wrong_bytes: str,
    clean_parts: Mapping[str, PartState],
) -> list[PartState]:
    """The part of each corpus; of one that has none, a state without pairs."""
    states = []
    for each in corpora.corpora:
        text = build.paths(build.work, f"{part}.of.{each.name}")
        raw = corpora.inputs[each.name].get(part)
        if raw is None:
            nothing = FileFacts(0, "")
            states.append(PartState((nothing, nothing), text))
            continue
        with build.stage(f"read {part} of {each.name}"):
            states.append(clean_part(
                build, raw, text, each.rules, wrong_bytes, clean_parts if part == "train" else None,
                of=each,
            ))  # fmt: skip
    return states


def _join(part: str, states: Sequence[PartState], text: Paths) -> PartState:
    """The same part of several corpora as one, their clean text in one file after the other."""
    present = [state for state in states if state.pairs_read]
    if not present:
        raise DataError(f"The {part} files of all corpora are empty: give some text.")
    source, target = (
        joined_files(side) for side in zip(*(state.inputs for state in present), strict=True)
    )
    whole = PartState((source, target), text, by_corpus=[state.pairs for state in states])
    for state in present:
        whole.pairs_read += state.pairs_read
        whole.pairs += state.pairs
        whole.removed.update(state.removed)
        whole.keys = np.concatenate([whole.keys, state.keys])
        for side in (0, 1):
            whole.text_bytes[side] += state.text_bytes[side]
            whole.kept_text_bytes[side] += state.kept_text_bytes[side]
    for side, path in enumerate(text):
        with open(path, "wb") as stream:
            for state in present:
                with open(state.text[side], "rb") as one:
                    shutil.copyfileobj(one, stream, _COPIED_BYTES)
    return whole

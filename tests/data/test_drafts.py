"""Memory does not grow with the corpus, and chunks leave no seam."""

from itertools import pairwise

import numpy as np
import pytest

from hvd_nmt.data import corpus, drafts, subwords

LINES = [f"number {i} of many lines" for i in range(50)]


@pytest.fixture
def draft(tmp_path):
    paths = tmp_path / "raw.en", tmp_path / "raw.de"
    for path in paths:
        path.write_text("\n".join(LINES))
    files = corpus.fingerprint(paths[0]), corpus.fingerprint(paths[1])
    return drafts.read(paths, files, (tmp_path / "text.en", tmp_path / "text.de"), True)


@pytest.fixture
def model():
    return subwords.load(subwords.train(LINES, 64))


@pytest.mark.parametrize("at_once", [1, 7, 50, 1000])
def test_chunks_leave_no_seam(draft, model, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(drafts, "_ENCODE_AT_ONCE", at_once)
    drafts.encode(draft, model, 32, True, (tmp_path / "en", tmp_path / "de"))
    ids, offsets = (np.load(tmp_path / f"en.{kind}.npy") for kind in ("ids", "offsets"))
    written = [ids[a:b].tolist() for a, b in pairwise(offsets)]
    assert written == subwords.encode_lines(model, LINES, 1)
    assert draft.pairs == 50
    assert draft.tokens == [len(ids), len(ids)]


def test_no_pair_left_is_an_empty_file_that_can_be_read(draft, model, tmp_path):
    drafts.encode(draft, model, 2, True, (tmp_path / "en", tmp_path / "de"))
    assert draft.removed == {drafts.TOO_LONG: 50}
    assert len(np.load(tmp_path / "en.ids.npy", mmap_mode="r")) == 0
    assert np.load(tmp_path / "en.offsets.npy").tolist() == [0]


def test_many_characters_in_few_pieces_are_too_long(model, tmp_path):
    """Unknown characters in a row are one unk: a line of noise must not become a training pair."""
    text = tmp_path / "text.en", tmp_path / "text.de"
    for path in text:
        path.write_text("\u4e2d" * 1000 + "\nnumber\n", encoding="utf-8")
    file = corpus.fingerprint(text[0])
    draft = drafts.Draft((file, file), text)
    drafts.encode(draft, model, 32, True, (tmp_path / "en", tmp_path / "de"))
    assert (draft.pairs, draft.removed) == (1, {drafts.TOO_LONG: 1})
    drafts.encode(draft, model, 32, False, (tmp_path / "en", tmp_path / "de"))
    assert draft.pairs == 2

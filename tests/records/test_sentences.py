"""The dev set sentence by sentence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hvd_nmt.common.errors import RunError
from hvd_nmt.records import sentences
from hvd_nmt.records.record import Run
from hvd_nmt.records.sentences import Sentence


@pytest.fixture
def run(toy_data: Path, tmp_path: Path) -> Run:
    """A run that translated the first 3 dev sentences at step 9 and at 10: at 10, 2 are right."""
    references = (toy_data / "dev.de").read_text(encoding="utf-8").splitlines()
    folder = tmp_path / "hypotheses"
    folder.mkdir()
    (folder / "dev.9.txt").write_text("nein\n" * 3, encoding="utf-8")
    lines = [references[0], "xyz", references[2]]
    (folder / "dev.10.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Run("run", tmp_path, "hvd_nmt", manifest={"directory": str(toy_data)})


def test_newest_translations_beside_source_and_reference(run: Run, toy_data: Path) -> None:
    found = sentences.read_sentences(run)
    sources = (toy_data / "dev.en").read_text(encoding="utf-8").splitlines()
    assert [sentence.source for sentence in found] == sources[:3]
    assert [sentence.number for sentence in found] == [1, 2, 3]
    assert found[1].hypothesis == "xyz"
    assert (found[0].chrf, found[2].chrf) == (pytest.approx(100), pytest.approx(100))
    assert found[1].chrf < 5


def test_what_is_missing_is_said(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"dev set of .* is not on this machine"):
        sentences.read_sentences(Run("run", tmp_path, "hvd_nmt"))
    shutil.rmtree(tmp_path / "hypotheses")
    with pytest.raises(RunError, match="was not evaluated"):
        sentences.read_sentences(run)


def pair(words: int, right: bool) -> Sentence:
    text = " ".join(f"w{n}" for n in range(words))
    return Sentence(1, text, text, text if right else "nothing of it is the same", 50.0)


def test_bleu_by_length_of_the_source() -> None:
    lengths = {4: True, 5: True, 6: False, 8: False, 40: True}
    found = sentences.bleu_by_length([pair(words, right) for words, right in lengths.items()])
    assert [(name, number) for name, number, _ in found] == [("1-5", 2), ("6-10", 2), ("31+", 1)]
    assert [bleu for *_, bleu in found] == pytest.approx([100, 0, 100], abs=4)

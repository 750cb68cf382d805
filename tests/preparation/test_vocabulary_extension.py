"""New pieces: whole, and invisible to text that holds none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_nmt.preparation import subwords, vocabulary_extension

LINES = [
    "A man in a green jacket waters the old garden behind his house.",
    "Ein Mann in grüner Jacke gießt den alten Garten hinter seinem Haus.",
    "Two children are playing with 12 coloured balls, aren't they?",
    "Zwei Kinder spielen mit 12 bunten Bällen, nicht wahr?",
] * 20
OLD = subwords.train(LINES, 200)
WORDS = "Gartenhaus Kindergarten\nΩmega Haus, 日本\n"


@pytest.fixture
def words(tmp_path: Path) -> vocabulary_extension.Extension:
    (tmp_path / "words").write_text(WORDS, encoding="utf-8")
    return vocabulary_extension.with_words(OLD, tmp_path / "words")


def cut(model: bytes, line: str) -> list[str]:
    return subwords.load(model).encode(line, out_type=str)


def test_every_word_of_the_file_is_one_piece(words: vocabulary_extension.Extension) -> None:
    pieces = ["▁Ωmega", "▁Kindergarten", "▁Gartenhaus", "▁日本"]
    assert cut(words.model, "Ωmega Kindergarten Gartenhaus 日本") == pieces
    old, new = subwords.load(OLD), subwords.load(words.model)
    wanted = [old.id_to_piece(i) for i in range(old.get_piece_size())] + words.pieces
    assert [new.id_to_piece(i) for i in range(new.get_piece_size())] == wanted
    assert len(words.parts) == len(words.pieces) == len(set(words.pieces))
    assert words.rows == subwords.rounded_up(len(wanted))
    lines = [line.replace("Haus", "Hut") for line in LINES]
    assert new.encode(lines) == old.encode(lines), "text without a new piece keeps its ids"

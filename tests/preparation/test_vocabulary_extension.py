"""New pieces: whole, learned by frequency, and invisible to text that holds none of them."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import pytest

from hvd_nmt.common.errors import DataError
from hvd_nmt.preparation import subwords, vocabulary_extension
from hvd_nmt.preparation.vocabulary_extension import SPACE

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


def restored(grown: vocabulary_extension.Extension, ids: list[int]) -> list[int]:
    """New pieces replaced by the old ones that they stand for."""
    first = grown.old_pieces
    return [old for new in ids for old in (grown.parts[new - first] if new >= first else [new])]


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


def test_new_pieces_refine_the_old_cut(words: vocabulary_extension.Extension) -> None:
    """Whatever was merged before is merged before: a new piece stands for whole old ones."""
    old, new = subwords.load(OLD), subwords.load(words.model)
    for line in [*LINES[:4], "Der Kindergarten im Gartenhaus: Ω, 日 und 本日!"]:
        ids, before = restored(words, new.encode(line)), old.encode(line)
        known = [i for i in before if i != subwords.UNK]
        assert [i for i in ids if i != subwords.UNK] == known
        assert ids.count(subwords.UNK) >= before.count(subwords.UNK)  # neighbours were one


def test_text_gives_its_most_frequent_pieces(tmp_path: Path) -> None:
    text = "Gartenzaun Gartenzaun Gartenzaun, Zaun 12km ß€ Zaunkönig\n" * 3
    (tmp_path / "text.gz").write_bytes(gzip.compress(text.encode()))
    grown = vocabulary_extension.with_text(OLD, tmp_path / "text.gz", 9)
    assert len(grown.pieces) == 9
    assert grown.pieces[:3] == ["z", "€", "ö"]  # unknown characters first, the frequent before
    assert "▁Gartenzaun" in cut(grown.model, "Ein Gartenzaun.")
    assert not [p for p in grown.pieces[3:] if not p.removeprefix(SPACE).isalpha()]
    assert vocabulary_extension.with_text(OLD, tmp_path / "text.gz", 9) == grown
    new = subwords.load(grown.model)
    assert restored(grown, new.encode(text)) == subwords.load(OLD).encode(text)
    assert len(new.encode(text)) < len(subwords.load(OLD).encode(text))


def test_frequency_is_counted_as_it_is() -> None:
    """Against a count of every pair anew after each merge."""
    words = {("a", "b", "a", "b", "c"): 3, ("b", "c"): 4, ("a", "b"): 1, ("c", "a", "b", "c"): 2}
    pairs = vocabulary_extension._Pairs(vocabulary_extension.Counter(words))
    found = []
    while best := pairs.best():
        found.append(best)
        pairs.merge(best)
    wanted, now = [], dict(words)
    while True:
        counts = vocabulary_extension.Counter()
        for word, times in now.items():
            for pair in pairwise(word):
                counts[pair] += times
        best = min(counts.items(), key=lambda item: (-item[1], item[0]), default=None)
        if best is None or best[1] < 2:
            break
        wanted.append(best[0])
        now = {merged(word, best[0]): times for word, times in now.items()}
    assert found == wanted
    assert len(found) > 4


def merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    result, rest = [], list(word)
    while rest:
        whole = tuple(rest[:2]) == pair
        result.append("".join(rest[:2]) if whole else rest[0])
        rest = rest[2 if whole else 1 :]
    return tuple(result)


def test_bytes_become_characters_and_symbols_stay_apart(tmp_path: Path) -> None:
    learning = subwords.Learning(byte_fallback=True, user_defined_symbols=("<ph>",))
    old = subwords.train([f"<ph>x {line}" for line in LINES], 500, learning)
    (tmp_path / "words").write_text(f"{WORDS}<0xE6>\n", encoding="utf-8")
    words = vocabulary_extension.with_words(old, tmp_path / "words")
    assert cut(words.model, "<ph>Gartenhaus 日本 中") == [
        SPACE, "<ph>", *cut(old, "xGartenhaus")[2:], "▁日本", SPACE, "<0xE4>", "<0xB8>", "<0xAD>"
    ]  # fmt: skip
    ids = subwords.load(words.model).encode("Gartenhaus 日本 <0xE6>")
    assert restored(words, ids) == subwords.load(old).encode("Gartenhaus 日本 <0xE6>")
    (tmp_path / "words").write_text("an x<ph>\n", encoding="utf-8")
    with pytest.raises(DataError, match="'▁x<ph>' is, or holds, a mark of the vocabulary"):
        vocabulary_extension.with_words(old, tmp_path / "words")


def test_what_cannot_be_extended(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("a in\n", encoding="utf-8")
    with pytest.raises(DataError, match="no word that is not a piece"):
        vocabulary_extension.with_words(OLD, path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match="nothing to make a new piece of"):
        vocabulary_extension.with_text(OLD, path, 5)

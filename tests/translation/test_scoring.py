"""Scores, intervals and p-values: those of the command sacrebleu, and what is made of them."""

import gzip
import json
import os
import random
import re

import pytest

from hvd_nmt.common.errors import DataError
from hvd_nmt.translation import scoring
from hvd_nmt.translation.scoring import Text
from toy import python

WORDS = ["der", "Mann", "sieht", "den", "roten", "Hund", "im", "Haus", "singt", ",", "weil", "es"]
LINES = 60
COMMAND = """
import json
from sacrebleu.sacrebleu import main
json.JSONEncoder.default = lambda self, number: float(number)  # it fails at its own NumPy numbers
main()
"""


@pytest.fixture(autouse=True)
def _no_seed(monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)


def reference(name="reference", seed=0):
    chance = random.Random(seed)
    lines = [chance.choices(WORDS, k=chance.randint(4, 12)) for _ in range(LINES)]
    return Text(name, [" ".join(words) + "  " for words in lines])


def system(name, wrong, seed=1):
    """The reference with this share of its words replaced, and with an empty line."""
    chance = random.Random(seed)
    lines = [
        " ".join(chance.choice(WORDS) if chance.random() < wrong else word for word in line.split())
        for line in reference().lines
    ]
    return Text(name, ["", *lines[1:]])


def sacrebleu(folder, references, systems, *options):
    """What the command prints as JSON."""
    for text in (*references, *systems):
        path = folder / text.name
        path.write_text("".join(line + "\n" for line in text.lines), encoding="utf-8")
    done = python(
        "-c", COMMAND, *(text.name for text in references), "-i",
        *(text.name for text in systems), "-m", "bleu", "chrf", "ter", "--format", "json",
        "-w", "6", *options, cwd=folder,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_paired_bootstrap_gives_the_numbers_of_the_command(tmp_path):
    references = [reference("r1"), reference("r2", seed=5)]
    systems = [system("a", 0.3), system("b", 0.31, seed=2), system("c", 0.6)]
    told = sacrebleu(tmp_path, references, systems, "--paired-bs")
    found = scoring.compare(systems, references)
    assert found.systems == ("a", "b", "c")
    assert list(found.scores) == ["BLEU", "chrF2"]
    for index, row in enumerate(told):
        assert found.ter[index] == row["TER"]["score"]
        for metric, scores in found.scores.items():
            score = scores[index]
            assert {name: getattr(score, name) for name in row[metric]} == row[metric]


def test_a_system_alone_has_intervals_and_the_command_s_signatures(tmp_path):
    told = sacrebleu(tmp_path, [reference()], [system("a", 0.3)], "--confidence")
    found = scoring.compare([system("a", 0.3)], [reference()])
    for row in told[:2]:
        assert found.signatures[row["name"]] == row["signature"]
        (score,) = found.scores[row["name"]]
        wanted = [row[name] for name in ("score", "confidence_mean", "confidence_var")]
        assert [score.score, score.mean, score.ci] == pytest.approx(wanted, abs=1e-5)
        assert score.p_value is None
    assert "p=" not in str(found)


def test_equal_translations_do_not_differ_significantly():
    found = scoring.compare([system("a", 0.3), system("b", 0.3)], [reference()])
    for first, second in found.scores.values():
        assert (first.score, first.p_value, second.p_value) == (second.score, None, 1.0)
    assert "1.0000" in str(found)
    assert "*" not in str(found).partition("\n\n")[0]


def test_the_table_is_aligned_and_explains_itself(golden_page):
    systems = [system("best", 0.0), system("a much longer name", 0.95)]
    found = scoring.compare(systems, [reference()])
    page = re.sub(r"version:\S+", "version:VERSION", str(found))
    golden_page("scores.txt", page + "\n")


def test_the_same_again_is_the_same_and_the_seed_is_sacrebleu_s(monkeypatch):
    systems = [system("a", 0.3), system("b", 0.4)]
    found = scoring.compare(systems, [reference()])
    assert scoring.as_json(scoring.compare(systems, [reference()])) == scoring.as_json(found)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    other = scoring.compare(systems, [reference()])
    assert (found.seed, other.seed) == (12345, 7)
    assert "|seed:7|" in other.signatures["BLEU"]
    assert other.scores["BLEU"][0].mean != found.scores["BLEU"][0].mean
    assert other.scores["BLEU"][0].score == found.scores["BLEU"][0].score


def test_files_are_read_and_empty_ones_named(tmp_path):
    packed, empty = tmp_path / "a.gz", tmp_path / "empty"
    packed.write_bytes(gzip.compress("\ufeffein Hund\r\n\nzwei\n".encode()))
    assert scoring.read(packed) == Text(str(packed), ["ein Hund", "", "zwei"])
    empty.touch()
    with pytest.raises(DataError, match=f"{os.fspath(empty)} is empty"):
        scoring.read(empty)


def test_a_blank_line_of_one_reference_is_no_reference():
    first, second = ["a dog sees the old man", "the bird sings a song"], ["a man sees the dog", " "]
    hypotheses = [Text("ours", ["a dog sees a man", "a bird sings the song"])]
    scores = [
        scoring.compare(hypotheses, [Text(str(i), lines) for i, lines in enumerate(references)])
        for references in ([first, second], [second, first], [first, [second[0], first[1]]])
    ]
    found = {(c.scores["BLEU"][0].score, c.scores["chrF2"][0].score, *c.ter) for c in scores}
    assert len(found) == 1
    lines = ["", "x y"]  # an empty translation of an empty sentence is right
    assert scoring.compare([Text("", lines)], [Text("", lines)]).ter == [0.0]

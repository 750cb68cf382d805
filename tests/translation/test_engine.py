"""Models, tokenizers and arithmetic behind one function: by the command and from Python."""

import json
from pathlib import Path

import numpy as np
import pytest

import hvd_nmt
from hvd_nmt import translate
from hvd_nmt.config import EOS
from hvd_nmt.model import device
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.translator import Translation
from hvd_nmt.translation import engine, file_job
from hvd_nmt.translation.engine import Line
from hvd_nmt.translation.settings import FileJob, Settings

LONG = ("--min-length", "6")
"""a model that has hardly learnt finds nothing more probable than an empty translation"""
PENALTY = ("--length-penalty", "0")


@pytest.fixture(scope="module")
def dev(toy_data):
    return (toy_data / "dev.en").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def translated(toy_run, toy_data, tmp_path):
    """Run the command on the dev set of a tiny trained run: lines of output, without their ends."""

    def command(*options):
        files = ("--input", str(toy_data / "dev.en"), "--output", str(tmp_path / "out"))
        assert translate.main(["--run", str(toy_run), *LONG, *files, *options]) == 0
        return (tmp_path / "out").read_text(encoding="utf-8").splitlines()

    return command


def test_scores_tokens_alignments_and_n_best(translated, dev):
    rows = [json.loads(row) for row in translated("--json", "--n-best", "3", *PENALTY)]
    texts = translated(*PENALTY)
    assert [row["line"] for row in rows] == [*range(1, len(dev) + 1)]
    for row, text, line in zip(rows, texts, dev, strict=True):
        assert row["text"] == row["n_best"][0]["text"] == text
        scores = [found["score"] for found in row["n_best"]]
        assert scores == sorted(scores, reverse=True)
        for found in row["n_best"]:
            pieces = [piece for piece in found["tokens"] if piece != "</s>"]
            assert "".join(pieces).replace("▁", " ").strip() == found["text"]
            assert sum(found["token_scores"]) == pytest.approx(found["score"], abs=0.01)
            target = [j for _, j in found["alignment"]]
            assert target == sorted(set(target))
            assert all(0 <= j < len(pieces) for j in target)
            assert all(0 <= i < len(line) for i, _ in found["alignment"])


def test_a_row_with_everything():
    ids, places = np.array([4, 5, 9, EOS], np.int32), np.array([1, -1, 0, -1], np.int32)
    found = Translation(ids, -1.25, np.array([-0.5, -0.25, -1, -np.inf], np.float32), places)
    names = ["<pad>", "</s>", "<s>", "<unk>", "▁the", "▁dog"]  # the model has rows beyond these
    row = file_job._row(7, [Line("the\tdog", found)], names, FileJob(Path("run"), json=True))
    assert json.loads(row) == {
        "line": 7, "text": "the\tdog", "score": -1.25,
        "tokens": ["▁the", "▁dog", "<9>", "</s>"], "token_scores": [-0.5, -0.25, -1.0, None],
        "alignment": [[1, 0], [0, 2]],
    }  # fmt: skip


def test_python_gives_the_translations_and_scores_of_the_command(translated, dev, toy_run):
    decoding = Decoding(min_length=6, length_penalty=0)
    model = hvd_nmt.load(toy_run, settings=Settings(decoding=decoding))
    rows, texts = map(json.loads, translated("--json", *PENALTY)), model.translate(dev)
    scores = model.score(zip(dev, texts, strict=True))
    pieces, encoded = model.tokenizers.target.pieces, model.tokenizers.target.encode(texts)
    same = 0
    for row, text, ids, score in zip(rows, texts, encoded, scores, strict=True):
        assert row["text"] == text
        if row["tokens"] == [pieces[i] for i in ids]:  # a search may spell it in other pieces
            assert score == pytest.approx(row["score"], abs=1e-3)
            same += 1
    assert same


UNKNOWN = {
    "the man sees é": "",  # as e
    "the man sees ☂": '1 character that the vocabulary does not know: U+2602 "☂".',
    "a dog ٢٠٢": '2 characters that the vocabulary does not know: U+0662 "٢", U+0660 "٠".',
    "a คน 人 か क": "5 characters that the vocabulary does not know: "
    'U+0E04 "ค", U+0E19 "น", U+4EBA "人" and 2 more.',
}  # fmt: skip


def test_characters_beyond_the_vocabulary_are_named_by_line(toy_run):
    model, said = hvd_nmt.load(toy_run), []
    remarks = engine.Remarks("in.en, ", said.append)
    lines = ["the man", *UNKNOWN, ""]
    model.search(lines, 11, warn=remarks)
    assert said == [f"in.en, line {n}: {UNKNOWN[lines[n - 11]]}" for n in (13, 14, 15)]
    for first in (1, 101):
        model.search(["a ☂"] * 4, first, warn=remarks)
    remarks.end()
    kind = "have characters beyond the vocabulary"
    assert len(said) == 5 + 1
    assert said[-1] == f"in.en, 11 lines {kind}; the first 5 are named above."
    model.search(["a &#44; dog"], 9, warn=engine.Remarks("", said.append))
    assert said[-1] == 'line 9: "&#44;" is HTML: the model reads it letter by letter.'
    with pytest.warns(UserWarning, match="^line 2: 1 character that the vocabulary does not"):
        model.translate(["the man", "a ☂"])
    invisible = engine._without_pieces(model.tokenizers.source.unknown("a\u2060\u0301☂"))
    assert invisible.endswith(': U+0301, U+2602 "☂".')


def test_parts_of_a_chinese_line_are_joined_without_a_blank(toy_run, monkeypatch):
    model = hvd_nmt.load(toy_run)
    texts = ["你好。", "我走了。", "the man.", "a dog."]
    monkeypatch.setattr(model.tokenizers.target, "decode", lambda ids: texts[: len([*ids])])
    monkeypatch.setattr(engine.long_lines, "parts", lambda ids, *_: [ids[:-1]] * 4)
    with pytest.warns(UserWarning, match="split into 4 parts"):
        assert model.search(["the dog"])[0][0].text == "你好。我走了。the man. a dog."


@pytest.mark.parametrize(
    ("wanted", "capability", "dtype"),
    [
        ("auto", None, "float32"),  # whatever the processor can: the same texts everywhere
        ("auto", (7, 0), "float16"),
        ("auto", (9, 0), "bfloat16"),
        ("float32", (9, 0), "float32"),
    ],
)
def test_arithmetic_follows_the_gpu_or_the_option(toy_run, monkeypatch, wanted, capability, dtype):
    monkeypatch.setattr(device, "compute_capability", lambda: capability)
    (model,) = engine.load(toy_run, ("best",), Settings(precision=wanted)).models
    assert model.activation_dtype == dtype

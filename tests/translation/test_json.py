"""What `--json` tells beside a translation, by the command with a tiny trained model."""

import json
from pathlib import Path

import numpy as np
import pytest

from hvd_nmt.config import EOS
from hvd_nmt.model.translator import Translation
from hvd_nmt.translation import file_job
from hvd_nmt.translation.engine import Line
from hvd_nmt.translation.settings import FileJob

PENALTY = ("--length-penalty", "0")
SAMPLED = ("--sample", "--temperature", "0.9")
"""a search finds the same for every line, with so little training; draws do not"""


def rows_of(lines):
    return [json.loads(line) for line in lines]


def test_scores_tokens_alignments_and_n_best(translated, dev):
    rows = rows_of(translated("--json", "--n-best", "3", *PENALTY))
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


def test_targets_get_the_log_probability_that_their_translation_had(translated, tmp_path):
    rows = rows_of(translated("--json", *PENALTY))
    (tmp_path / "target").write_text("".join(row["text"] + "\n" for row in rows))
    scores = translated("--target", str(tmp_path / "target"))
    same, scored = 0, rows_of(translated("--target", str(tmp_path / "target"), "--json"))
    for row, plain, wanted in zip(scored, scores, rows, strict=True):
        assert row["score"] == pytest.approx(float(plain), abs=1e-3)
        assert sum(row["token_scores"]) == pytest.approx(row["score"], abs=0.01)
        if row["tokens"] == wanted["tokens"]:  # the search may spell a text in other pieces
            assert row["score"] == pytest.approx(wanted["score"], abs=1e-3)
            same += 1
    assert same


def test_batches_of_1_and_of_64_give_the_same(translated, dev):
    apart = translated("--batch-tokens", "1", *SAMPLED)
    assert apart == translated("--batch-tokens", "640", *SAMPLED)
    assert len(apart) == len(dev)
    assert all(apart)
    assert len(set(apart)) > 20

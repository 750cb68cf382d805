"""What is told beside a translation, by the command with a tiny trained model."""

import numpy as np
import pytest

from hvd_nmt import translate
from hvd_nmt.config import EOS
from hvd_nmt.model.translator import Translation
from hvd_nmt.translation import output_format
from hvd_nmt.translation.engine import Line
from hvd_nmt.translation.output_format import Columns


def test_n_best_lists_and_columns(translated, dev):
    rows = [row.split("\t") for row in translated("--n-best", "3", "--length-penalty", "0")]
    assert {len(row) for row in rows} == {3}
    assert [int(row[0]) for row in rows] == [n for n in range(1, len(dev) + 1) for _ in range(3)]
    scores = [float(row[1]) for row in rows]
    for first in range(0, len(rows), 3):
        assert 0 > scores[first] >= scores[first + 1] >= scores[first + 2]
        assert len({text for _, _, text in rows[first : first + 3]}) > 1
    options = ("--scores", "--token-scores", "--alignments", "--length-penalty", "0")
    for row, best, line in zip(translated(*options), rows[::3], dev, strict=True):
        score, text, tokens, pairs = row.split("\t")
        assert text == best[2]
        assert float(score) == pytest.approx(float(best[1]), abs=1e-3)
        spelled = pieces(tokens)
        ended = spelled[-1] == "</s>"  # else it was cut at the longest length
        text_of_pieces = "".join(spelled[:-1] if ended else spelled)
        assert text_of_pieces.replace("▁", " ").strip() == text
        assert sum(logps(tokens)) == pytest.approx(float(score), abs=0.01)
        places = [tuple(map(int, pair.split("-"))) for pair in pairs.split()]
        target = [j for _, j in places]
        assert target == sorted(set(target))
        assert all(0 <= j < len(spelled) for j in target)
        assert all(0 <= i < len(line) for i, _ in places)


def test_a_row_with_everything():
    ids, places = np.array([4, 5, 9, EOS], np.int32), np.array([1, 0, 2, 2], np.int32)
    found = Translation(ids, -1.25, np.array([-0.5, -0.25, -1, -2], np.float32), places)
    line = Line("the\tdog", found, source_tokens=3)  # the last of them is its end
    names = ["<pad>", "</s>", "<s>", "<unk>", "▁the", "▁dog"]  # the model has rows beyond these
    columns = Columns(numbers=True, token_scores=True, alignments=True)
    row = "7\t-1.2500\tthe dog\t▁the=-0.5000 ▁dog=-0.2500 <9>=-1.0000 </s>=-2.0000\t1-0 0-1"
    assert output_format.rows([line, line], 7, columns, names) == [row, row]
    assert output_format.rows([line, line], 7, Columns(), names) == ["the\tdog"]
    split = line._replace(translation=found._replace(alignment=np.array([-1, 0, 1, 2], np.int32)))
    assert output_format.rows([split], 7, Columns(alignments=True), names) == ["the dog\t0-1 1-2"]
    assert output_format.rows([line, line], 7, Columns(scores=True), names) == ["-1.2500\tthe dog"]


def test_scoring_gives_the_log_probability_of_pairs(
    toy_run, toy_data, translated, tmp_path, capsys
):
    options = ("--scores", "--token-scores", "--length-penalty", "0")
    rows = [row.split("\t") for row in translated(*options)]
    (tmp_path / "target").write_text("".join(text + "\n" for _, text, _ in rows))
    words = ["--run", str(toy_run), "--score", "--input", str(toy_data / "dev.en"),
             "--target", str(tmp_path / "target")]  # fmt: skip
    assert translate.main(words) == 0
    found = capsys.readouterr().out.splitlines()
    assert translate.main([*words, "--token-scores"]) == 0
    same, with_tokens = 0, capsys.readouterr().out.splitlines()
    for row, logp, (score, _, tokens) in zip(with_tokens, found, rows, strict=True):
        total, scored = row.split("\t")
        assert total == logp
        assert sum(logps(scored)) == pytest.approx(float(logp), abs=0.01)
        if pieces(scored) == pieces(tokens):  # the search may spell a text in other pieces
            assert float(logp) == pytest.approx(float(score), abs=1e-3)
            same += 1
    assert same


def pieces(tokens):
    return [token.rpartition("=")[0] for token in tokens.split(" ")]


def logps(tokens):
    return [float(token.rpartition("=")[2]) for token in tokens.split(" ")]

"""Lines longer than the model reads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_nmt.config import EOS
from hvd_nmt.model.translator import Translation
from hvd_nmt.translation import long_lines

PIECES = ["<pad>", "</s>", "<s>", "<unk>", "▁the", "▁dog", "s", ".", "▁Mr.", "▁end."]


def ids(*numbers):
    return np.array([*numbers, EOS], np.int32)


def found(line, limit):
    return [part.tolist() for part in long_lines.parts(line, limit, PIECES)]


@given(st.lists(st.integers(3, 9), max_size=60), st.integers(0, 12))
def test_parts_are_short_enough_and_together_the_line(line, limit):
    parts = long_lines.parts(ids(*line), limit, PIECES)
    assert all(len(part) <= max(limit, 2) and part[-1] == EOS for part in parts)
    assert [token for part in parts for token in part[:-1]] == line
    assert all(len(part) > 1 for part in parts) or not line


def test_a_line_is_split_behind_a_sentence_else_before_a_word_else_anywhere():
    assert found(ids(4, 5, 6), 4) == [[4, 5, 6, EOS]]
    assert found(ids(4, 5, 9, 4, 5, 4), 6) == [[4, 5, 9, EOS], [4, 5, 4, EOS]]
    assert found(ids(4, 5, 6, 4, 6, 6, 6), 6) == [[4, 5, 6, EOS], [4, 6, 6, 6, EOS]]
    assert found(ids(*[6] * 7), 4) == [[6, 6, 6, EOS], [6, 6, 6, EOS], [6, EOS]]


@pytest.mark.parametrize(
    ("line", "limit", "wanted"),
    [
        ("One.Two is. Three,four five six", 22, ["One.Two is.", "Three,four five six"]),
        ("这是书。那是画！你来吗？我走了。", 12, ["这是书。那是画！", "你来吗？我走了。"]),
        ("这是书.那是画!你来吗?我走了.", 12, ["这是书.那是画!", "你来吗?我走了."]),
        ("彼は「はい。」と言った。私は寝た。", 14, ["彼は「はい。」と言った。", "私は寝た。"]),
        ("「はい。いいえ。」(はい。)私も。", 16, ["「はい。いいえ。」(はい。)", "私も。"]),
        ("今日は雨、明日は雪、週末は晴れ", 13, ["今日は雨、明日は雪、", "週末は晴れ"]),
        ("版本是3.14不是2.71吗", 12, ["版本是3.14不是2.", "71吗"]),  # no end: at the limit
        ("वह गया। मैं आया। तुम", 14, ["वह गया।", "मैं आया। तुम"]),
        ("ฉันไป เขามา เราอยู่", 13, ["ฉันไป เขามา", "เราอยู่"]),
        ("او رفت. من می‌آیم؟ تو", 14, ["او رفت.", "من می‌آیم؟", "تو"]),
    ],
)  # fmt: skip
def test_parts_end_where_sentences_of_their_script_end(line, limit, wanted):
    pieces = sorted({*line.replace(" ", "▁")})
    names = ["<pad>", "</s>", "<s>", "<unk>", *pieces]
    line_ids = ids(*(names.index(one) for one in line.replace(" ", "▁")))
    parts = long_lines.parts(line_ids, limit, names)
    texts = ["".join(names[i] for i in part[:-1]).replace("▁", " ").strip() for part in parts]
    assert texts == wanted


def test_each_part_begins_with_the_tags_of_its_line():
    parts = long_lines.parts(ids(8, 6, 7, 9, 9), 4, PIECES, tags=1)
    assert [part.tolist() for part in parts] == [[8, 6, 7, EOS], [8, 9, 9, EOS]]


def test_translations_of_parts_become_one():
    def part(tokens, score, scores, places):
        return Translation(np.array(tokens, np.int32), score, np.array(scores, np.float32),
                           np.array(places, np.int32))  # fmt: skip

    first = [part([4, 5, EOS], -1.0, [-0.5, -0.25, -0.25], [0, 1, 2]), part([4], -2.0, [-2], [0])]
    second = [part([9, EOS], -0.5, [-0.25, -0.25], [0, 1])]
    (joined,) = long_lines.joined([first, second], [3, 2])
    assert joined.ids.tolist() == [4, 5, 9, EOS]
    assert joined.score == -1.5
    assert joined.token_scores.tolist() == [-0.5, -0.25, -0.25, -0.25]
    assert joined.alignment.tolist() == [0, 1, 2, -1]  # an end is no token of the line
    (tagged,) = long_lines.joined([first, second], [4, 3], tags=1)
    assert tagged.alignment.tolist() == [0, 1, 0, 3]
    alone = long_lines.joined([first], [3])
    assert [one.ids.tolist() for one in alone] == [[4, 5, EOS], [4]]
    bare = [[Translation(np.array([4, EOS], np.int32), -1.0)]] * 2
    (joined,) = long_lines.joined(bare, [2, 2])
    assert (joined.ids.tolist(), joined.token_scores, joined.alignment) == ([4, 4, EOS], None, None)

"""What is known of the text: counts, and a table that says them."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_nmt.common.files import FileFacts
from hvd_nmt.data.corpus import Part, Side
from hvd_nmt.preparation import cleaning, quality

PAIRS = [("a b", "A B"), ("a b", "A B"), ("a b", "other"), ("c", "C"), ("dev", "x"), ("y", "Dev")]
LENGTHS = np.array([[3, 3, 3, 9, 2, 2], [3, 3, 2, 2000, 2, 2]])
HELD_OUT = {
    "dev": cleaning.keys([("dev", "Dev"), ("none", "keiner")]),
    "test": cleaning.keys([("c", "C")]),
}
COUNTED = quality.counted(LENGTHS, cleaning.keys(PAIRS), HELD_OUT, 8)


def test_what_is_counted():
    one_of_six = {"source": 1, "target": 1, "pairs": 1, "share_of_pairs": 0.166667, "of": 6}
    assert COUNTED["duplicates"] == one_of_six | {"source": 2}
    assert COUNTED["over_max_length"] == one_of_six
    assert COUNTED["leakage"] == {
        "dev": {"pairs": 2, "train_pairs": 2, "source": 1, "target": 1, "both": 0},
        "test": {"pairs": 1, "train_pairs": 1, "source": 1, "target": 1, "both": 1},
    }
    lengths = COUNTED["lengths"]["source"]
    assert lengths["histogram"] == [0, 0, 2, 3, 0, 0, 0, 0, 0, 1]
    assert (lengths["tokens"], lengths["mean"], lengths["longest"]) == (22, 3.667, 9)
    assert (lengths["p5"], lengths["p50"], lengths["p99"]) == (2, 3, 9)
    target = COUNTED["lengths"]["target"]
    assert target["histogram"][quality.LONGEST_COUNTED] == 1
    assert (target["longest"], target["tokens"]) == (2000, 2012)


@settings(deadline=None)
@given(st.lists(st.integers(1, 1500), min_size=1, max_size=60))
def test_percentiles_are_those_of_a_sorted_list(lengths):
    keys = cleaning.keys([("x", "y")] * len(lengths))
    found = quality.counted(np.array([lengths, lengths]), keys, {}, 100)["lengths"]["source"]
    ordered = sorted(min(length, quality.LONGEST_COUNTED) for length in lengths)
    for percent in (5, 50, 95, 99):
        value = found[f"p{percent}"]
        assert sum(length <= value for length in ordered) >= len(ordered) * percent / 100
        assert sum(length < value for length in ordered) < len(ordered) * percent / 100


def test_the_table_says_what_is_written_as_json(tmp_path, golden_page):
    side = Side(FileFacts(1, "0"), text_bytes=2_000_000, kept_text_bytes=1_500_000, tokens=12)
    train = Part(10, 6, {"word ratio": 1, "a side is empty": 3}, 1, side, side)
    dev = Part(2, 2, {}, 0, side, side)
    report = quality.report(("en", "de"), {"train": train, "dev": dev}, COUNTED)
    quality.write(tmp_path, report)
    assert json.loads((tmp_path / quality.REPORT).read_text()) == report
    golden_page("quality.txt", "\n".join(quality.table(report)) + "\n")

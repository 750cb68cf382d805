"""What is known of the text: counts, and a table that says them."""

import numpy as np

from hvd_nmt.common.files import FileFacts
from hvd_nmt.data.corpus import Part, Side
from hvd_nmt.preparation import cleaning, quality

PAIRS = [("a b", "A B"), ("a b", "A B"), ("a b", "other"), ("c", "C"), ("dev", "x"), ("y", "Dev")]
LENGTHS = np.array([[3, 3, 3, 9, 2, 2], [3, 3, 2, 2000, 2, 2]])
HELD_OUT = {
    "dev": cleaning.keys([("dev", "Dev"), ("none", "keiner")]),
    "test": cleaning.keys([("c", "C")]),
}
SIDE = Side(FileFacts(1, "0"), text_bytes=2_000_000, kept_text_bytes=1_500_000, tokens=12)
PARTS = {
    "train": Part(10, 6, {"word ratio": 1, "a side is empty": 3}, 1, SIDE, SIDE),
    "dev": Part(2, 2, {}, 0, SIDE, SIDE),
}
REPORT = quality.report(("en", "de"), PARTS, LENGTHS, cleaning.keys(PAIRS), HELD_OUT, 8)


def test_what_is_counted():
    one_of_six = {"source": 1, "target": 1, "pairs": 1, "share_of_pairs": 0.166667, "of": 6}
    assert REPORT["duplicates"] == one_of_six | {"source": 2}
    assert REPORT["over_max_length"] == one_of_six
    assert REPORT["leakage"] == {
        "dev": {"pairs": 2, "train_pairs": 2, "source": 1, "target": 1, "both": 0},
        "test": {"pairs": 1, "train_pairs": 1, "source": 1, "target": 1, "both": 1},
    }
    lengths = REPORT["lengths"]["source"]
    assert lengths["histogram"] == [0, 0, 2, 3, 0, 0, 0, 0, 0, 1]
    assert (lengths["tokens"], lengths["mean"], lengths["longest"]) == (22, 3.667, 9)
    assert (lengths["p5"], lengths["p50"], lengths["p99"]) == (2, 3, 9)
    target = REPORT["lengths"]["target"]
    assert target["histogram"][quality.LONGEST_COUNTED] == 1
    assert (target["longest"], target["tokens"]) == (2000, 2012)


def test_the_table(golden_page):
    golden_page("quality.txt", "\n".join(quality.table(REPORT)) + "\n")

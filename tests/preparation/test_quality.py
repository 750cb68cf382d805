"""The data doctor: counts that merge, a table that says them."""

import json
import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_nmt.common.files import FileFacts
from hvd_nmt.data.corpus import Part, Side
from hvd_nmt.preparation import cleaning, quality
from hvd_nmt.preparation.quality import Quality

PAIRS = [("a b", "A B"), ("a b", "A B"), ("a b", "other"), ("c", "C"), ("dev", "x"), ("y", "Dev")]
LENGTHS = [3, 3, 3, 9, 2, 2], [3, 3, 2, 2000, 2, 2]
HELD_OUT = {
    "dev": cleaning.keys([("dev", "Dev"), ("none", "keiner")]),
    "test": cleaning.keys([("c", "C")]),
}


def counted(chunks=((0, 6),), max_length=8):
    """The counts of PAIRS, counted in chunks and merged."""
    whole = Quality(max_length)
    for start, end in chunks:
        one = Quality(max_length)
        one.add(*(side[start:end] for side in LENGTHS))
        whole.merge(pickle.loads(pickle.dumps(one)))
    return whole.counted(cleaning.keys(PAIRS), HELD_OUT)


def report():
    """A report over PAIRS."""
    side = Side(FileFacts(1, "0"), text_bytes=2_000_000, kept_text_bytes=1_500_000, tokens=12)
    train = Part(10, 6, {"word ratio": 1, "a side is empty": 3}, 1, side, side)
    dev = Part(2, 2, {}, 0, side, side)
    return quality.report(("en", "de"), {"train": train, "dev": dev}, counted())


def test_what_is_counted():
    found = counted()
    one_of_six = {"source": 1, "target": 1, "pairs": 1, "share_of_pairs": 0.166667, "of": 6}
    assert found["duplicates"] == one_of_six | {"source": 2}
    assert found["over_max_length"] == one_of_six
    assert found["leakage"] == {
        "dev": {"pairs": 2, "train_pairs": 2, "source": 1, "target": 1, "both": 0},
        "test": {"pairs": 1, "train_pairs": 1, "source": 1, "target": 1, "both": 1},
    }
    lengths = found["lengths"]["source"]
    assert lengths["histogram"] == [0, 0, 2, 3, 0, 0, 0, 0, 0, 1]
    assert (lengths["tokens"], lengths["mean"], lengths["longest"]) == (22, 3.667, 9)
    assert (lengths["p5"], lengths["p50"], lengths["p99"]) == (2, 3, 9)
    target = found["lengths"]["target"]
    assert target["histogram"][quality.LONGEST_COUNTED] == 1
    assert (target["longest"], target["tokens"]) == (2000, 2012)


def test_chunks_merge_in_any_order():
    assert counted([(2, 6), (0, 0), (0, 2)]) == counted()


@settings(deadline=None)
@given(st.lists(st.integers(1, 1500), min_size=1, max_size=60))
def test_percentiles_are_those_of_a_sorted_list(lengths):
    one = Quality(100)
    one.add(lengths, lengths)
    found = one.counted(cleaning.keys([("x", "y")] * len(lengths)), {})["lengths"]["source"]
    ordered = sorted(min(length, quality.LONGEST_COUNTED) for length in lengths)
    for percent in (5, 50, 95, 99):
        value = found[f"p{percent}"]
        assert sum(length <= value for length in ordered) >= len(ordered) * percent / 100
        assert sum(length < value for length in ordered) < len(ordered) * percent / 100


def test_the_table_says_it(golden_page):
    golden_page("quality.txt", quality.table(report()) + "\n")


def test_it_is_written_as_json(tmp_path):
    quality.write(tmp_path, report())
    assert json.loads((tmp_path / quality.REPORT).read_text()) == report()

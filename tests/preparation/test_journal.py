"""Finished stages are known again after any death; another request starts from nothing."""

from functools import partial

import pytest

from hvd_nmt.common.errors import DataError
from hvd_nmt.preparation.journal import JOURNAL, Journal, discard


def never():
    raise AssertionError("done again")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.work"


def test_a_finished_stage_of_the_same_request_is_not_done_again(path):
    journal = Journal(path, {"a": (1, 2)})
    found = {"n": [1, 2], "é\u2028": None}
    assert journal.stage("one", lambda: {"n": (1, 2), "é\u2028": None}) == found
    journal = Journal(path, {"a": [1, 2]})
    assert journal.stage("one", never) == found
    assert journal.stage("two", lambda: None) is None
    assert journal.resumed == ["one"]
    assert list(journal.seconds) == ["one", "two"]
    with pytest.raises(AssertionError):
        journal.stage("three", never)
    (path / "file").write_text("x")
    assert Journal(path, {"a": [1, 2]}).stage("three", lambda: "new") == "new"
    journal = Journal(path, {"a": "another request"})
    assert [file.name for file in path.iterdir()] == [JOURNAL]
    assert journal.stage("one", lambda: "new") == "new"


@pytest.mark.parametrize("kept", [1, 11])
def test_a_torn_line_is_a_stage_that_was_not_finished(path, kept):
    journal = Journal(path, {"a": 1})
    journal.stage("one", lambda: 1)
    before = (path / JOURNAL).read_bytes()
    journal.stage("two", lambda: 2)
    (path / JOURNAL).write_bytes((path / JOURNAL).read_bytes()[: len(before) + kept])
    journal = Journal(path, {"a": 1})
    assert (path / JOURNAL).read_bytes() == before
    assert journal.stage("one", never) == 1
    assert journal.stage("two", lambda: 3) == 3
    assert Journal(path, {"a": 1}).stage("two", never) == 3


@pytest.mark.parametrize(
    ("spoil", "kept"),
    [
        (lambda path: (path / "result" / "two").unlink(), ["one"]),
        (lambda path: (path / "result" / "two").write_text(""), ["one"]),
        (lambda path: (path / JOURNAL).write_bytes(
            (path / JOURNAL).read_bytes().replace(b'"found":"two"', b'"found":{}')), ["one"]),
        (lambda path: (path / JOURNAL).write_bytes(b"\xff\n"), []),
    ],
)  # fmt: skip
def test_a_stage_that_lost_a_file_or_has_an_odd_line_is_done_again_with_all_after_it(
    path, spoil, kept
):
    def work(name):
        (path / "result").mkdir(exist_ok=True)
        (path / "result" / name).write_text(name)
        return name

    names = ("one", "two", "three")
    journal = Journal(path, {"a": 1})
    for name in names:
        journal.stage(name, partial(work, name))
    spoil(path)
    journal = Journal(path, {"a": 1})
    assert [journal.stage(name, partial(work, name)) for name in names] == [*names]
    assert journal.resumed == kept
    assert Journal(path, {"a": 1}).stage("three", never) == "three"


def test_a_directory_of_something_else_is_never_removed(path):
    path.mkdir()
    # An empty one may be filled.
    Journal(path, {"a": 1}).stage("one", lambda: (path / "folder").mkdir())
    discard(path)
    discard(path)
    path.mkdir()
    (path / "thesis.tex").write_text("precious")
    discard(path)
    with pytest.raises(DataError, match=r"x\.work is wanted for unfinished work and holds"):
        Journal(path, {"a": 1})
    assert [file.name for file in path.iterdir()] == ["thesis.tex"]

"""Finished stages are known again; another request starts from nothing."""

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


def test_a_directory_of_something_else_is_never_removed(path):
    path.mkdir()
    (path / "thesis.tex").write_text("precious")
    discard(path)
    with pytest.raises(DataError, match=r"x\.work is wanted for unfinished work and holds"):
        Journal(path, {"a": 1})
    assert [file.name for file in path.iterdir()] == ["thesis.tex"]

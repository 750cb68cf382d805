"""hvd_nmt.convert: its command line. What it converts is tested in tests/formats."""

import pytest

from hvd_nmt import convert

THEIRS = ("--from", "openseq2seq", "--checkpoint", "x", "--vocabulary", "m.model", "--heads", "8",
          "--out", "run")  # fmt: skip
MARIAN = ("--from", "marian", "--model", "opus", "--out", "run")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--from", "openseq2seq", "--out", "run", "--checkpoint", "x"), "needs --vocabulary"),
        (("--from", "marian", "--out", "run"), "needs --model"),
        ((*THEIRS[:-4], *THEIRS[-2:]), "needs --heads"),
        ((*THEIRS, "--model", "opus"), "--model belongs to --from marian"),
        ((*MARIAN, "--vocabulary", "x"), "--vocabulary belongs to --from openseq2seq"),
        ((*MARIAN[:-1], "."), "working directory"),
        (
            (*MARIAN[:-1], "file/x"),
            "file is no directory that can be written: choose another --out",
        ),
        ((*MARIAN, "--config", "none.yaml"), "Cannot read the configuration none.yaml"),
    ],
)
def test_a_command_line_that_cannot_work(argv, said, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("text")
    assert said in refused(2, convert, *argv)

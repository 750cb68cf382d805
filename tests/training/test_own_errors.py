"""What goes wrong on one rank is said once, by that rank; the others say where to look."""

import re
import socket

import pytest

import toy

FAILING = """
import sys
from hvd_nmt import train
from hvd_nmt.config import command_line
from hvd_nmt.training import cluster

def fail(*_):
    raise PermissionError(13, "Permission denied", "/some/file")

if not command_line.is_first_rank():
    cluster.prepared_data = fail
sys.exit(train.main())
"""


@pytest.mark.long
def test_the_rank_s_own_sentence_and_nothing_else(toy_commands, toy_data, tmp_path):
    start = [*toy.horovodrun(2), *toy_commands.command(FAILING)]
    options = toy.train_options(toy_data, "run", 2)
    done = toy.Run([*start, *options], tmp_path, toy.environment(tmp_path)).finished()
    host = socket.gethostname()
    said = re.findall(r"\[(\d)\]<stderr>:hvd_nmt.train: (.*)", done.stderr)
    sentences = dict(said)
    assert len(said) == len(sentences), done.stderr
    assert sentences["1"].startswith(f"On {host}: /some/file: Permission denied: ")
    if "0" in sentences:  # else horovodrun ended it before it noticed
        assert "Another rank is gone, and what it said is above" in sentences["0"]
    assert not re.search(r"<stderr>:Traceback", done.stderr), done.stderr

"""A run that is killed, and goes on with another number of ranks, proves what it was fed."""

from __future__ import annotations

from pathlib import Path

import pytest

import toy
from forks import Forks
from hvd_nmt.records.read import read_run
from hvd_nmt.reporting import questions

STEPS = 34
LOG_EVERY = 7
OPTIONS = (
    "--training.log-every", str(LOG_EVERY), "--checkpoints.every-steps", "3",
    "--data.bpe-dropout", "0.1", "--evaluation.every-steps", "1000", "--evaluation.sentences", "2",
)  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(
    toy_commands: Forks, train_until, toy_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Killed on two ranks after a checkpoint within a logged interval, ended on one."""
    cwd = tmp_path_factory.mktemp("exactly_once")
    options = toy.train_options(toy_data, "run", STEPS, *OPTIONS)
    killed = train_until(20, *options, cwd=cwd, ranks=2, eager=True)
    assert killed.returncode != 0
    assert toy.steps_done(cwd / "run") == 14
    done = toy_commands.train(*options, cwd=cwd, eager=True)
    assert done.returncode == 0, done.stderr
    return cwd / "run"


def test_every_sentence_came_exactly_once_whatever_was_killed(run_dir: Path) -> None:
    lines = toy.metrics(run_dir, "sentences")
    assert lines, "no checkpoint lay within an interval, so nothing was tried"
    assert all(line["step"] % 3 == 0 for line in lines)
    starts = toy.metrics(run_dir, "start")
    assert [len(line["hosts"]) for line in starts] == [2, 1]
    assert 20 < starts[0]["steps_per_epoch"] < STEPS < 2 * starts[0]["steps_per_epoch"]
    answer = questions.answers(questions.gather(read_run(run_dir)))[6]
    text = "\n".join([answer.answer, *answer.evidence])
    assert "epoch 1 was trained on exactly once, over 2 starts on 2 and 1 ranks." in text
    assert "Epoch 2 is not finished." in text
    assert "Not every sentence" not in text

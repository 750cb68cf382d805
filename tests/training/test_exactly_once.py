"""A run that is killed, and goes on with another number of ranks, proves what it was fed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import toy
from forks import Forks
from hvd_nmt.records.read import read_run
from hvd_nmt.reporting import questions

STEPS = 60
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


def evidence(run_dir: Path) -> str:
    """What the report says about the training set."""
    answer = questions.answers(questions.gather(read_run(run_dir)))[6]
    return "\n".join([answer.answer, *answer.evidence])


def test_every_sentence_came_exactly_once_whatever_was_killed(run_dir: Path) -> None:
    lines = toy.metrics(run_dir, "sentences")
    assert lines, "no checkpoint lay within an interval, so nothing was tried"
    assert all(line["step"] % 3 == 0 for line in lines)
    starts = toy.metrics(run_dir, "start")
    assert [len(line["hosts"]) for line in starts] == [2, 1]
    epochs, rest = divmod(STEPS, starts[0]["steps_per_epoch"])
    assert epochs >= 2
    text = evidence(run_dir)
    assert (
        f"Every sentence of epochs 1 to {epochs} was trained on exactly once, over 2 starts on "
        "2 and 1 ranks."
    ) in text
    assert (f"Epoch {epochs + 1} is not finished." in text) == (rest > 0)
    assert "Not every sentence" not in text


@pytest.mark.parametrize("kind", ["train", "sentences"])
@pytest.mark.parametrize("times", [0, 2])
def test_a_line_that_is_gone_or_doubled_is_said(
    run_dir: Path, tmp_path: Path, kind: str, times: int
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run_dir, copy)
    path = copy / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    place = next(i for i, line in enumerate(lines) if json.loads(line)["kind"] == kind)
    ((epoch, (count, _)),) = json.loads(lines[place])["sentences"].items()
    assert epoch == "1"
    lines[place : place + 1] = [lines[place]] * times
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    text = evidence(copy)
    words = f"{count} sentences doubled" if times else f"{count} sentences of 400 missing."
    assert f"Epoch 1: {words}" in text
    assert "Not every sentence was trained on exactly once" in text

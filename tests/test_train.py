"""The training command: what a run leaves behind, and what it says to someone's mistake.

Mistakes are made against copies of a finished run, in processes that have TensorFlow already; each
must end before step 1 with one sentence and the documented exit code (hvd_nmt.common.errors).
"""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import toy
from hvd_nmt import config as configuration
from hvd_nmt import train as command
from hvd_nmt.checkpoints.find import best_first, find, newest_first
from hvd_nmt.common import jsonl
from hvd_nmt.config.schedule import Schedule

STEP_TAGS = {
    "train_loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "Loss_Optimization/global_gradient_norm": "train/gradient_norm",
    "global_step/sec": "train/steps_per_s",
}
EVAL_TAGS = {
    "eval_loss": "dev/loss",
    "Eval_BLEU_Score": "dev/pseudo_bleu",
    "sacrebleu": "dev/sacrebleu",
}

# --- what a run leaves behind ---


def test_metrics_hold_every_step_and_the_recipes_tags(toy_run: Path) -> None:
    steps, evaluations = toy.metrics(toy_run), toy.metrics(toy_run, "eval")
    assert [line["step"] for line in steps] == list(range(1, 41))
    assert [line["step"] for line in evaluations] == [20, 40]
    assert all(line.keys() >= STEP_TAGS.keys() for line in steps)
    assert all(line.keys() >= EVAL_TAGS.keys() for line in evaluations)


def test_it_learns(toy_run: Path) -> None:
    losses = [line["train_loss"] for line in toy.metrics(toy_run)]
    assert sum(losses[-5:]) / 5 < losses[0] - 1
    first, last = (line["eval_loss"] for line in toy.metrics(toy_run, "eval"))
    assert last < first


def test_tensorboard_shows_the_same(toy_run: Path) -> None:
    shown = EventAccumulator(os.fspath(toy_run / "tensorboard"), {"scalars": 0}).Reload()
    for kind, tags in (("train", STEP_TAGS), ("eval", EVAL_TAGS)):
        for name, tag in tags.items():
            found = {event.step: event.value for event in shown.Scalars(tag)}
            wanted = {line["step"]: line[name] for line in toy.metrics(toy_run, kind)}
            assert found == pytest.approx(wanted, rel=1e-6), tag  # TensorBoard keeps float32
    host = EventAccumulator(os.fspath(toy_run / "tensorboard" / socket.gethostname())).Reload()
    assert host.Scalars("host/cpu_percent")


def test_learning_rate_is_the_policys_at_each_step(toy_run: Path) -> None:
    schedule = Schedule.of(configuration.load(toy_run / "config.yaml"))
    rates = [line["learning_rate"] for line in toy.metrics(toy_run)]
    assert rates == [schedule.rate(step) for step in range(40)]
    assert max(rates) == rates[19] == pytest.approx(16**-0.5 * 20**-0.5)


def test_run_directory_explains_itself(toy_data: Path, toy_run: Path) -> None:
    assert (toy_run / "spm.model").read_bytes() == (toy_data / "spm.model").read_bytes()
    samples = jsonl.read(toy_run / "telemetry" / f"{socket.gethostname()}.jsonl")
    assert {"host", "sample"} == {sample["kind"] for sample in samples}
    assert [c.step for c in newest_first(toy_run)] == [40, 30, 20]
    assert {c.step for c in best_first(toy_run)} == {20, 40}
    for step in (20, 40):
        text = (toy_run / "hypotheses" / f"dev.{step}.txt").read_text(encoding="utf-8")
        assert text.count("\n") == toy.DEV_PAIRS
    assert (toy_run / "report.md").exists()
    assert "<html" in (toy_run / "report.html").read_text(encoding="utf-8")
    stdout = (toy_run / "stdout.txt").read_text(encoding="utf-8")
    assert stdout.index("rate  ") < stdout.index("step 1/40")  # the plan comes first


def test_it_translates_as_its_evaluation_did(
    toy_commands, toy_data: Path, toy_run: Path, tmp_path: Path
) -> None:
    """Line by line, with a blank line after them."""
    done = toy_commands.run(
        "hvd_nmt.translate", "--run", os.fspath(toy_run), "--checkpoint", "model.ckpt-20",
        "--beam-size", "1", cwd=tmp_path,
        input=(toy_data / "dev.en").read_text(encoding="utf-8") + "\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hypotheses = (toy_run / "hypotheses" / "dev.20.txt").read_text(encoding="utf-8")
    assert done.stdout == hypotheses + "\n"
    assert len(set(hypotheses.splitlines())) > 1


# --- mistakes ---


@pytest.fixture
def train(toy_commands, toy_data: Path, tmp_path: Path):
    """Runs the command of `toy_run` in a directory of its own, with more options."""

    def run(*more: str, eager: bool = False) -> subprocess.CompletedProcess[str]:
        options = toy.run_options(toy_data, "run", *more)
        return toy_commands.train(*options, cwd=tmp_path, eager=eager)

    return run


@pytest.fixture
def copy(toy_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, in the place where `train` finds it."""
    return Path(shutil.copytree(toy_run, tmp_path / "run"))


def assert_one_sentence(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """It ended with the code, one line on stderr, and no step was done."""
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("hvd_nmt.train: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr
    assert "step 1/" not in done.stdout


@pytest.mark.parametrize(
    ("code", "options", "words"),
    [
        (2, "--preset smal", ("'small'",)),
        (2, "--training.max-stepz 3", ("no option --training.max-stepz",)),
        (2, "--model.heads 3", ("model.width 16", "model.heads 3")),
        # On a GPU positions beyond the last would be zeros, without a word.
        (2, "--model.positions learned --model.max-length 2", ("raise --model.max-length to",)),
        (3, "--data.directory nowhere", ("nowhere does not exist", "hvd_nmt.prepare")),
        (3, "--data.directory torn", ("train.en.ids.npy", "again")),
        (3, "--data.corpus embedded", ("other data", "--data.corpus files")),
        # What the preparing process says, told once.
        pytest.param(
            3, "--data.corpus embedded --data.directory new --data.vocabulary-size 10",
            ("--vocabulary-size 10 is too small", "Preparing new:"), marks=pytest.mark.long,
        ),
        (4, "--run-dir file/run", ("Cannot write the run directory file/run", "--run-dir")),
        (5, "--ranks 4", ("The number of ranks is 1 instead of 4",)),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(
    train, toy_data: Path, tmp_path: Path, code: int, options: str, words: tuple
) -> None:
    (tmp_path / "file").write_text("text", encoding="utf-8")
    if "torn" in options:
        shutil.copytree(toy_data, tmp_path / "torn")
        os.truncate(tmp_path / "torn" / "train.en.ids.npy", 20)
    assert_one_sentence(train(*options.split()), code, *words)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.fixture(scope="module")
def other_data(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Other pairs: with the vocabulary of the run, and with one of their own."""
    folder = tmp_path_factory.mktemp("other")
    same = toy.toy_data(folder / "same", seed=2, vocabulary=toy_data / "spm.model")
    return {"SAME": os.fspath(same), "OWN": os.fspath(toy.toy_data(folder / "own", seed=2))}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--data.directory", "OWN"), ("another vocabulary", "--run-dir")),
        (("--data.directory", "SAME"), ("run/model.ckpt-40", "other data", "--data.allow-change")),
    ],
)
def test_a_run_does_not_go_on_as_another(
    train, copy: Path, other_data: dict[str, str], options: tuple, words: tuple
) -> None:
    options = tuple(other_data.get(option, option) for option in options)
    assert_one_sentence(train(*options, "--training.max-steps", "50"), 4, *words)


def test_without_an_intact_checkpoint_nothing_begins_anew(train, copy: Path) -> None:
    for path in copy.rglob("*.data-00000-of-00001"):
        os.truncate(path, 1000)
    assert_one_sentence(train("--training.max-steps", "50"), 4, "start again")
    assert len(list(copy.rglob("damaged/*.index"))) == 5  # nothing was deleted
    for folder in list(copy.rglob("damaged")):
        shutil.rmtree(folder)
    assert_one_sentence(train("--training.max-steps", "50"), 4, "start again")


def test_what_files_tell_is_said_before_tensorflow_is_imported(
    toy_data: Path, copy: Path, refused, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(copy.parent)
    monkeypatch.setattr(command, "_import", lambda: sys.exit("imports TensorFlow"))
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("  width: 16\n", ""))  # a person may
    options, before = toy.run_options(toy_data, "run"), sorted(copy.rglob("*"))
    for more in ((), ("--training.max-steps", "20", "--checkpoints.keep", "1")):
        assert command.main([*options, *more]) == 0
        assert capsys.readouterr().out.startswith("run has done all 40 steps: raise --training.max")
    assert sorted(copy.rglob("*")) == before
    assert "model.width 16, not 32" in refused(4, command, *options, "--model.width", "32")
    os.truncate(copy / "model.ckpt-40.meta", 100)
    with pytest.raises(SystemExit, match="imports TensorFlow"):
        command.main(options)


def test_other_data_that_are_wanted_are_said_once_and_begin_their_own_best_models(
    train, copy: Path, other_data: dict[str, str]
) -> None:
    options = ("--data.directory", other_data["SAME"], "--training.max-steps", "41")
    before = {path.name for path in copy.glob("best_models/*")}
    done = train(*options, "--data.allow-change", eager=True)
    assert done.returncode == 0, done.stderr
    assert "data        other than model.ckpt-40 was trained on: the best models" in done.stdout
    assert [c.step for c in best_first(copy)] == [41]
    assert find(copy, "best").name.endswith("-step-41")
    assert before < {path.name for path in copy.glob("best_models/*")}
    assert "has done all 41 steps" in train(*options).stdout


@pytest.mark.long
def test_all_ranks_end_together(toy_data: Path, tmp_path: Path) -> None:
    """One sentence, from one rank; nobody waits for a rank that has left."""
    options = toy.run_options(toy_data, "run", "--data.directory", "nowhere")
    run = toy.start_train(*options, cwd=tmp_path, ranks=2)
    done = run.finished()
    (error,) = (line for line in done.stderr.splitlines() if "hvd_nmt.train: " in line)
    assert done.returncode == 1  # horovodrun's own
    assert "nowhere does not exist" in error
    assert f"{toy.ROOT}/hvd_nmt/" not in done.stderr  # no traceback of ours
    assert run.left_behind() == []

"""The training command: what a run leaves behind, and what it says to someone's mistake.

Mistakes are made against copies of a finished run, in processes that have TensorFlow already; each
must end before step 1 with one sentence and the documented exit code (hvd_nmt.common.errors).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import toy
from hvd_nmt import config as configuration
from hvd_nmt.checkpoints import weights
from hvd_nmt.checkpoints.find import best_first, find, newest_first, newest_verified
from hvd_nmt.common.errors import RunError
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.telemetry import jsonl

STEP_TAGS = {
    "train_loss", "learning_rate", "Loss_Optimization/global_gradient_norm", "global_step/sec",
}  # fmt: skip
EVAL_TAGS = {"eval_loss", "Eval_BLEU_Score", "sacrebleu"}
DEV_PAIRS = 24

# --- what a run leaves behind ---


def test_metrics_hold_every_step_and_the_recipes_tags(toy_run: Path) -> None:
    steps, evaluations = toy.metrics(toy_run), toy.metrics(toy_run, "eval")
    assert [line["step"] for line in steps] == list(range(1, 41))
    assert [line["step"] for line in evaluations] == [20, 40]
    assert all(line.keys() >= STEP_TAGS for line in steps)
    assert all(line.keys() >= EVAL_TAGS for line in evaluations)


def test_it_learns(toy_run: Path) -> None:
    losses = [line["train_loss"] for line in toy.metrics(toy_run)]
    assert sum(losses[-5:]) / 5 < losses[0] - 1
    first, last = (line["eval_loss"] for line in toy.metrics(toy_run, "eval"))
    assert last < first


def test_tensorboard_shows_the_same(toy_run: Path) -> None:
    shown = EventAccumulator(os.fspath(toy_run / "tensorboard"), {"scalars": 0}).Reload()
    for kind, tags in (("train", STEP_TAGS), ("eval", EVAL_TAGS)):
        for tag in tags:
            found = {event.step: event.value for event in shown.Scalars(tag)}
            wanted = {line["step"]: line[tag] for line in toy.metrics(toy_run, kind)}
            assert found == pytest.approx(wanted, rel=1e-6), tag  # TensorBoard keeps float32


def test_the_report_is_there_and_answers_eleven_questions(toy_run: Path) -> None:
    text = (toy_run / "report.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^### \d+\. ", text, re.M)) == 11
    assert "<html" in (toy_run / "report.html").read_text(encoding="utf-8")


def test_learning_rate_is_the_policys_at_each_step(toy_run: Path) -> None:
    schedule = Schedule.of(configuration.load(toy_run / "config.yaml"))
    rates = [line["learning_rate"] for line in toy.metrics(toy_run)]
    assert rates == [schedule.rate(step) for step in range(40)]
    assert max(rates) == rates[19] == pytest.approx(16**-0.5 * 20**-0.5)


def test_telemetry_has_samples_of_this_host(toy_run: Path) -> None:
    samples = jsonl.read(toy_run / "telemetry" / f"{socket.gethostname()}.jsonl")
    kinds = [sample["kind"] for sample in samples]
    assert kinds[0] == "host"
    assert kinds.count("sample") >= 3


def test_hypotheses_have_a_line_for_each_dev_sentence(toy_run: Path) -> None:
    for step in (20, 40):
        text = (toy_run / "hypotheses" / f"dev.{step}.txt").read_bytes()
        assert text.count(b"\n") == DEV_PAIRS
        assert text.endswith(b"\n")


def test_checkpoints_are_those_asked_for(toy_run: Path) -> None:
    assert [c.step for c in newest_first(toy_run)] == [40, 30, 20]
    best = {c.step: c.manifest.val_loss for c in best_first(toy_run)}
    assert set(best) == {20, 40}


def test_run_directory_explains_itself(toy_data: Path, toy_run: Path) -> None:
    assert "hvd_nmt" in (toy_run / "command.txt").read_text(encoding="utf-8")
    environment = json.loads((toy_run / "environment.json").read_text(encoding="utf-8"))
    assert environment["hosts"] == [socket.gethostname()]
    assert environment["precision"] == "float32"
    assert configuration.load(toy_run / "config.yaml").training.max_steps == 40
    assert (toy_run / "spm.model").read_bytes() == (toy_data / "spm.model").read_bytes()


def test_plan_comes_before_the_first_step(toy_run: Path) -> None:
    stdout = (toy_run / "stdout.txt").read_text(encoding="utf-8")
    plan = stdout[: stdout.index("step 1/40")]
    for word in ("ranks", "parameters", "vocabulary 120", "128 target tokens a step", "all-reduce"):
        assert word in plan


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


def test_it_goes_on_when_nobody_reads_its_output(
    toy_commands, toy_data: Path, tmp_path: Path
) -> None:
    options = toy.train_options(toy_data, "run", 6)
    command = shlex.join([*toy_commands.command("hvd_nmt.train"), *options])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -n 1"], cwd=tmp_path,
        env=toy.environment(tmp_path), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "goes on without stdout, which cannot be written any more (Broken pipe)" in done.stderr
    assert [c.step for c in newest_first(tmp_path / "run")] == [6]


def test_deterministic_kernels_are_asked_for_and_give_the_same_curve_here(
    toy_commands, toy_data: Path, tmp_path: Path
) -> None:
    asks = "import tensorflow as tf\nfrom tensorflow.python.framework import config\n"
    code = asks + (
        "from hvd_nmt import train\ncode = train.main()\n"
        "print('asked for', config.is_op_determinism_enabled())\nraise SystemExit(code)\n"
    )
    curves = []
    for more in ((), ("--training.deterministic",)):
        run_dir = tmp_path / f"run{len(more)}"
        options = toy.train_options(toy_data, run_dir, 5, "--training.device", "cpu", *more)
        done = toy_commands.run(code, *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"asked for {bool(more)}" in done.stdout
        curves.append([line["train_loss"] for line in toy.metrics(run_dir)])
    assert len(curves[0]) == 5
    assert curves[0] == curves[1]


# --- mistakes ---


@pytest.fixture
def train(toy_commands, toy_data: Path, tmp_path: Path):
    """Runs the command of `toy_run` in a directory of its own, with more options."""

    def run(*more: str, run_dir: Path | str = "run") -> subprocess.CompletedProcess[str]:
        options = toy.run_options(toy_data, run_dir, *more)
        return toy_commands.run("hvd_nmt.train", *options, cwd=tmp_path)

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


def test_finished_run_started_again_says_so(train, copy: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in copy.glob("model.ckpt-*")}
    done = train()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "has done all 40 steps" in done.stdout
    assert {path.name: path.stat().st_mtime_ns for path in copy.glob("model.ckpt-*")} == before


def test_missing_data(train, tmp_path: Path) -> None:
    done = train("--data.directory", "nowhere")
    assert_one_sentence(done, 3, "nowhere does not exist", "hvd_nmt.prepare")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("name", ["train.en.ids.npy", "spm.model", "manifest.json", "dev.de"])
def test_truncated_data(train, toy_data: Path, tmp_path: Path, name: str) -> None:
    data = Path(shutil.copytree(toy_data, tmp_path / "data"))
    os.truncate(data / name, 20)
    assert_one_sentence(train("--data.directory", "data"), 3, name, "again")


def test_vocabulary_of_other_data(train, copy: Path, tmp_path: Path) -> None:
    other = toy.toy_data(tmp_path / "other", seed=2)
    done = train("--data.directory", os.fspath(other), "--training.max-steps", "50")
    assert_one_sentence(done, 4, "another vocabulary", "--run-dir")
    assert (copy / "spm.model").read_bytes() != (other / "spm.model").read_bytes()


def test_other_data(train, copy: Path, toy_data: Path, tmp_path: Path) -> None:
    """Other pairs with the same vocabulary: refused; if wanted all the same, said, and once."""
    other = toy.toy_data(tmp_path / "other", seed=2, vocabulary=toy_data / "spm.model")
    options = ("--data.directory", os.fspath(other), "--training.max-steps", "50")
    done = train(*options)
    assert_one_sentence(
        done, 4, "run/model.ckpt-40 was trained on other data than", os.fspath(other)
    )
    assert "--init-from run, or add --data.allow-change" in done.stderr
    before = {path.name for path in copy.glob("best_models/*")}
    done = train(*options, "--data.allow-change")
    assert done.returncode == 0, done.stderr
    assert "data        other than model.ckpt-40 was trained on; the best models" in done.stdout
    assert [c.step for c in best_first(copy)] == [50]
    assert find(copy, "best").name.endswith("-step-50")
    assert before < {path.name for path in copy.glob("best_models/*")}
    again = train(*options)
    assert again.returncode == 0, again.stderr
    assert "has done all 50 steps" in again.stdout


def test_changed_model(train, copy: Path) -> None:
    done = train("--model.width", "32", "--training.max-steps", "50")
    assert_one_sentence(done, 4, "model.width 16, not 32")


def test_learned_positions_that_end_within_a_sentence(train) -> None:
    """On a GPU they would be zeros, without a word."""
    done = train("--model.positions", "learned", "--model.max-length", "2")
    assert_one_sentence(done, 2, "learned has 2 places", "raise --model.max-length to")


def test_unknown_preset(toy_commands, tmp_path: Path) -> None:
    done = toy_commands.run("hvd_nmt.train", "--preset", "smal", cwd=tmp_path)
    assert_one_sentence(done, 2, "'small'")


def test_embedded_corpus_that_cannot_be_prepared(train) -> None:
    """What the preparing process says, told once."""
    options = ("--data.corpus", "embedded", "--data.directory", "new")
    done = train(*options, "--data.vocabulary-size", "10")
    assert_one_sentence(done, 3, "10 pieces is too small", "for new:")
    assert "hvd_nmt.prepare: " not in done.stderr


def test_data_of_ones_own_with_the_embedded_corpus_wanted(train, toy_data) -> None:
    done = train("--data.corpus", "embedded", "--data.directory", os.fspath(toy_data))
    assert_one_sentence(done, 3, "other data than the embedded corpus", "add --data.corpus files")


def test_impossible_model(train) -> None:
    assert_one_sentence(train("--model.heads", "3"), 2, "model.width 16", "model.heads 3")


def test_unknown_option(train) -> None:
    done = train("--training.max-stepz", "3")
    assert done.returncode == 2
    assert "--training.max-stepz" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_directory_below_a_file(train, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text", encoding="utf-8")
    assert_one_sentence(train(run_dir="file/run"), 4, "file/run cannot be written to", "--run-dir")


def test_other_number_of_ranks(train) -> None:
    assert_one_sentence(train("--ranks", "4"), 5, "4 ranks were asked for and 1 were started")


def test_every_checkpoint_damaged(train, copy: Path) -> None:
    for path in copy.rglob("*.data-00000-of-00001"):
        os.truncate(path, 1000)
    for _ in range(2):
        done = train("--training.max-steps", "50")
        assert_one_sentence(done, 4, "start afresh")
    assert len(list(copy.rglob("damaged/*.index"))) == 5  # nothing was deleted


def test_every_checkpoint_deleted(train, copy: Path) -> None:
    for path in [*copy.glob("model.ckpt-*"), *copy.glob("best_models/*")]:
        path.unlink()
    assert_one_sentence(train("--training.max-steps", "50"), 4, "start afresh")


def test_newest_checkpoint_damaged(train, copy: Path) -> None:
    """The one before is taken, and what was trained beyond it is trained again."""
    os.truncate(copy / "model.ckpt-40.meta", 100)
    done = train()
    assert done.returncode == 0, done.stderr
    assert "model.ckpt-40.meta has changed" in done.stdout
    assert "resuming    from run/model.ckpt-30" in done.stdout
    assert "Trained to step 40" in done.stdout
    assert [c.step for c in newest_first(copy)] == [40, 30, 20]


def test_who_loads_a_damaged_checkpoint_hears_of_an_intact_one(copy: Path) -> None:
    os.truncate(copy / "model.ckpt-40.data-00000-of-00001", 1000)
    (copy / "model.ckpt-30.json").unlink()
    for damaged in ("model.ckpt-40", "model.ckpt-30"):
        with pytest.raises(RunError, match=f"; another one .* is intact: --checkpoint {copy}/"):
            weights.load_model(copy, damaged)


def test_second_run_in_the_directory_of_a_first(toy_data: Path, train, tmp_path: Path) -> None:
    options = ("--training.max-steps", "100000", "--checkpoints.every-steps", "20")
    run_dir = tmp_path / "run"
    first = toy.start_train(*toy.run_options(toy_data, "run", *options), cwd=tmp_path)
    try:
        first.wait_for(lambda: toy.steps_done(run_dir) >= 1)
        assert_one_sentence(train(*options), 4, "Another run is in", f"process {first.process.pid}")
        then = toy.steps_done(run_dir)
        first.wait_for(lambda: toy.steps_done(run_dir) > then)
        first.process.send_signal(signal.SIGTERM)
        done = first.finished()
        assert done.returncode == 75
        assert done.stderr.count("stopping    asked to by a signal") == 1
    finally:
        first.kill()
    reached = toy.steps_done(run_dir)
    assert [line["step"] for line in toy.metrics(run_dir)] == list(range(1, reached + 1))
    newest = newest_verified(run_dir)
    assert newest is not None
    assert newest.step == reached


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ranks", "4"), "4 ranks were asked for and 2 were started"),
        (("--data.directory", "nowhere"), "nowhere does not exist"),
    ],
)
def test_all_ranks_end_together(
    toy_data: Path, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    """One sentence, from one rank; nobody waits for a rank that has left."""
    run = toy.start_train(*toy.run_options(toy_data, "run", *options), cwd=tmp_path, ranks=2)
    done = run.finished()
    errors = [line for line in done.stderr.splitlines() if "hvd_nmt.train: " in line]
    assert done.returncode == 1  # horovodrun's own
    assert len(errors) == 1
    assert words in errors[0]
    assert f"{toy.ROOT}/hvd_nmt/" not in done.stderr  # no traceback of ours
    assert run.left_behind() == []

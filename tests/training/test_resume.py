"""A killed run resumes as if nothing had happened: the same losses, to the last digit and bit.

Dropout is on. The killed runs save every 3 steps; the run they are compared with was never
interrupted.
"""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import tensorflow as tf

import toy
from forks import Forks
from hvd_nmt.checkpoints.find import best_first, newest_first
from hvd_nmt.records.read import read_run

EXACT = ("train_loss", "train_nll", "learning_rate", "Loss_Optimization/global_gradient_norm")
SAVE_OFTEN = ("--checkpoints.every-steps", "3", "--checkpoints.keep", "2")
STAGES = """data: {stages: [{until: 18, weights: {clean: 1, crawled: 2}},
{until: end, weights: {back: 3, clean: as is}}]}"""
WITH_ALL = (
    "--training.ema-decay", "0.9", "--config", "stages.yaml", "--training.optimizer", "muon"
)  # fmt: skip
COPIES = ("--bpe-dropout", "0.1", "--noise.typos", "0.1", "--copies", "3")


def losses(run_dir: Path) -> list[tuple[int, ...]]:
    """(step, values) of every logged step, as exact text."""
    return [(line["step"], *(repr(line[name]) for name in EXACT)) for line in toy.metrics(run_dir)]


def tokens(run_dir: Path) -> list[tuple[int, int]]:
    """(step, source and target tokens of it): a fingerprint of which sentences it had."""
    return [
        (line["step"], round(line["tokens_per_s"] * line["step_time/total_s"]))
        for line in toy.metrics(run_dir)
    ]


def state(run_dir: Path, step: int) -> dict[str, bytes]:
    """Every bit of a checkpoint: weights, moments, steps."""
    reader = tf.train.load_checkpoint(os.fspath(run_dir / f"model.ckpt-{step}"))
    names = sorted(reader.get_variable_to_shape_map())
    weights, slots = (sum(name.startswith(part) for name in names) for part in ("model/", "opt"))
    # Two moments each, and iterations; with Muon matrices have one.
    assert 20 < weights < slots <= 2 * weights + 1
    return {
        name: reader.get_tensor(name).tobytes()
        for name in names
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH"
    }


@pytest.fixture(scope="module")
def one_rank(
    toy_commands: Forks, train_until, toy_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict:
    """A run on one rank, killed and resumed; until then its kernels are the deterministic ones."""
    cwd = tmp_path_factory.mktemp("one_rank")
    options = toy.train_options(toy_data, "run", 40, *SAVE_OFTEN)
    killed = train_until(10, *options, "--training.deterministic", cwd=cwd)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert toy.steps_done(cwd / "run") == 9
    return {"run_dir": cwd / "run", "resumed": toy_commands.train(*options, cwd=cwd)}


@pytest.fixture(scope="module")
def two_ranks(toy_commands: Forks, train_until, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Runs under horovodrun: never interrupted; killed and resumed; resumed on one rank.

    They train with Muon, keep a moving average, which is in their checkpoints and what they
    evaluate, mix three corpora with tags in two stages, and have another copy of a sentence each
    time it comes.
    """
    cwd = tmp_path_factory.mktemp("two_ranks")
    (cwd / "stages.yaml").write_text(STAGES)
    mixed_data = toy.mixed_data(tmp_path_factory.mktemp("copies"), *COPIES)
    whole = toy_commands.train(
        *toy.train_options(mixed_data, "whole", 40, *WITH_ALL), cwd=cwd, ranks=2
    )
    assert whole.returncode == 0, whole.stderr

    options = toy.train_options(mixed_data, "run", 40, *WITH_ALL, *SAVE_OFTEN)
    assert train_until(16, *options, cwd=cwd, ranks=2).returncode != 0
    assert toy.steps_done(cwd / "run") == 15
    shutil.copytree(cwd / "run", cwd / "alone")
    resumed = toy_commands.train(*options, cwd=cwd, ranks=2)
    alone = toy_commands.train(*options, "--run-dir", "alone", cwd=cwd)
    return {"cwd": cwd, "resumed": resumed, "alone": alone}


def assert_nothing_is_left_of_the_kill(run_dir: Path) -> None:
    assert not list(run_dir.rglob(".saving-*"))
    assert not list(run_dir.rglob("damaged"))
    prefixes = {c.prefix.name for c in newest_first(run_dir)}
    found = {path.name.split(".data")[0] for path in run_dir.glob("model.ckpt-*.data*")}
    assert found == prefixes


@pytest.mark.both_tensorflows
def test_one_rank_is_killed_and_resumes_bit_by_bit(one_rank: dict, toy_run: Path) -> None:
    done = one_rank["resumed"]
    assert done.returncode == 0, done.stderr
    assert losses(one_rank["run_dir"]) == losses(toy_run)
    assert [step for step, *_ in losses(toy_run)] == list(range(1, 41))
    assert state(one_rank["run_dir"], 40) == state(toy_run, 40)
    assert re.search(r"resuming    from run/model.ckpt-9\n", done.stdout)
    resumed, whole = (toy.metrics(path, "eval")[-1] for path in (one_rank["run_dir"], toy_run))
    for line in (resumed, whole):
        del line["time_s"], line["eval_seconds"], line["keep_s"], line["goodput"]
    assert resumed == whole
    assert_nothing_is_left_of_the_kill(one_rank["run_dir"])


def test_an_evaluation_that_a_kill_cut_off_is_made_up(
    train_until, toy_commands: Forks, toy_data: Path, toy_run: Path, tmp_path: Path
) -> None:
    options = toy.run_options(toy_data, "run")
    for step in (20, 40):
        killed = train_until(step, *options, cwd=tmp_path, in_evaluation=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert newest_first(tmp_path / "run")[0].step == step
    done = toy_commands.train(*options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Trained to step 40" in done.stdout
    again, whole = (
        [(line["step"], line["eval_loss"], line["sacrebleu"]) for line in toy.metrics(run, "eval")]
        for run in (tmp_path / "run", toy_run)
    )
    assert again == whole
    best = [[c.prefix.name for c in best_first(run)] for run in (tmp_path / "run", toy_run)]
    assert best[0] == best[1]
    assert read_run(tmp_path / "run").finished
    assert "has done all 40 steps" in toy_commands.train(*options, cwd=tmp_path).stdout


def test_a_damaged_checkpoint_is_passed_over_and_sigterm_saves(
    train_until, toy_data: Path, toy_run: Path, tmp_path: Path
) -> None:
    """The one before is taken, and what was trained beyond it is trained again."""
    run_dir = Path(shutil.copytree(toy_run, tmp_path / "run"))
    os.truncate(run_dir / "model.ckpt-40.meta", 100)
    done = train_until(
        35, *toy.run_options(toy_data, "run"), cwd=tmp_path, eager=True, number=signal.SIGTERM
    )
    assert "model.ckpt-40.meta has changed" in done.stdout
    assert "resuming    from run/model.ckpt-30" in done.stdout
    assert done.returncode == 75
    assert read_run(run_dir).stopped
    newest = newest_first(run_dir)[0].step
    assert newest in (35, 36)
    assert f"Stopped by a signal after step {newest}; the checkpoint is saved" in done.stderr
    assert done.stderr.count("stopping    after a signal") == 1
    assert "Traceback" not in done.stderr
    assert [line["step"] for line in toy.metrics(run_dir)][-1] == newest


@pytest.mark.long
def test_two_ranks_are_killed_and_resume_bit_by_bit(two_ranks: dict) -> None:
    assert two_ranks["resumed"].returncode == 0, two_ranks["resumed"].stderr
    whole, run = two_ranks["cwd"] / "whole", two_ranks["cwd"] / "run"
    assert losses(run) == losses(whole)
    assert state(run, 40) == state(whole, 40)
    assert_nothing_is_left_of_the_kill(run)


@pytest.mark.long
def test_one_rank_goes_on_where_two_were_killed(two_ranks: dict, toy_run: Path) -> None:
    """The same sentences in the same steps; only dropout is drawn otherwise."""
    assert two_ranks["alone"].returncode == 0, two_ranks["alone"].stderr
    alone, whole = two_ranks["cwd"] / "alone", two_ranks["cwd"] / "whole"
    assert tokens(alone) == tokens(whole)
    assert tokens(whole) != tokens(toy_run)  # which has other data
    last, wanted = (toy.metrics(path, "eval")[-1]["eval_loss"] for path in (alone, whole))
    assert last == pytest.approx(wanted, rel=0.1)
    before = toy.metrics(alone, "start")[-1]["first_step"] - 1
    assert before in (12, 15)
    assert losses(alone)[:before] == losses(whole)[:before]

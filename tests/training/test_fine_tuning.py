"""A run that begins with another run's weights, with a frozen encoder and a moving average.

One run in one go, and the same one resumed after half of its steps, without the run that it began
with.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import toy
from hvd_nmt import average
from hvd_nmt.checkpoints import contents, weights
from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.names import VALUE
from hvd_nmt.model.tokenizer import Tokenizer

DECAY = 0.7
STEPS = 6
OPTIONS = (
    "--init-from", "origin", "--training.freeze", "encoder,embedding", "--training.ema-decay",
    str(DECAY), "--training.tokens-per-step", "128", "--evaluation.every-steps", "3",
    "--evaluation.sentences", "4", "--checkpoints.every-steps", "1", "--checkpoints.keep", "9",
)  # fmt: skip


@pytest.fixture(scope="module")
def tuned(toy_commands, toy_data: Path, toy_run: Path, tmp_path_factory) -> dict:
    """Both runs, and what was printed."""
    cwd = tmp_path_factory.mktemp("tuned")
    (cwd / "origin").symlink_to(toy_run)

    def train(run_dir: str, steps: int, *more: str) -> subprocess.CompletedProcess[str]:
        options = toy.train_options(toy_data, run_dir, steps, *OPTIONS, *more)
        return toy_commands.train(*options, cwd=cwd, eager=True)

    found = {"cwd": cwd, "train": train, "whole": train("whole", STEPS)}
    (cwd / "origin").unlink()
    shutil.copytree(cwd / "whole", cwd / "run")
    for path in (path for path in (cwd / "run").rglob("*-*") if path.is_file()):
        if any(path.match(f"*-{step}*") for step in (4, 5, 6)):
            path.unlink()
    found["resumed"] = train("run", STEPS)
    for name in ("whole", "resumed"):
        assert found[name].returncode == 0, found[name].stderr
    return found


def tensors(prefix: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(os.fspath(prefix))
    names = sorted(reader.get_variable_to_shape_map())
    return {name: reader.get_tensor(name) for name in names if "OBJECT_GRAPH" not in name}


def model_of(run: dict[str, np.ndarray], root: str = "model") -> dict[str, np.ndarray]:
    return {
        name.split("/.ATTR")[0].removeprefix(f"{root}/"): value
        for name, value in run.items() if name.startswith(f"{root}/")
    }  # fmt: skip


def test_it_begins_with_the_weights_and_nothing_else(tuned: dict, toy_run: Path) -> None:
    best = find(toy_run, "best")
    assert f"begins with origin/best_models/{best.name}, step 40" in tuned["whole"].stdout
    record = json.loads((tuned["cwd"] / "whole" / "init_from.json").read_text(encoding="utf-8"))
    assert (record["prefix"], record["step"]) == (f"origin/best_models/{best.name}", 40)
    first = tensors(tuned["cwd"] / "whole" / "model.ckpt-1")
    assert first[f"optimizer/iterations{VALUE}"] == 1
    before = model_of(tensors(best))
    moved = {name: np.abs(value - before[name]).max() for name, value in model_of(first).items()}
    # Step 1 of a warm-up over 20 steps: near the old weights, far from new ones.
    assert 0 < moved["decoder/0/feed_forward/inner"] < 0.01


def test_frozen_weights_are_equal_to_the_bit_and_the_others_move(
    tuned: dict, toy_run: Path
) -> None:
    before = model_of(tensors(find(toy_run, "best")))
    after = tensors(tuned["cwd"] / "whole" / f"model.ckpt-{STEPS}")
    for root in ("model", "ema"):
        for name, value in model_of(after, root).items():
            kept = name.startswith(("encoder", "embedding"))
            assert np.array_equal(value, before[name]) == kept, (root, name)


def test_frozen_weights_have_no_moments_and_no_gradient_on_the_wire(tuned: dict) -> None:
    run_dir = tuned["cwd"] / "whole"
    found = contents.read(run_dir / f"model.ckpt-{STEPS}")
    decoder = sum(v.count for v in found.variables if v.name.startswith("model/decoder"))
    counts = {group.name: group.count for group in found.groups()}
    assert counts["Adam m"] == counts["Adam v"] == decoder
    assert counts["moving average"] == found.parameters > decoder
    assert found.predicted_bytes == found.model_bytes
    (start,) = toy.metrics(run_dir, "start")
    assert start["gradient_bytes"] == 4 * decoder
    assert start["parameters"] == found.parameters
    assert f"{found.parameters:,} parameters ({decoder:,} trained)" in tuned["whole"].stdout


def test_average_follows_its_formula_over_all_steps(tuned: dict, toy_run: Path) -> None:
    mean = model_of(tensors(find(toy_run, "best")))
    for step in range(1, STEPS + 1):
        saved = tensors(tuned["cwd"] / "whole" / f"model.ckpt-{step}")
        decay = min(DECAY, (1 + step) / (10 + step))
        for name, value in model_of(saved).items():
            mean[name] = decay * mean[name].astype(np.float64) + (1 - decay) * value
        for name, value in model_of(saved, "ema").items():
            np.testing.assert_allclose(value, mean[name], rtol=1e-5, atol=1e-6)
    last = model_of(saved)["decoder/0/feed_forward/inner"]
    assert np.abs(mean["decoder/0/feed_forward/inner"] - last).max() > 1e-4


def test_resumed_run_is_equal_to_the_bit_and_loads_nothing_again(tuned: dict) -> None:
    assert "resuming    from run/model.ckpt-3" in tuned["resumed"].stdout
    assert "begins with" not in tuned["resumed"].stdout
    whole, run = (tensors(tuned["cwd"] / name / f"model.ckpt-{STEPS}") for name in ("whole", "run"))
    assert whole.keys() == run.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(run[name], value, err_msg=name)
    one, other = (toy.metrics(tuned["cwd"] / name, "eval")[-1] for name in ("whole", "run"))
    assert one["eval_loss"] == other["eval_loss"]


def test_the_average_is_loaded_unless_the_raw_weights_are_wanted(
    tuned: dict, capsys: pytest.CaptureFixture
) -> None:
    run_dir, output = tuned["cwd"] / "whole", tuned["cwd"] / "raw"
    assert average.main(["--run", str(run_dir), "--raw", "--out", str(output)]) == 0
    assert f"the weights of\n  {run_dir}/model.ckpt-{STEPS}" in capsys.readouterr().out
    saved = tensors(run_dir / f"model.ckpt-{STEPS}")
    for directory, root in ((output, "model"), (run_dir, "ema")):
        model, step = weights.load_model(directory, "latest")
        assert step == STEPS
        np.testing.assert_array_equal(
            model.decoder[0].feed_forward.inner,
            model_of(saved, root)["decoder/0/feed_forward/inner"],
        )


def test_validation_is_of_the_average(tuned: dict, toy_data: Path, toy_commands) -> None:
    """The hypotheses of the last evaluation are what `translate` gives with the average."""
    done = toy_commands.run(
        "hvd_nmt.translate", "--run", "whole", "--checkpoint", f"model.ckpt-{STEPS}",
        "--beam-size", "1", cwd=tuned["cwd"],
        input="".join((toy_data / "dev.en").read_text(encoding="utf-8").splitlines(True)[:4]),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hypotheses = tuned["cwd"] / "whole" / "hypotheses" / f"dev.{STEPS}.txt"
    assert done.stdout == hypotheses.read_text(encoding="utf-8")


def test_meta_graph_holds_the_average(tuned: dict) -> None:
    prefix = os.fspath(tuned["cwd"] / "whole" / f"model.ckpt-{STEPS}")
    source, target = np.array([[5, 9, 1, 0], [7, 8, 33, 1]]), np.array([[6, 4, 1], [39, 1, 0]])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        saver = tf.compat.v1.train.import_meta_graph(prefix + ".meta")
        saver.restore(session, prefix)
        imported = session.run("logits:0", {"source:0": source, "target:0": target})
    model, _ = weights.load_model(tuned["cwd"] / "whole", prefix)
    found = model(tf.constant(source, tf.int32), tf.constant(target, tf.int32)).numpy()
    assert np.abs(imported - found).max() < 1e-5 * np.abs(found).max()


def test_what_a_checkpoint_holds_may_not_change(tuned: dict) -> None:
    done = tuned["train"]("whole", 9, "--training.ema-decay", "0")
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "training.ema_decay 0.7, not 0.0" in done.stderr


def test_pieces_of_another_vocabulary_keep_their_rows(
    toy_commands, mixed_data: Path, toy_run: Path, tmp_path: Path
) -> None:
    options = toy.train_options(
        mixed_data, "run", 1, "--init-from", os.fspath(toy_run), "--training.freeze", "embedding"
    )
    done = toy_commands.train(*options, cwd=tmp_path, eager=True)
    assert done.returncode == 0, done.stderr
    old, new = (Tokenizer(directory / "spm.model").pieces for directory in (toy_run, mixed_data))
    shared = set(old) & set(new)
    assert f"step 40: {len(shared)} of {len(new)} pieces keep their rows" in done.stdout
    before, after = (weights.load_model(run)[0] for run in (toy_run, tmp_path / "run"))
    for piece in shared:
        rows = after.embedding[new.index(piece)], before.embedding[old.index(piece)]
        np.testing.assert_array_equal(*rows)
    inner = [each.decoder[0].feed_forward.inner.numpy() for each in (before, after)]
    assert 0 < np.abs(inner[1] - inner[0]).max() < 0.01


def test_weights_of_another_model(
    toy_commands, toy_data: Path, toy_run: Path, tmp_path: Path
) -> None:
    for source, more, words in (
        (toy_run / "model.ckpt-40", ("--model.width", "32"), "its width is 16, not 32"),
        ("nowhere", (), "No checkpoint nowhere: give best, latest, or a prefix"),
    ):
        options = toy.train_options(toy_data, "run", 3, "--init-from", os.fspath(source), *more)
        done = toy_commands.train(*options, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr
        assert words in done.stderr
        assert not list((tmp_path / "run").glob("model.ckpt-*"))

"""The weights, moments and counters that version 0.1.0 saved translate and go on as they did then.

tests/golden/README.md says how it was made. None of these values may move.
"""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import toy
from hvd_nmt import config as configuration
from hvd_nmt.checkpoints import contents, weights
from hvd_nmt.checkpoints.find import newest_first
from hvd_nmt.checkpoints.names import OBJECT_GRAPH
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.state import (
    adam_state,
    keyed_variables,
    run_state,
    weights_by_path,
    weights_to_train,
)
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import ModelConfig
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import horovod, optimizer
from hvd_nmt.training.exchange.all_reduce import AllReduce

pytestmark = pytest.mark.both_tensorflows
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
STEP, LAST = 1500, 1510
TAGS = {"loss": "train_loss", "gradient_norm": "Loss_Optimization/global_gradient_norm"}


@pytest.fixture(scope="module")
def resumed(toy_commands, tmp_path_factory):
    """The golden run, gone on for ten steps; its directory."""
    cwd = tmp_path_factory.mktemp("golden")
    for name in ("run", "data"):
        shutil.copytree(GOLDEN / name, cwd / name)
    options = ("--config", "run/config.yaml", "--training.max-steps", str(LAST))
    done = toy_commands.train(*options, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"resuming    from run/model.ckpt-{STEP}" in done.stdout
    return cwd / "run"


@pytest.mark.parametrize(("beam_size", "expected"), [(1, "greedy"), (4, "beam_4")])
def test_translations_are_the_same(toy_commands, tmp_path, beam_size, expected):
    done = toy_commands.run(
        "hvd_nmt.translate", "--run", os.fspath(GOLDEN / "run"), "--json",
        "--beam-size", str(beam_size), cwd=tmp_path,
        input=(GOLDEN / "source.en").read_text(encoding="utf-8"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    scores, texts = zip(*((row["score"], row["text"]) for row in rows), strict=True)
    golden_scores, golden_texts = zip(*EXPECTED[expected], strict=True)
    assert texts == golden_texts
    np.testing.assert_allclose(np.array(scores, float), golden_scores, rtol=0, atol=2e-4)


def test_it_is_resumed_as_its_own_version_did(resumed):
    """Only with Adam's moments and counter does the next step have this loss and those weights."""
    steps = [line for line in toy.metrics(resumed) if line["step"] > STEP]
    expected = EXPECTED["steps"]
    assert [line["step"] for line in steps] == [step["step"] for step in expected]
    for name, tag in TAGS.items():
        found = [line[tag] for line in steps]
        np.testing.assert_allclose(found, [step[name] for step in expected], rtol=1e-5)
    prefix = resumed / f"model.ckpt-{LAST}"
    variables, value = contents.read(prefix).variables, contents.reader(prefix).get_tensor
    for index, groups in enumerate((contents.WEIGHTS, ("Adam m",), ("Adam v",))):
        norms = sorted(np.linalg.norm(value(v.name)) for v in variables if v.group in groups)
        golden = sorted(norms[index] for norms in EXPECTED["norms"].values())
        np.testing.assert_allclose(norms, golden, rtol=1e-4)


@pytest.mark.parametrize(("name", "precision"), [("run", "float32"), ("float16", "float16")])
def test_every_bit_of_it_is_restored_and_saved(name, precision, tmp_path):
    """Weights, moving average, m and v of the weights that are trained, counters, loss scale."""
    config = configuration.load(GOLDEN / name / "config.yaml")
    (golden,) = newest_first(GOLDEN / name)
    state = fresh(config, precision)
    weights.restore(state, golden)
    reader = tf.train.load_checkpoint(os.fspath(golden.prefix))
    keys = set()
    for key, variable in keyed_variables(state):
        assert variable.numpy().tobytes() == reader.get_tensor(key).tobytes(), key
        keys.add(key)
    assert set(reader.get_variable_to_shape_map()) - keys == {OBJECT_GRAPH}

    old = contents.read(golden.prefix)
    facts = golden.manifest.facts()
    new = contents.read(Saver(tmp_path, state, facts, 1, 1).save(golden.step).prefix)
    assert new.predicted_bytes == new.model_bytes
    assert old.predicted_bytes == old.model_bytes
    counts = [{group.name: group.count for group in found.groups()} for found in (old, new)]
    assert counts[0] == counts[1]
    again = fresh(config, precision)
    weights.restore(again, newest_first(tmp_path)[0])
    for (_, one), (_, other) in zip(*map(keyed_variables, (state, again)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "precision", "other"),
    [("run", "float32", "float16"), ("float16", "float16", "float32"),
     ("float16", "float16", "bfloat16")],
)  # fmt: skip
def test_in_another_precision_all_but_the_loss_scale_goes_on(name, precision, other):
    config = configuration.load(GOLDEN / name / "config.yaml")
    (golden,) = newest_first(GOLDEN / name)
    values = []
    for state in (fresh(config, precision), fresh(config, other)):
        weights.restore(state, golden)
        values.append({key: variable.numpy() for key, variable in keyed_variables(state)})
    if other == "float16":
        begins = {key: variable.numpy() for key, variable in keyed_variables(fresh(config, other))}
    wanted, found = values
    for key in wanted.keys() | found.keys():
        if "loss_scale" not in key:
            np.testing.assert_array_equal(found[key], wanted[key], err_msg=key)
        elif other == "float16":
            np.testing.assert_array_equal(found[key], begins[key], err_msg=key)
        else:
            assert key not in found


def fresh(config, precision):
    """What a run with this configuration saves, before its first step."""
    horovod.init()
    model, average = (Transformer(config.model, 80, precision, seed=seed) for seed in (7, 8))
    trained = weights_to_train(model, config.training.freeze)
    adam = optimizer.build(config.training, precision, list(trained.values()), AllReduce())
    average = average if config.training.ema_decay else None
    return run_state(model, 0, optimizer.state(adam, list(trained)), average)


def test_second_moments_that_muon_no_longer_keeps_are_left_behind(saved):
    """As versions before kept them; what is missing is refused."""
    (checkpoint, *_) = newest_first(saved)
    model = Transformer(ModelConfig(1, 1, 16, 2, 32), 40, "float32")
    kept = adam_state(paths := weights_by_path(model))
    second = {"embedding": kept.slots["v"]["embedding"]}
    fewer = dataclasses.replace(kept, slots=kept.slots | {"v": second})
    weights.restore(run_state(model, 0, fewer), checkpoint)
    assert float(paths["embedding"][0, 0]) == 30
    more = dataclasses.replace(kept, slots=kept.slots | {"u": adam_state(paths).slots["m"]})
    with pytest.raises(RunError, match="only one of the two has optimizer/u/"):
        weights.restore(run_state(model, 0, more), checkpoint)

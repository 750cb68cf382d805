"""Checkpoints of OpenSeq2Seq: a synthetic one against an independent reading, and a real one."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt import convert
from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.weights import load_model
from hvd_nmt.config import BOS, EOS, PAD, UNK, load, presets
from hvd_nmt.data import corpus
from hvd_nmt.formats import foreign, openseq2seq
from hvd_nmt.model.batching import padded
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.loss import cross_entropy
from hvd_nmt.model.translator import Translator
from hvd_nmt.records.read import read_run

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "openseq2seq" / "checkpoint"
WIDTH, HEADS, HIDDEN, LAYERS = 16, 2, 24, {"encoder": 2, "decoder": 3}
EMBEDDING = "transformer_encoder/embedding_shared_weights/embedding_and_softmax/weights"
NORM, FFN = "layer_normalization/layer_norm_", "ffn/feed_foward_network/"


def variables(rows, seed=1):
    """Random values for each variable of the forward pass, by its name without ForwardPass/."""
    rng = np.random.default_rng(seed)
    shapes = {EMBEDDING: [rows, WIDTH]}
    for stack, count in LAYERS.items():
        attentions = {"self_attention": "self_attention"}
        if stack == "decoder":
            attentions["encdec_attention"] = "attention"
        for layer in (f"transformer_{stack}/layer_{i}/" for i in range(count)):
            for outer, inner in attentions.items():
                for name in ("q", "k", "v", "output_transform"):
                    shapes[f"{layer}{outer}/{inner}/{name}/kernel"] = [WIDTH, WIDTH]
            for part in (*attentions, "ffn"):
                shapes |= {f"{layer}{part}/{NORM}{kind}": [WIDTH] for kind in ("scale", "bias")}
            sizes = {"filter_layer": [WIDTH, HIDDEN], "output_layer": [HIDDEN, WIDTH]}
            for name, size in sizes.items():
                shapes[f"{layer}{FFN}{name}/kernel"] = size
                shapes[f"{layer}{FFN}{name}/bias"] = size[1:]
        shapes |= {f"transformer_{stack}/{NORM}{kind}": [WIDTH] for kind in ("scale", "bias")}
    values = {name: rng.normal(0, 0.4, shape) for name, shape in shapes.items()}
    return {
        name: (value + name.endswith("scale")).astype(np.float32) for name, value in values.items()
    }


def save(prefix, named):
    """Write variables as TensorFlow 1 does."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = {name: tf.compat.v1.Variable(value) for name, value in named.items()}
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(made)
        saver.save(session, str(prefix), write_meta_graph=False, write_state=False)
    return prefix


def with_adam(values, scope=""):
    """The same with what LazyAdam adds, and the step."""
    named = {f"ForwardPass/{name}": value for name, value in values.items()}
    for name, value in values.items():
        slot = f"Loss_Optimization/{scope}ForwardPass/{name}/Adam"
        named |= {slot: value / 100, f"{slot}_1": value**2 / 100}
    powers = {"Loss_Optimization/beta1_power": np.float32(0.5), "beta2_power": np.float32(0.9)}
    return named | powers | {"global_step": np.int64(41)}


@pytest.fixture(scope="module")
def spm(toy_data):
    return toy_data / "spm.model"


@pytest.fixture(scope="module")
def rows(toy_data):
    return json.loads((toy_data / "manifest.json").read_text())["vocabulary_size"]


@pytest.fixture(scope="module")
def run(rows, spm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported")
    checkpoint = save(folder / "val_loss=2.0000-step-42", with_adam(variables(rows)))
    out = folder / "run"
    argv = ["--from", "openseq2seq", "--checkpoint", f"{checkpoint}.index", "--vocabulary"]
    assert convert.main([*argv, str(spm), "--heads", str(HEADS), "--out", str(out)]) == 0
    return out


def reference(values, source_S, target_T):
    """OpenSeq2Seq's logits of each target token, in NumPy: target_T begins with <s>."""

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * values[f"{name}/{NORM}scale"] + values[f"{name}/{NORM}bias"]

    def attention(x, memory, name, causal=False):
        q, k, v = (
            (y @ values[f"{name}/{part}/kernel"]).reshape(len(y), HEADS, -1)
            for part, y in (("q", x), ("k", memory), ("v", memory))
        )
        logits = np.einsum("qhk,thk->hqt", q * q.shape[-1] ** -0.5, k)
        if causal:
            logits += np.triu(np.full(logits.shape[1:], -1e9), 1)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqt,thk->qhk", weights, v).reshape(len(x), -1)
        return mixed @ values[f"{name}/output_transform/kernel"]

    def feed_forward(x, name):
        filtered, output = (f"{name}/feed_foward_network/{n}_layer/" for n in ("filter", "output"))
        h = np.maximum(x @ values[filtered + "kernel"] + values[filtered + "bias"], 0)
        return h @ values[output + "kernel"] + values[output + "bias"]

    def stack(x, name, memory=None):
        rates = np.exp(-np.arange(WIDTH // 2) * np.log(1e4) / (WIDTH // 2 - 1))
        angles = np.arange(len(x))[:, None] * rates
        x = x + np.concatenate([np.sin(angles), np.cos(angles)], 1)
        for layer in (f"transformer_{name}/layer_{i}" for i in range(LAYERS[name])):
            y = norm(x, f"{layer}/self_attention")
            x = x + attention(y, y, f"{layer}/self_attention/self_attention", memory is not None)
            if memory is not None:
                y = norm(x, f"{layer}/encdec_attention")
                x = x + attention(y, memory, f"{layer}/encdec_attention/attention")
            x = x + feed_forward(norm(x, f"{layer}/ffn"), f"{layer}/ffn")
        return norm(x, f"transformer_{name}")

    embedded = values[EMBEDDING] * WIDTH**0.5
    memory = stack(embedded[source_S], "encoder")
    inputs_TxD = np.concatenate([np.zeros([1, WIDTH]), embedded[target_T[:-1]]])
    return stack(inputs_TxD, "decoder", memory) @ values[EMBEDDING].T


# A synthetic checkpoint


@pytest.mark.both_tensorflows
def test_logits_are_those_of_an_independent_reading(run, rows):
    model, step = load_model(run, "latest")
    assert step == 41
    values = variables(rows)
    sources, targets = [[5, 9, 33, 8, EOS], [7, EOS]], [[6, 30, EOS], [11, 4, 9, 9, 20, EOS]]
    logits = model(padded(sources), padded(targets)).numpy()
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        wanted = reference(values, [BOS, *source], [BOS, *target])
        np.testing.assert_allclose(logits[row, : len(target)], wanted[1:], rtol=0, atol=2e-4)
        # The state before that is the one which predicts <s>.
        first, _ = model.states(np.array([[PAD]]), model.encode(padded([source])))
        np.testing.assert_allclose(model.logits(first)[0], wanted[:1], rtol=0, atol=2e-4)


@pytest.mark.both_tensorflows
def test_the_moments_and_the_step_are_imported(run, rows):
    values = variables(rows)
    reader = tf.train.load_checkpoint(str(run / "model.ckpt-41"))
    assert reader.get_tensor(f"optimizer/iterations{names.VALUE}") == 41
    scope = "transformer_encoder/layer_0/self_attention/self_attention"
    fused = np.concatenate([values[f"{scope}/{name}/kernel"] for name in "qkv"], 1)
    for kind, wanted in (("model", fused), ("m", fused / 100), ("v", fused**2 / 100)):
        path = "encoder/0/attention/qkv" + names.VALUE
        found = reader.get_tensor(f"{kind if kind == 'model' else f'optimizer/{kind}'}/{path}")
        np.testing.assert_array_equal(found, wanted)
    config = load(run / "config.yaml").model
    assert (config.encoder_layers, config.decoder_layers) == (2, 3)
    assert config.feed_forward_width == HIDDEN
    found = read_run(run)
    assert (found.saved_step, found.max_steps, found.finished) == (None, None, False)
    assert list(found.config) == ["model"]
    assert any("an imported model and no training yet" in problem for problem in found.problems)


@pytest.mark.long
@pytest.mark.both_tensorflows
def test_training_goes_on(run, toy_data, toy_commands, tmp_path):
    """On data with its vocabulary, which is a single one."""
    own, data = shutil.copytree(run, tmp_path / "run"), shutil.copytree(toy_data, tmp_path / "data")
    manifest = corpus.read_manifest(data)
    files = {name: file for name, file in manifest.files.items() if "source" not in name}
    single = dataclasses.replace(manifest, files=files, source_vocabulary_pieces=0)
    corpus.write_manifest(data, single)
    done = toy_commands.run(
        "hvd_nmt.train", "--config", str(own / "config.yaml"), "--run-dir", str(own),
        "--data.directory", str(data), "--training.max-steps", "43", "--telemetry.no-report",
        "--telemetry.interval-s", "0", "--evaluation.beam-size", "1", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"resuming    from {own / 'model.ckpt-41'}" in done.stdout
    assert (own / "model.ckpt-43.index").exists()


def test_in_mixed_precision_the_master_copy_counts(rows, spm, tmp_path):
    values = variables(rows)
    named = {f"ForwardPass/{name}": value.astype(np.float16) for name, value in values.items()}
    master = "Loss_Optimization/FP32-master-copy/"
    copies = {f"{master}ForwardPass/{name}": value for name, value in values.items()}
    slots = with_adam(values, scope=master)
    named |= copies | {name: value for name, value in slots.items() if "/Adam" in name}
    named["Loss_Optimization/loss_scale"] = np.float32(1024)
    found = openseq2seq.read(save(tmp_path / "mixed", named), spm, HEADS)
    np.testing.assert_array_equal(found.model.embedding, values[EMBEDDING])
    np.testing.assert_array_equal(found.adam.slots["m"]["embedding"], values[EMBEDDING] / 100)


def test_what_does_not_fit_is_named(rows, spm, tmp_path, refused):
    values = variables(rows)
    name = f"transformer_encoder/layer_0/{FFN}filter_layer/bias"
    for case, left, message in (
        ("lacking", {k: v for k, v in values.items() if k != name}, f"has no {name}"),
        ("more", values | {"gate/kernel": values[EMBEDDING]}, "also has gate/kernel"),
        ("other", {"w": values[EMBEDDING]}, "is not a checkpoint of an OpenSeq2Seq Transformer"),
        ("rows", values | {EMBEDDING: values[EMBEDDING][:-8]}, "rows: give the vocabulary"),
    ):
        prefix = save(tmp_path / case, {f"ForwardPass/{key}": v for key, v in left.items()})
        words = ["--from", "openseq2seq", "--checkpoint", prefix, "--vocabulary", spm]
        words += ["--heads", HEADS, "--out", tmp_path / "run"]
        assert message in refused(4, convert, *words)
    assert not (tmp_path / "run").exists()


# A real checkpoint


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    if not REAL.is_dir():
        pytest.skip("needs ../shared/data/openseq2seq/checkpoint")
    out = tmp_path_factory.mktemp("real") / "run"
    model = openseq2seq.read(REAL / "val_loss=2.0904-step-1600", REAL / "m_common.model", heads=4)
    foreign.write(model, presets()["base"][1], out)
    return load_model(out, "latest")[0]


@pytest.fixture(scope="module")
def pieces():
    lines = (REAL / "m_common.vocab").read_text(encoding="utf-8").split("\n")[:-1]
    return [line.rstrip().split("\t")[0] for line in lines]


def encoded(name, pieces):
    ids = {piece: number for number, piece in enumerate(pieces)}
    lines = (REAL / name).read_text(encoding="utf-8").split("\n")[:-1]
    return [[ids.get(piece, UNK) for piece in line.split(" ")] for line in lines]


@pytest.mark.long
def test_the_validation_loss_is_the_one_in_the_name(real, pieces):
    """64 batches of 16 in the order of the files, the last one filled up from their beginning.

    Mean over the batches of each one's mean over its tokens, <s> among them.
    """
    sources, targets = (encoded(f"val.{language}.tok", pieces) for language in ("en", "de"))

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2, autograph=False)
    def loss(source_BxS, target_BxT):
        inputs_BxT = tf.pad(target_BxT[:, :-1], [[0, 0], [1, 0]], constant_values=PAD)
        states_BxTxD, _ = real.states(inputs_BxT, real.encode(source_BxS))
        states_NxD = tf.reshape(states_BxTxD, [-1, 128])
        labels_N = tf.reshape(target_BxT, [-1])
        smoothed = cross_entropy(states_NxD, real.embedding, labels_N, 0.1).smoothed
        return smoothed / tf.math.count_nonzero(labels_N, dtype=tf.float32)

    losses = []
    for first in range(0, 1024, 16):
        chosen = [index % len(sources) for index in range(first, first + 16)]
        source_BxS = padded([[*sources[index], EOS] for index in chosen])
        target_BxT = padded([[BOS, *targets[index], EOS] for index in chosen])
        losses.append(float(loss(source_BxS, target_BxT)))
    assert np.mean(losses) == pytest.approx(2.0904, abs=1e-4)


EMPTY = [2, 36, 45, 48, 52, 66, 84, 116, 137, 138, 146, 186]
"""lines at which OpenSeq2Seq gives nothing although we do: it predicts <s>, which we know"""


@pytest.mark.long
def test_translations_are_its_own(real, pieces):
    sources = [np.array([*ids, EOS], np.int32) for ids in encoded("input.en.tok", pieces)]
    wanted = (REAL / "output.beam4.de.tok").read_text(encoding="utf-8").split("\n")[:-1]
    found = dict(Translator(real, Decoding(beam_size=4, length_penalty=0.6)).translate(sources))
    for number, line in enumerate(wanted, 1):
        text = " ".join(pieces[i] for i in found[number - 1][0].ids if i != EOS)
        assert line == ("" if number in EMPTY else text)

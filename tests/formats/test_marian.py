"""Marian models of Hugging Face: against a reading of their arithmetic in NumPy, and refusals."""

import contextlib
import io
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hvd_nmt import convert
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.checkpoints.weights import load_model
from hvd_nmt.formats import marian
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.tokenizer import Tokenizer
from toy import python

WIDTH, HEADS, HIDDEN, ENCODER, DECODER = 32, 4, 48, 2, 1
SOURCE = ["a man and a dog", "the old man sees a tree", "two dogs run", "a red house"]
TARGET = ["ein Mann und ein Hund", "der alte Mann sieht einen Baum", "zwei Hunde rennen", "Öl"]
LINES = [*SOURCE, "", "red Öl", "a 日本 man", ">>fra<< the old dog", "  two   men "]
_TRAIN = """
import io, json, sys, sentencepiece
lines, folder = json.load(sys.stdin)
for side in ("source", "target"):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines[side] * 3), model_writer=model, model_type="unigram",
        vocab_size=40, hard_vocab_limit=False, minloglevel=2)
    open(f"{folder}/{side}.spm", "wb").write(model.getvalue())
"""
_READ = """
import json, sys, sentencepiece
folder, lines = json.load(sys.stdin)
models = {side: sentencepiece.SentencePieceProcessor(model_file=f"{folder}/{side}.spm")
          for side in ("source", "target")}
json.dump({
    "names": {side: [m.id_to_piece(i) for i in range(m.get_piece_size())]
              for side, m in models.items()},
    "source": [models["source"].encode(line, out_type=str) for line in lines],
    "cut": [models["target"].encode(line, out_type=str) for line in lines],
}, sys.stdout)
"""


def answer(script, given):
    """Of a process of its own: SentencePiece and TensorFlow do not go together."""
    return json.loads(python("-c", script, input=json.dumps(given)).stdout or "null")


def words(model, out):
    return "--from", "marian", "--model", str(model), "--out", str(out)


def converted(model, out):
    assert convert.main(words(model, out)) == 0
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with random weights, and vocabularies as OPUS-MT's."""
    folder = tmp_path_factory.mktemp("opus")
    answer(_TRAIN, [{"source": SOURCE, "target": TARGET}, str(folder)])
    names = answer(_READ, [str(folder), []])["names"]
    pieces = sorted({*names["source"], *names["target"]} - {"<unk>", "<s>", "</s>"})
    pieces.remove("▁man" if "▁man" in pieces else names["source"][-1])  # one that is unknown
    vocabulary = ["</s>", "<unk>", ">>fra<<", *pieces, "<pad>"]
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    write_settings(folder, vocab_size=len(ids), pad_token_id=len(ids) - 1)
    save_file(random_tensors(len(ids)), folder / "model.safetensors")
    return folder


def write_settings(folder, **more):
    path = folder / "config.json"
    settings = json.loads(path.read_text()) if path.exists() else {
        "model_type": "marian", "d_model": WIDTH, "encoder_layers": ENCODER,
        "decoder_layers": DECODER, "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS, "encoder_ffn_dim": HIDDEN, "decoder_ffn_dim": HIDDEN,
        "activation_function": "swish", "max_position_embeddings": 64, "scale_embedding": True,
        "eos_token_id": 0, "forced_eos_token_id": 0, "decoder_start_token_id": more["pad_token_id"],
    }  # fmt: skip
    path.write_text(json.dumps(settings | more))


def random_tensors(rows):
    rng = np.random.default_rng(4)
    shapes = {"model.shared.weight": [rows, WIDTH], "final_logits_bias": [1, rows]}
    for stack, count in (("encoder", ENCODER), ("decoder", DECODER)):
        attentions = ["self_attn"] + ["encoder_attn"] * (stack == "decoder")
        for layer in (f"model.{stack}.layers.{i}." for i in range(count)):
            for part in (f"{a}.{p}_proj" for a in attentions for p in ("q", "k", "v", "out")):
                shapes |= {f"{layer}{part}.weight": [WIDTH, WIDTH], f"{layer}{part}.bias": [WIDTH]}
            for part, out, into in (("fc1", HIDDEN, WIDTH), ("fc2", WIDTH, HIDDEN)):
                shapes |= {f"{layer}{part}.weight": [out, into], f"{layer}{part}.bias": [out]}
            for part in (*(f"{a}_layer_norm" for a in attentions), "final_layer_norm"):
                shapes |= {f"{layer}{part}.weight": [WIDTH], f"{layer}{part}.bias": [WIDTH]}
    tensors = {name: rng.normal(0, 0.3, shape) for name, shape in shapes.items()}
    return {
        name: (value + (value.ndim == 1 and name.endswith("norm.weight"))).astype(np.float32)
        for name, value in tensors.items()
    }


def reference(tensors, source_S, inputs_T):
    """The logits after each of the decoder's inputs, in Marian's ids and in NumPy."""

    def linear(x, name):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def attention(x, memory, name, causal=False):
        q = linear(x, f"{name}.q_proj").reshape(len(x), HEADS, -1)
        k, v = (linear(memory, f"{name}.{p}_proj").reshape(len(memory), HEADS, -1) for p in "kv")
        logits = np.einsum("qhk,thk->hqt", q, k) / np.sqrt(q.shape[-1])
        if causal:
            logits += np.triu(np.full(logits.shape[1:], -1e9), 1)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return linear(np.einsum("hqt,thk->qhk", weights, v).reshape(len(x), -1), f"{name}.out_proj")

    def embedded(ids, table):
        # Straight from the class MarianSinusoidalPositionalEmbedding: even columns sin, odd cos.
        exponents = 2 * (np.arange(WIDTH) // 2) / WIDTH
        angles = np.arange(len(ids))[:, None] / np.power(10_000, exponents)
        signal = np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], 1)
        return table[ids] * WIDTH**0.5 + signal

    def layer(x, name, memory=None):
        y = attention(x, x, f"{name}.self_attn", memory is not None)
        x = norm(x + y, f"{name}.self_attn_layer_norm")
        if memory is not None:
            y = attention(x, memory, f"{name}.encoder_attn")
            x = norm(x + y, f"{name}.encoder_attn_layer_norm")
        h = linear(x, f"{name}.fc1")
        y = linear(h / (1 + np.exp(-h)), f"{name}.fc2")
        return norm(x + y, f"{name}.final_layer_norm")

    source_table, target_table = (
        tensors.get(f"model.{stack}.embed_tokens.weight", tensors.get("model.shared.weight"))
        for stack in ("encoder", "decoder")
    )
    memory = embedded(source_S, source_table)
    for number in range(ENCODER):
        memory = layer(memory, f"model.encoder.layers.{number}")
    x = embedded(inputs_T, target_table)
    for number in range(DECODER):
        x = layer(x, f"model.decoder.layers.{number}", memory)
    return x @ target_table.T + tensors["final_logits_bias"][0]


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    out, said = tmp_path_factory.mktemp("imported") / "run", io.StringIO()
    with contextlib.redirect_stdout(said):
        converted(folder, out)
    options = f"--vocabulary {out}/spm.model --source-vocabulary {out}/spm.source.model"
    assert f"python -m hvd_nmt.prepare {options} --out DATA" in said.getvalue()
    settings = RunDirectory(out).decoding(Decoding())
    assert (settings.normalization, settings.alpha) == ("marian", 1.0), "as its own program does"
    return out


@pytest.fixture(scope="module")
def vocabulary(folder):
    return marian.read_vocabulary(folder, separate=False)


def ours_of(vocabulary):
    """Marian's id -> ours, but for pad."""
    target = vocabulary.target
    return {row: number for number, row in enumerate(target.rows) if number not in target.never}


@pytest.mark.both_tensorflows
def test_logits_are_those_of_an_independent_reading(folder, run, vocabulary):
    model = load_model(run, "latest")[0]
    tensors, numbers = load_file(folder / "model.safetensors"), ours_of(vocabulary)
    pad, compared = len(numbers), sorted(numbers)
    rng = np.random.default_rng(1)
    for length_S, length_T in ((5, 7), (9, 3)):
        source, target = ([*rng.integers(2, pad, n), 0] for n in (length_S, length_T))
        wanted = reference(tensors, source, [pad, *target[:-1]])
        ids = (np.array([[numbers[number] for number in side]]) for side in (source, target))
        logits = model(*ids).numpy()[0]
        columns = [numbers[number] for number in compared]
        np.testing.assert_allclose(logits[:, columns], wanted[:, compared], rtol=0, atol=1e-4)
        assert logits[:, vocabulary.target.never].max() < logits[:, columns].min() - 50


@pytest.mark.both_tensorflows
def test_text_is_cut_as_source_spm_does_and_joined_as_target_spm_does(folder, run, vocabulary):
    source, target = (Tokenizer(path) for path in RunDirectory(run).vocabularies())
    assert source.pieces == target.pieces
    ids = json.loads((folder / "vocab.json").read_text())
    read = answer(_READ, [str(folder), [line.replace(">>fra<<", "") for line in LINES]])
    for line, pieces, ours in zip(LINES, read["source"], source.encode(LINES), strict=True):
        wanted = [ids.get(piece, ids["<unk>"]) for piece in pieces]
        if line.startswith(">>fra<<"):
            wanted.insert(0, ids[">>fra<<"])
        assert [vocabulary.target.rows[number] for number in ours] == [*wanted, 0], line
    read = answer(_READ, [str(folder), TARGET])
    for line, pieces, ours in zip(TARGET, read["cut"], target.encode(TARGET), strict=True):
        wanted = [ids.get(piece, ids["<unk>"]) for piece in pieces]
        assert [vocabulary.target.rows[number] for number in ours] == [*wanted, 0], line
    assert read["cut"] != read["source"]
    numbers = ours_of(vocabulary)
    pieces = [numbers[ids[piece]] for piece in ("▁ein", "▁", "M", "an", "n") if piece in ids]
    names = {number: piece for piece, number in ids.items()}
    expected = "".join(names[vocabulary.target.rows[n]] for n in pieces).replace("▁", " ").strip()
    assert [each.decode([pieces]) for each in (source, target)] == [[expected]] * 2


@pytest.fixture(scope="module")
def separate(folder, tmp_path_factory):
    """A model with a vocabulary and a matrix for each side, as Marian trains them by default."""
    separate = shutil.copytree(folder, tmp_path_factory.mktemp("separate") / "model")
    names = answer(_READ, [str(folder), []])["names"]
    sizes = []
    for side, file in (("source", "vocab.json"), ("target", "target_vocab.json")):
        pieces = [name for name in names[side] if name not in ("<unk>", "<s>", "</s>")]
        ids = {name: i for i, name in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
        (separate / file).write_text(json.dumps(ids), encoding="utf-8")
        sizes.append(len(ids))
    write_settings(
        separate, vocab_size=sizes[0], decoder_vocab_size=sizes[1], pad_token_id=sizes[0] - 1,
        decoder_start_token_id=sizes[1] - 1, share_encoder_decoder_embeddings=False,
    )  # fmt: skip
    tensors = random_tensors(sizes[1])
    target = tensors.pop("model.shared.weight")
    rng = np.random.default_rng(8)
    tensors |= {
        "model.encoder.embed_tokens.weight": rng.normal(0, 0.3, [sizes[0], WIDTH]).astype("f4"),
        "model.decoder.embed_tokens.weight": target, "lm_head.weight": target.copy(),
    }  # fmt: skip
    save_file(tensors, separate / "model.safetensors")
    return separate


def test_a_matrix_for_each_side_is_read_as_it_is(separate, tmp_path, capsys):
    out = converted(separate, tmp_path / "run")
    model, vocabulary = load_model(out, "latest")[0], marian.read_vocabulary(separate, True)
    rows = model.source_vocabulary_size, model.vocabulary_size
    assert f"vocabulary {rows[0]} (source) + {rows[1]}" in capsys.readouterr().out
    tensors = load_file(separate / "model.safetensors")
    of_source, of_target = vocabulary.source.rows, vocabulary.target.rows
    source, target = ([*range(4, len(ids) - 9, 3), 1] for ids in (of_source, of_target))
    theirs = [of_source[i] for i in source], [of_target[i] for i in target]
    pad = len(tensors["lm_head.weight"]) - 1
    wanted = reference(tensors, theirs[0], [pad, *theirs[1][:-1]])
    logits = model(np.array([source]), np.array([target])).numpy()[0]
    marians, ours = map(list, zip(*ours_of(vocabulary).items(), strict=True))
    np.testing.assert_allclose(logits[:, ours], wanted[:, marians], rtol=0, atol=1e-4)
    read = answer(_READ, [str(separate), SOURCE])["source"]
    ids = json.loads((separate / "vocab.json").read_text())
    for pieces, found in zip(read, Tokenizer(out / "spm.source.model").encode(SOURCE), strict=True):
        assert [of_source[i] for i in found] == [*(ids.get(p, ids["<unk>"]) for p in pieces), 0]


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("scale_embedding false", {"scale_embedding": False}),
        ("model_type", {"model_type": "bart"}),
        ("cannot be imported: 'tanh'", {"activation_function": "tanh"}),
        ("describes a model that cannot be", {"d_model": 30}),
        ("decoder_start_token_id 65000", {"decoder_start_token_id": 65000}),
        ("rows in model.shared.weight", {"model.shared.weight"}),
        ("also has model.decoder.gate.weight", {"model.decoder.gate.weight"}),
        ("has no model.decoder.layers.0.fc1.bias", ["model.decoder.layers.0.fc1.bias"]),
        ("is a pickle", "pytorch_model.bin"),
        ("vocab.json: ", "vocab.json"),
    ],
)
def test_what_cannot_be_imported_is_named(folder, tmp_path, refused, message, change):
    other = shutil.copytree(folder, tmp_path / "model")
    weights = other / "model.safetensors"
    if isinstance(change, dict):
        write_settings(other, **change)
    elif change == "pytorch_model.bin":
        weights.rename(other / change)
    elif isinstance(change, str):
        (other / change).write_bytes(b"\xff not this")
    else:
        tensors, (name,) = load_file(weights), change
        added = {name: np.ones([64, WIDTH], np.float32)} if isinstance(change, set) else {}
        save_file({key: x for key, x in tensors.items() if key != name} | added, weights)
    out = tmp_path / "run"
    assert message in refused(4, convert, *words(other, out))
    assert not out.exists()

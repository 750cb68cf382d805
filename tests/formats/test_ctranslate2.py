"""CTranslate2 computes what our models compute, and its own search finds what ours finds."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import ctranslate2 as engine
import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.checkpoints import run_files
from hvd_nmt.checkpoints.weights import load_model
from hvd_nmt.common.errors import ConfigError, DataError, RunError
from hvd_nmt.config import BOS, EOS, ModelConfig
from hvd_nmt.formats import ctranslate2
from hvd_nmt.formats.ctranslate2 import CTranslate2Translator
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.tokenizer import Tokenizer
from hvd_nmt.model.transformer import build_transformer
from hvd_nmt.model.translator import Translator
from hvd_nmt.telemetry import host
from hvd_nmt.translation.settings import Settings

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
PIECES = ["<pad>", "</s>", "<s>", "<unk>", *(f"piece{i}" for i in range(34))]
SIZES = ModelConfig(
    encoder_layers=2, decoder_layers=2, width=16, heads=2, feed_forward_width=32, max_length=24
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "model"
    ctranslate2.convert(GOLDEN / "run", "latest", out)
    return out


@pytest.mark.parametrize(
    "decoding",
    [Decoding(beam_size=1), Decoding(beam_size=1, max_length=5), Decoding(n_best=3)],
    ids=["greedy", "cut", "beam"],
)
def test_its_search_finds_our_translations_with_our_scores(exported, decoding):
    lines = (GOLDEN / "data" / "dev.en").read_text().splitlines()
    sources = Tokenizer(GOLDEN / "run" / "spm.model").encode(["", *lines])
    model = load_model(GOLDEN / "run", "latest")[0]
    ours = dict(Translator(model, decoding).translate(sources))
    theirs = dict(CTranslate2Translator(exported, decoding).translate(sources))
    assert sorted(theirs) == list(range(len(sources)))
    for index, found in theirs.items():
        assert found[0].ids.tolist() == ours[index][0].ids.tolist()
        # It forbids an empty translation, so that what may be one takes a share of its probability.
        assert found[0].score == pytest.approx(ours[index][0].score, abs=0.02)
        scores = [one.score for one in found]
        assert scores == sorted(scores, reverse=True)
        assert len(found) == (decoding.n_best if index else 1)


def log_probabilities(model, source, target):
    """Of the tokens of one pair, by our own model."""
    logits_1xTxV = model(tf.constant([source], tf.int32), tf.constant([target], tf.int32))
    return tf.gather(tf.nn.log_softmax(logits_1xTxV)[0], target, batch_dims=1).numpy()


def by_engine(folder, source, target, prefix=()):
    """The same by CTranslate2; it adds the eos of both sides itself."""
    pieces = json.loads((folder / "shared_vocabulary.json").read_text())
    named = [[pieces[number] for number in ids[:-1]] for ids in (source, target)]
    translator = engine.Translator(str(folder), intra_threads=1)
    (scored,) = translator.score_batch([named[0]], [[*prefix, *named[1]]])
    return np.array(scored.log_probs[len(prefix) :])


def written(model, folder, quantization="float32"):
    folder.mkdir()
    ctranslate2.specification(model, PIECES, PIECES, quantization).save(str(folder))
    return folder


def random_model(**changes):
    """Every weight is far from where training starts it, biases and norms too."""
    model = build_transformer(dataclasses.replace(SIZES, **changes), 40, seed=3)
    chance = np.random.default_rng(1)
    for variable in model.weights:
        scale = 0.5 if len(variable.shape) == 1 else 0.25
        variable.assign_add(chance.normal(0, scale, variable.shape))
    return model


SOURCE, TARGET = [5, 9, 30, 7, 12, EOS], [8, 8, 21, 37, 6, 15, 33, EOS]
LONG_SOURCE, LONG_TARGET = ([*(4 + i * step % 34 for i in range(200)), EOS] for step in (7, 11))
"""longer than in training: other programs do not split lines"""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positions": "learned"},
        {"norm": "post", "positions": "marian", "activation": "swish", "biases": "all"},
        {"activation": "gelu", "norm_epsilon": 0.1},
        {"start": "openseq2seq"},
        {"positions": "rotary"},
    ],
    ids=str,
)
def test_every_kind_of_model_has_the_same_probabilities(changes, tmp_path):
    model = random_model(**changes)
    folder, prefix = written(model, tmp_path / "model"), [PIECES[BOS]] * model.extra_positions
    for pair in ((SOURCE, TARGET), (LONG_SOURCE, LONG_TARGET)):
        if pair[0] is LONG_SOURCE and model.positions is not None:  # they end, as the README says
            with pytest.raises(RuntimeError, match="No position encodings are defined"):
                by_engine(folder, *pair, prefix)
            continue
        found = by_engine(folder, *pair, prefix)
        assert np.abs(found - log_probabilities(model, *pair)).max() < 2e-4


@pytest.mark.parametrize(
    ("eos_bias", "normalization"), [(12, "marian"), (-40, "marian"), (-40, "gnmt")]
)
@pytest.mark.parametrize("beam_size", [1, 4])
def test_no_and_all_tokens_are_a_translation(eos_bias, normalization, beam_size, tmp_path):
    """Where the end is the most probable token, and where only the length of each line ends it."""
    model = random_model(biases="all", max_length=90)
    model.logits_bias.assign(np.where(np.arange(40) == EOS, eos_bias, model.logits_bias))
    folder = written(model, tmp_path / "model")
    run_files.write_record(folder / ctranslate2.FACTS, {"max_length": 90, "target_prefix": []})
    decoding = Decoding(beam_size=beam_size, normalization=normalization)
    sources = [np.array([*range(4, 4 + length), EOS]) for length in (2, 5, 9, 20, 33)]
    ours = dict(Translator(model, decoding).translate(sources))
    theirs = dict(CTranslate2Translator(folder, decoding).translate(sources))
    lengths = [1] * 5 if eos_bias > 0 else [len(ids) + 50 for ids in sources]
    for index, length in enumerate(lengths):
        assert len(ours[index][0].ids) == length
        assert theirs[index][0].ids.tolist() == ours[index][0].ids.tolist()
        assert theirs[index][0].score == pytest.approx(ours[index][0].score, abs=1e-4)


@pytest.mark.parametrize(("quantization", "share"), [("int8", 0.4), ("bfloat16", 0.55)])
def test_fewer_bits_are_smaller_and_nearly_right(quantization, share, tmp_path):
    model = random_model()
    folders = {name: written(model, tmp_path / name, name) for name in ("float32", quantization)}
    sizes = {name: (path / "model.bin").stat().st_size for name, path in folders.items()}
    table = 1024 * SIZES.width  # of positions, which int8 leaves as they are
    rest = sizes["float32"] - 4 * table
    sizes[quantization] -= table * {"int8": 4, "bfloat16": 2}[quantization]
    assert sizes[quantization] < share * rest + 4000  # names take their room
    wanted = log_probabilities(model, SOURCE, TARGET)
    found = by_engine(folders[quantization], SOURCE, TARGET)
    if quantization == "int8" and not any("vnni" in flag for flag in host.cpu_flags()):
        pytest.skip("without VNNI this processor adds int8 products in 16 bits, which overflow")
    assert 0 < np.abs(found - wanted).max() < 0.3


def test_an_export_is_kept_until_the_checkpoint_changes(toy_run, tmp_path):
    run = shutil.copytree(toy_run, tmp_path / "run", ignore=lambda *_: ["exports"])
    first = ctranslate2.cached(run, "model.ckpt-40")
    made = (first / "model.bin").stat().st_mtime_ns
    assert first.parent == run / "exports"
    assert ctranslate2.cached(run, "model.ckpt-40") == first
    assert (first / "model.bin").stat().st_mtime_ns == made
    for suffix in (".index", ".data-00000-of-00001", ".meta", ".json"):
        shutil.copyfile(run / f"model.ckpt-30{suffix}", run / f"model.ckpt-40{suffix}")
    assert ctranslate2.cached(run, "model.ckpt-40") != first


def test_what_cannot_be_done_is_one_sentence(exported, monkeypatch, tmp_path):
    for wish in (Decoding(sample=True), Decoding(coverage_penalty=0.2), Decoding(min_length=2)):
        with pytest.raises(ConfigError, match="use --backend tensorflow"):
            Settings(backend="ctranslate2", decoding=wish)
    run = shutil.copytree(GOLDEN / "run", tmp_path / "run")
    with pytest.raises(DataError, match="The training data are not in"):
        ctranslate2.cached(run, "latest", has_shortlist=True)
    (run / "exports").write_text("no directory, and nothing is left of what was refused")
    with pytest.raises(RunError, match=r"float32-.* \(File exists\): fix that, or use a copy"):
        ctranslate2.cached(run, "latest")
    encoder = "ctranslate2.specs.transformer_spec.TransformerEncoderSpec"
    monkeypatch.setattr(encoder, lambda layers, num_heads, pre_norm, activation: None)
    with pytest.raises(ConfigError, match="pip install -U"):
        ctranslate2.specification(random_model(positions="rotary"), PIECES, PIECES, "float32")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ConfigError, match=r"pip install 'ctranslate2>=4,<5'"):
        CTranslate2Translator(exported)

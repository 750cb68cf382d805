"""CTranslate2 translates as we do, with the scores that we give."""

import dataclasses
import json
import shutil
import sys
from types import SimpleNamespace

import ctranslate2 as engine
import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.checkpoints.weights import load_model
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import BOS, EOS, ModelConfig
from hvd_nmt.formats import ctranslate2, ctranslate2_spec
from hvd_nmt.model import architectures, translator
from hvd_nmt.model.batching import cut
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.tokenizer import Tokenizer
from hvd_nmt.model.translator import Translator
from hvd_nmt.telemetry import host

LINES = [
    "the old man sees a bird", "", "a dog sings", "the red house and the small tree", "bird",
    "the man eats a big red tree and the dog sees the street", "a", "old old old",
    " ".join(["the big dog"] * 30),
]  # fmt: skip
# A model of 40 steps finds every end equally likely: no search may stop early.
PATIENCE = 100.0
PIECES = ["<pad>", "</s>", "<s>", "<unk>", *(f"piece{i}" for i in range(34))]
SIZES = ModelConfig(
    encoder_layers=2, decoder_layers=2, width=16, heads=2, feed_forward_width=32, max_length=24
)


@pytest.fixture(scope="module")
def exported(toy_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "model"
    ctranslate2.convert(toy_run, "best", out)
    return out


@pytest.fixture(scope="module")
def model(toy_run):
    return load_model(toy_run, "best")[0]


@pytest.fixture(scope="module")
def sources(toy_run):
    return Tokenizer(toy_run / "spm.model").encode(LINES)


def test_an_empty_translation_is_none_where_our_search_would_go_on(exported, monkeypatch):
    """Whatever the engine found besides: something, what is cut at the limit, or nothing."""
    translator = ctranslate2.CTranslate2Translator(exported, Decoding(beam_size=3))
    monkeypatch.setattr(translator, "_may_be_empty", lambda source: False)
    eos, word = translator._pieces[EOS], translator._pieces[-1]
    source = np.array([7, EOS])

    def ranked(*hypotheses, least=1):
        scores = [-1.0 - number for number in range(len(hypotheses))]
        result = SimpleNamespace(hypotheses=[*hypotheses], scores=scores)
        return [len(one.ids) for one in translator._ranked(source, result, 3, least)]

    assert ranked([eos], [word, eos], [word, word, word]) == [2]
    assert ranked([eos], [word, word, word]) == [3]
    assert ranked([eos], [word] * 4) == []
    assert ranked([eos], [word] * 4, least=0) == [1]


def test_a_beam_is_ranked_by_our_scores(exported, model, sources):
    decoding = Decoding(n_best=3, length_penalty=1)
    translator = ctranslate2.CTranslate2Translator(exported, decoding, patience=PATIENCE)
    wanted = dict(Translator(model, decoding).translate(sources))
    for index, found in translator.translate(sources):
        if index == 1:
            continue
        scores = [one.score for one in found]
        assert len(found) == 3
        assert scores == sorted(scores, reverse=True)
        assert scores[0] == pytest.approx(wanted[index][0].score, abs=1e-4)
        source = cut(sources[index], model.max_length).tolist()
        for one in found:
            logp = log_probabilities(model, source, one.ids.tolist()).sum()
            assert one.score == pytest.approx(logp / ((5 + len(one.ids)) / 6), abs=1e-4)


def test_greedy_translations_and_scores_are_ours_also_at_a_limit_of_each_sentence(
    exported, model, sources, monkeypatch
):
    decoding = Decoding(beam_size=1)
    for extra in (50, 2):
        for module in (ctranslate2, translator):
            monkeypatch.setattr(module, "EXTRA_TOKENS", extra)
        wanted = dict(Translator(model, decoding).translate(sources))
        translator_of_theirs = ctranslate2.CTranslate2Translator(exported, decoding, threads=1)
        for batching in ({}, {"batch_tokens": 1}):
            found = dict(translator_of_theirs.translate(sources, **batching))
            assert sorted(found) == list(range(len(LINES)))
            assert list(found)[:2] == [1, 8], "what is empty, then the longest"
            for index, (ours,) in wanted.items():
                assert found[index][0].ids.tolist() == ours.ids.tolist()
                assert found[index][0].score == pytest.approx(ours.score, abs=1e-4)
                assert len(ours.ids) <= len(sources[index]) + extra


def test_details_of_a_translation_cut_at_the_limit(tmp_path):
    model = random_model(max_length=8)
    path = written(model, tmp_path / "model")
    facts = {"max_length": 8, "target_prefix": []}
    (path / "hvd_nmt.json").write_text(json.dumps(facts), encoding="utf-8")
    decoding = Decoding(beam_size=1, length_penalty=0)
    translators = Translator(model, decoding), ctranslate2.CTranslate2Translator(path, decoding)
    for index in range(4, len(PIECES)):
        source = np.array([*range(4, 10), index, EOS], np.int32)
        ours, theirs = (dict(one.translate([source], details=True))[0][0] for one in translators)
        if ours.ids[-1] != EOS:
            break
    assert len(ours.ids) == 8
    assert theirs.ids.tolist() == ours.ids.tolist()
    np.testing.assert_allclose(theirs.token_scores, ours.token_scores, atol=1e-4)


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
    ctranslate2_spec.specification(model, PIECES, PIECES, quantization).save(str(folder))
    return folder


def random_model(**changes):
    """Every weight is far from where training starts it, biases and norms too."""
    config = dataclasses.replace(SIZES, **changes)
    model = architectures.build(config, 40, seed=3)
    chance = np.random.default_rng(1)
    for variable in model.weights:
        scale = 0.5 if len(variable.shape) == 1 else 0.25
        variable.assign_add(chance.normal(0, scale, variable.shape))
    return model


SOURCE, TARGET = [5, 9, 30, 7, 12, EOS], [8, 8, 21, 37, 6, 15, 33, EOS]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positions": "learned"},
        {"norm": "post", "positions": "marian", "activation": "swish", "biases": "all"},
        {"activation": "gelu", "norm_epsilon": 0.1},
        {"start": "openseq2seq"},
    ],
    ids=str,
)
def test_every_kind_of_model_has_the_same_probabilities(changes, tmp_path):
    model = random_model(**changes)
    prefix = [PIECES[BOS]] * ctranslate2_spec.extra_positions(model)
    wanted = log_probabilities(model, SOURCE, TARGET)
    found = by_engine(written(model, tmp_path / "model"), SOURCE, TARGET, prefix)
    assert np.abs(found - wanted).max() < 2e-4


@pytest.mark.parametrize(("quantization", "share"), [("int8", 0.4), ("bfloat16", 0.55)])
def test_fewer_bits_are_smaller_and_nearly_right(quantization, share, tmp_path):
    model = random_model()
    folders = {name: written(model, tmp_path / name, name) for name in ("float32", quantization)}
    sizes = {name: (path / "model.bin").stat().st_size for name, path in folders.items()}
    assert sizes[quantization] < share * sizes["float32"] + 4000  # names take their room
    wanted = log_probabilities(model, SOURCE, TARGET)
    found = by_engine(folders[quantization], SOURCE, TARGET)
    if quantization == "int8" and not any("vnni" in flag for flag in host.cpu_flags()):
        pytest.skip("without VNNI this processor adds int8 products in 16 bits, which overflow")
    assert 0 < np.abs(found - wanted).max() < 0.3


def test_an_export_is_kept_until_the_checkpoint_changes(toy_run, tmp_path, capsys, monkeypatch):
    run = shutil.copytree(toy_run, tmp_path / "run", ignore=lambda *_: ["exports"])
    first = ctranslate2.cached(run, "model.ckpt-40")
    made = (first / "model.bin").stat().st_mtime_ns
    assert first.parent == run / "exports"
    assert ctranslate2.cached(run, "model.ckpt-40") == first
    assert (first / "model.bin").stat().st_mtime_ns == made
    for suffix in (".index", ".data-00000-of-00001", ".meta", ".json"):
        shutil.copyfile(run / f"model.ckpt-30{suffix}", run / f"model.ckpt-40{suffix}")
    assert ctranslate2.cached(run, "model.ckpt-40") != first

    shutil.rmtree(run / "exports")
    (run / "exports").write_text("no folder")  # root may write whatever has no write bits
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = ctranslate2.cached(run, "model.ckpt-40")
    assert made.parent == tmp_path / "cache" / "hvd_nmt"
    assert f"{run} cannot be written: its CTranslate2 model goes to {made}." in (
        capsys.readouterr().err
    )


def test_what_cannot_be_done_is_one_sentence(exported, monkeypatch):
    for wish in (Decoding(sample=True), Decoding(coverage_penalty=0.2), Decoding(min_length=2)):
        with pytest.raises(ConfigError, match="use the TensorFlow backend"):
            ctranslate2.CTranslate2Translator(exported, wish)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ConfigError, match=r"pip install 'ctranslate2>=4,<5'"):
        ctranslate2.CTranslate2Translator(exported)

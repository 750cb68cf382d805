"""The translator around a real, tiny, untrained Transformer."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.config import EOS, ModelConfig
from hvd_nmt.model import device
from hvd_nmt.model.batching import batches
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.model.translator import Translator

VOCABULARY = 40


def make_model(seed=3):
    """With weights so large that what it says depends on what it reads."""
    model = Transformer(ModelConfig(2, 2, 16, 2, 32, max_length=24), VOCABULARY, seed=seed)
    for weight in model.trainable_variables:
        if len(weight.shape) > 1:
            weight.assign(2 * weight)
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def sources():
    rng = np.random.default_rng(5)
    lengths = [3, 12, 1, 7, 24, 3, 9, 1, 40, 2]
    return [np.append(rng.integers(3, VOCABULARY, n - 1), EOS).astype(np.int32) for n in lengths]


def logp_of(models, source, ids):
    """The models' mean log-probability of each token, by the full decoder."""
    p = [tf.nn.softmax(m(tf.constant([source]), tf.constant([ids])))[0].numpy() for m in models]
    return np.log(np.mean(p, 0))[np.arange(len(ids)), ids]


def test_scores_and_details_are_the_models_own(model, sources):
    found = dict(Translator(model, Decoding(n_best=3)).translate(sources, details=True))
    assert found[2][0].token_scores.shape == found[2][0].alignment.shape == (0,)
    for index in (0, 1, 3, 6):
        assert 1 <= len(found[index]) <= 3  # fewer where no more have ended in time
        for ids, score, token_scores, alignment in found[index]:
            expected = logp_of([model], sources[index], ids)
            np.testing.assert_allclose(token_scores, expected, rtol=1e-3, atol=1e-5)
            penalty = ((5 + len(ids)) / 6) ** 0.6
            np.testing.assert_allclose(score, expected.sum() / penalty, rtol=1e-4)
            assert len(alignment) == len(ids)
            assert 0 <= min(alignment) <= max(alignment) < len(sources[index])
    assert max(map(len, found.values())) == 3


def test_blank_and_overlong_sources(model, sources):
    plain = Translator(model)
    found = dict(plain.translate(sources))
    assert found[2][0].ids.tolist() == []
    assert found[2][0].score == 0.0
    cut = np.append(sources[8][:23], EOS).astype(np.int32)
    np.testing.assert_array_equal(found[8][0].ids, dict(plain.translate([cut]))[0][0].ids)
    assert max(len(translations[0].ids) for translations in found.values()) <= model.max_length
    assert list(plain.translate([])) == []


def test_draws_depend_on_seed_and_number_alone(model, sources):
    translator = Translator(model, Decoding(sample=True))
    first = {i: t[0].ids.tolist() for i, t in translator.translate(sources[:2])}
    moved = translator.translate(sources[1::-1], numbers=[1, 0])
    assert {1 - i: t[0].ids.tolist() for i, t in moved} == first
    apart = translator.translate(sources[:2], batch_tokens=1)
    assert {i: t[0].ids.tolist() for i, t in apart} == first
    other = Translator(model, Decoding(sample=True, seed=2))
    assert {i: t[0].ids.tolist() for i, t in other.translate(sources[:2])} != first


@pytest.mark.parametrize(("inter", "intra", "searches"), [(0, 1, 1), (2, 1, 2), (0, 64, 4)])
def test_searches_at_once_give_what_one_gives(model, sources, monkeypatch, inter, intra, searches):
    expected = [(i, best.ids.tolist()) for i, (best,) in Translator(model).translate(sources)]
    threading = tf.config.threading
    monkeypatch.setattr(threading, "get_inter_op_parallelism_threads", lambda: inter)
    monkeypatch.setattr(threading, "get_intra_op_parallelism_threads", lambda: intra)
    assert device.searches() == searches
    found = Translator(model).translate(sources, batch_tokens=60)
    assert [(i, best.ids.tolist()) for i, (best,) in found] == expected


def test_no_step_of_a_search_converts_weights(model, sources):
    """In its loops only the table of embeddings and seven layer norms are read."""
    narrow = Transformer(ModelConfig(2, 2, 16, 2, 32), VOCABULARY, "bfloat16")
    assert len([*Translator([model, narrow]).translate(sources[:2])]) == 2
    loops = Translator(narrow).search.get_concrete_function().graph.as_graph_def().library.function
    reads = [node.op == "ReadVariableOp" for loop in loops for node in loop.node_def]
    assert sum(reads) == 1 + 7 * 2


@pytest.mark.long
def test_an_ensemble_averages_probabilities(model, sources):
    models = [model, make_model(seed=4)]
    translator = Translator(models, Decoding(length_penalty=0.0))
    found = dict(translator.translate(sources[:2], details=True))
    for index in (0, 1):
        (translation,) = found[index]
        expected = logp_of(models, sources[index], translation.ids)
        np.testing.assert_allclose(translation.token_scores, expected, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(translation.score, expected.sum(), rtol=1e-4)


def test_follows_the_weights_and_survives_nan(sources):
    model = make_model()
    translator = Translator(model, Decoding(beam_size=2))
    assert len(dict(translator.translate(sources[:1]))[0][0].ids)
    for variable in model.trainable_variables:
        variable.assign(tf.fill(variable.shape, np.nan))
    (translation,) = dict(translator.translate(sources[:1]))[0]
    assert translation.ids.tolist() == []
    assert translation.score == -np.inf


def test_batches_are_full_sorted_and_complete():
    lengths = np.random.default_rng(2).integers(1, 60, 500).tolist()
    found = list(batches(lengths, 256))
    indices = [index for batch in found for index in batch]
    assert sorted(indices) == [i for i, n in enumerate(lengths) if n > 1]
    longest = [max(lengths[i] for i in batch) for batch in found]
    assert longest == sorted(longest, reverse=True)
    sizes = [n * len(batch) for n, batch in zip(longest, found, strict=True)]
    assert max(sizes) <= 256
    assert min(sizes[:-1]) > 256 - 60
    assert list(batches([1000, 5], 256)) == [[0], [1]]
    assert list(batches([1, 0, 2], 256, least=1)) == [[2, 0]]

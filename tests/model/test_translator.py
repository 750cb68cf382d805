"""The translator around a real, tiny, untrained Transformer."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.config import EOS, ModelConfig
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.model.translator import Translator, batches, padded

VOCABULARY = 40


@pytest.fixture(scope="module")
def model():
    return Transformer(ModelConfig(2, 2, 16, 2, 32, max_length=24), VOCABULARY, seed=3)


@pytest.fixture(scope="module")
def sources():
    rng = np.random.default_rng(5)
    lengths = [3, 12, 1, 7, 24, 3, 9, 1, 40, 2]
    return [np.append(rng.integers(3, VOCABULARY, n - 1), EOS).astype(np.int32) for n in lengths]


def test_greedy_takes_what_the_full_decoder_finds_most_probable(model, sources):
    found = dict(Translator(model, beam_size=1).translate(sources[:7]))
    for index in (0, 3, 4):
        ids = found[index].ids
        logits = model(tf.constant([sources[index]]), tf.constant([ids]))
        assert tf.argmax(logits[0], -1).numpy().tolist() == ids.tolist()


@pytest.mark.parametrize("beam_size", [1, 4])
def test_result_depends_neither_on_batch_nor_on_padding(model, sources, beam_size):
    translator = Translator(model, beam_size=beam_size)
    together, apart = (dict(translator.translate(sources, n)) for n in (1000, 1))
    assert sorted(together) == sorted(apart) == list(range(len(sources)))
    for index in together:
        np.testing.assert_array_equal(together[index].ids, apart[index].ids)
        np.testing.assert_allclose(together[index].score, apart[index].score, rtol=1e-4)
    assert translator.search.experimental_get_tracing_count() == 1


def test_scores_are_the_models_own(model, sources):
    ids, scores = Translator(model, length_penalty=0.6).translate_ids(padded(sources[:2]))
    for source, words, score in zip(sources[:2], ids, scores, strict=True):
        words = np.trim_zeros(words, "b")
        logits = model(tf.constant([source]), tf.constant([words]))
        logp = tf.nn.log_softmax(logits)[0].numpy()[np.arange(len(words)), words].sum()
        np.testing.assert_allclose(score, logp / ((5 + len(words)) / 6) ** 0.6, rtol=1e-4)


def test_blank_and_overlong_sources(model, sources):
    found = dict(Translator(model).translate(sources))
    assert found[2].ids.tolist() == []
    assert found[2].score == 0.0
    cut = np.append(sources[8][:23], EOS).astype(np.int32)
    np.testing.assert_array_equal(found[8].ids, dict(Translator(model).translate([cut]))[0].ids)
    assert max(len(translation.ids) for translation in found.values()) <= model.max_length
    assert list(Translator(model).translate([])) == []


def test_follows_the_weights_and_survives_nan(sources):
    model = Transformer(ModelConfig(1, 1, 16, 2, 32, max_length=24), VOCABULARY)
    translator = Translator(model, beam_size=2)
    assert len(dict(translator.translate(sources[:1]))[0].ids)
    for variable in model.trainable_variables:
        variable.assign(tf.fill(variable.shape, np.nan))
    translation = dict(translator.translate(sources[:1]))[0]
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

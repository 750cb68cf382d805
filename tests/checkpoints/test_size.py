"""The predicted sizes against models of TensorFlow; `test_contents` has files."""

import dataclasses

import pytest

from hvd_nmt.checkpoints import size
from hvd_nmt.checkpoints.state import weights_by_path, weights_to_train
from hvd_nmt.config import ModelConfig, presets
from hvd_nmt.model.transformer import Transformer

TINY = ModelConfig(1, 2, 16, 2, 32)


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"encoder_layers": 3}, {"positions": "learned"}, {"biases": "all"}, {"norm": "post"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("source", [0, 72])
def test_every_weight_has_its_size(changes, source):
    model = dataclasses.replace(TINY, **changes)
    made = weights_by_path(Transformer(model, 40, source_vocabulary_size=source))
    wanted = {path: int(weight.shape.num_elements()) for path, weight in made.items()}
    assert size.weight_sizes(model, 40, source) == wanted


def test_the_base_model_of_the_recipe():
    config = presets()["base"][1]
    predicted = size.predict(config.model, config.data.vocabulary_size)
    assert predicted.parameters == predicted.trained == 60_880_896
    assert predicted.n_bytes == 730_570_752


@pytest.mark.parametrize("freeze", ["", "encoder, decoder/0/*", "embedding", "source_embedding"])
def test_frozen_weights_have_no_moments_and_an_average_is_one_more(freeze):
    trained = weights_to_train(Transformer(TINY, 40, source_vocabulary_size=72), freeze)
    found = size.predict(TINY, 40, freeze=freeze, averaged=True, source_vocabulary_size=72)
    assert found.trained == sum(int(w.shape.num_elements()) for w in trained.values())
    assert found.n_bytes == 4 * (2 * found.parameters + 2 * found.trained)


@pytest.mark.parametrize("ranks", range(1, 9))
def test_the_gradients_go_around_a_ring_link_by_link(ranks):
    """N ranks pass pieces of 1/N: N-1 times to add them up, N-1 times to hand the sums around."""
    gradient_bytes = size.bytes_of_gradients(210)
    passed = [840 / ranks] * (ranks - 1) * 2
    assert size.ring_bytes(gradient_bytes, ranks) == pytest.approx(sum(passed))

"""The sizes of weights and checkpoints are those of the model."""

import pytest

from hvd_nmt.checkpoints import sizes
from hvd_nmt.checkpoints.state import weights_by_path
from hvd_nmt.config import ModelConfig, presets
from hvd_nmt.model.transformer import Transformer


@pytest.mark.parametrize(
    "changes",
    [{}, {"encoder_layers": 1}, {"positions": "learned"}, {"biases": "all"}, {"norm": "post"}],
)
@pytest.mark.parametrize("source", [0, 72])
def test_every_weight_has_its_size(changes, source):
    config = ModelConfig(**{"width": 16, "heads": 2} | changes)
    made = weights_by_path(Transformer(config, 40, source_vocabulary_size=source))
    wanted = {path: int(weight.shape.num_elements()) for path, weight in made.items()}
    assert sizes.weight_sizes(config, 40, source) == wanted


def test_the_base_model_of_the_recipe():
    config = presets()["base"][1]
    assert sizes.predict(config.model, config.data.vocabulary_size) == (60_880_896, 730_570_752)

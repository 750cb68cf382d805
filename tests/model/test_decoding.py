"""The options of a search."""

import math

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.model.decoding import Decoding


@pytest.mark.parametrize(
    "bad",
    [
        {"beam_size": 0}, {"length_penalty": -0.1}, {"length_penalty": math.nan},
        {"coverage_penalty": math.inf}, {"n_best": 5}, {"n_best": 0},
        {"min_length": 9, "max_length": 8},
        {"no_repeat_ngram": -1}, {"temperature": 0.0, "sample": True},
        {"top_p": 0.0, "sample": True}, {"top_p": 1.1, "sample": True}, {"top_k": 5},
        {"temperature": 0.7},
    ],
)  # fmt: skip
def test_what_cannot_work_is_told_with_its_name(bad):
    with pytest.raises(ConfigError, match="--" + next(iter(bad)).replace("_", "-")):
        Decoding(**bad)

"""The options of a search."""

import math
import subprocess
import sys

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.model.decoding import Decoding


@pytest.mark.parametrize(
    "bad",
    [
        {"beam_size": 0}, {"length_penalty": -0.1}, {"length_penalty": math.nan},
        {"coverage_penalty": math.inf}, {"n_best": 5}, {"n_best": 0},
        {"min_length": 9, "max_length": 8}, {"min_ratio": 2.0, "max_ratio": 1.0},
        {"no_repeat_ngram": -1}, {"temperature": 0.0, "sample": True},
        {"top_p": 0.0, "sample": True}, {"top_p": 1.1, "sample": True}, {"top_k": 5},
        {"temperature": 0.7},
    ],
)  # fmt: skip
def test_what_cannot_work_is_told_with_its_name(bad):
    with pytest.raises(ConfigError, match="--" + next(iter(bad)).replace("_", "-")):
        Decoding(**bad)


def test_hypotheses_side_by_side():
    assert Decoding(beam_size=7, n_best=2).hypotheses == 7
    assert Decoding(beam_size=1, n_best=5, sample=True).hypotheses == 5
    assert Decoding(min_length=9).max_length == 0  # no bound, so no contradiction


def test_a_command_line_need_not_wait_for_tensorflow():
    check = "import sys, hvd_nmt.model.decoding; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)

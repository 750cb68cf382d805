"""Stages of several corpora, as a file names them."""

import pytest
import yaml

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.mixture import AS_IS, END, Stage, stages_of


def read(text):
    return stages_of(yaml.safe_load(text), "data.stages")


def test_stages_are_read():
    first = "{until: 50, weights: {clean: 1, crawled: 1e-3, back: as is}}"
    assert read(f"[{first}, {{until: end, weights: {{clean: 2.5}}}}]") == (
        Stage(50, {"clean": 1.0, "crawled": 0.001, "back": AS_IS}), Stage(END, {"clean": 2.5})
    )  # fmt: skip
    assert read("[]") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[{until: 5, weights: {a: 1}}]", "the last stage needs `until: end`"),
        ("[{until: end, weights: {a: 1}}, {until: 5, weights: {a: 1}}]", "after the one before"),
        ("[{until: 0, weights: {a: 1}}]", "needs `until`, a step or end"),
        ("[{until: end}]", "and weights, as in [{until: 50000, weights: {clean: 1,"),
        ("[{until: end, weights: {}}]", "stage 1 needs `until`, a step or end"),
        ("[{until: end, weights: {a: .nan}}]", "a nan: give a number above 0, or 'as is'"),
        ("[{until: end, weights: {a: true}}]", "give a number above 0"),
        (f"[{{until: end, weights: {{a: 1{'0' * 400}}}}}]", "give a number above 0"),
        ("until", "must be a list such as"),
    ],
)
def test_what_is_no_stage_is_one_sentence(text, said):
    with pytest.raises(ConfigError) as raised:
        read(text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)

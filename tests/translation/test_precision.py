"""In which arithmetic a model translates."""

import pytest

from hvd_nmt.model import device
from hvd_nmt.translation import engine
from hvd_nmt.translation.settings import Settings


@pytest.mark.parametrize(
    ("wanted", "capability", "dtype"),
    [
        ("auto", None, "float32"),  # whatever the processor can: the same texts everywhere
        ("auto", (7, 0), "float16"),
        ("auto", (9, 0), "bfloat16"),
        ("float32", (9, 0), "float32"),
    ],
)
def test_it_follows_the_gpu_or_the_option(toy_run, monkeypatch, wanted, capability, dtype):
    monkeypatch.setattr(device, "compute_capability", lambda: capability)
    (model,) = engine.load(toy_run, ("best",), Settings(precision=wanted)).models
    assert model.activation_dtype == dtype

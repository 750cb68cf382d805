"""The input of a run as `fit` gets it."""

from types import SimpleNamespace

import numpy as np
import pytest

from hvd_nmt.training import setup
from hvd_nmt.training.horovod import Rank


@pytest.fixture
def dataset(monkeypatch):
    """A function of a number of steps, and the number of batches that were made so far."""
    made = []

    def batches(data, plan, start, *_, **__):
        while True:
            made.append(start)
            ids = np.full([2, 3], len(made), np.int32)
            yield SimpleNamespace(source_BxS=ids, target_BxT=ids, source_tokens=6, target_tokens=6,
                                  rank_target_tokens=(6,), sentences=np.arange(2))  # fmt: skip

    monkeypatch.setattr(setup, "batches", batches)
    plan = SimpleNamespace(position=lambda step: step)
    data = SimpleNamespace(epochs=None, manifest=SimpleNamespace(by_corpus=lambda part: {}))
    run_setup = setup.RunSetup(
        None, Rank(0, 1, 0, 1, "host"), ["host"], ["CPU"], data, plan, "float32"
    )
    return lambda steps: setup.dataset(run_setup, 7, steps), made


def test_the_input_ends_with_the_last_step_and_its_iterator_at_once(dataset):
    """No thread is inside of the generator when the iterator is destroyed.

    With tf.data's autotuning one in ten took as long again as it had lived, up to a minute.
    """
    make, made = dataset
    batches = make(5)
    assert [int(batch["source"][0, 0]) for batch in batches] == [1, 2, 3, 4, 5]
    assert made == [7] * 5
    assert batches.options().autotune.enabled is False

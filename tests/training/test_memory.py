"""Memory from a configuration alone."""

import numpy as np
import pytest

from hvd_nmt.config import presets
from hvd_nmt.model import loss
from hvd_nmt.training import memory

BASE = presets()["base"][1].model
TYPICAL = (140, 56, 56)
"""rows, source and target length of about 7,800 tokens a side"""


def need(batch=TYPICAL, precision="float32", **options):
    """Of the base model with its vocabulary, on a GPU."""
    return memory.need(BASE, 32768, precision, batch, on_gpu=True, **options)


def test_frozen_weights_have_no_gradient_and_an_average_is_one_more_copy():
    usual, frozen, averaged = need(), need(freeze="embedding"), need(averaged=True)
    frozen_islands = need(freeze="embedding", copies=2)
    embedding = 32768 * 512
    assert usual.state_bytes - frozen.state_bytes == 8 * embedding
    assert usual.gradient_bytes - frozen.gradient_bytes == 8 * embedding
    assert averaged.state_bytes - usual.state_bytes == 4 * 60_880_896
    assert averaged.gradient_bytes == usual.gradient_bytes
    trained = 60_880_896 - embedding
    assert frozen_islands.state_bytes - frozen.state_bytes == 2 * 4 * trained


def test_a_matrix_of_the_source_has_state_and_gradients_and_no_logits():
    usual, own = need(), need(source_vocabulary_size=16384)
    assert own.state_bytes - usual.state_bytes == 12 * 16384 * 512
    assert own.gradient_bytes - usual.gradient_bytes == 8 * 16384 * 512
    assert (own.softmax_bytes, own.activation_bytes) == (
        usual.softmax_bytes,
        usual.activation_bytes,
    )


def test_a_save_in_the_background_needs_the_state_once_more_in_main_memory():
    assert need(averaged=True, snapshot=True) == need(averaged=True)
    usual, saves = (
        memory.need(BASE, 32768, "float32", TYPICAL, False, averaged=True, snapshot=snapshot)
        for snapshot in (False, True)
    )
    assert saves.state_bytes == 2 * usual.state_bytes == 2 * 16 * 60_880_896


@pytest.mark.parametrize(
    ("preset", "batch", "measured_GB"),
    [("small", (290, 15, 15), 1.65), ("small", (850, 15, 15), 3.23), ("demo", (18, 15, 15), 0.81)],
)
def test_what_was_measured_on_the_cpu(preset, batch, measured_GB):
    """Peak of `hvd_nmt.bench --training.precision float32` on Multi30k, in November 2026."""
    model = presets()[preset][1].model
    needed = memory.need(model, 8000, "float32", batch, on_gpu=False)
    assert 1.0 <= needed.total_bytes / (measured_GB * 1e9) < 1.15


def test_narrow_values_halve_the_activations_and_keep_the_state():
    wide, narrow = need(), need(precision="bfloat16")
    assert 0.5 < narrow.activation_bytes / wide.activation_bytes < 0.65
    assert narrow.state_bytes == wide.state_bytes + 2 * 60_880_896
    assert wide.state_bytes == 12 * 60_880_896


def test_the_softmax_has_a_ceiling():
    sizes = [need((rows, 56, 56)).softmax_bytes for rows in (10, 140, 1400)]
    assert sizes[0] < sizes[1] == sizes[2]


def test_the_most_tokens_that_fit_fit_and_a_hundred_more_do_not():
    """By the same prediction, with its softmax, which is smaller in small steps."""

    def need_of(tokens):
        return need(memory.widest_batch(tokens, 4, 256), "float16")

    for available_bytes in (4 * 10**9, 16 * 10**9):
        most = memory.most_tokens(need_of, 400_000, available_bytes)
        assert 0 < most < 400_000
        assert need_of(most).total_bytes <= available_bytes < need_of(most + 100).total_bytes
    assert memory.most_tokens(need_of, 100_000, 1_500_000_000) == 0  # not even the model fits


@pytest.mark.parametrize(("slices", "measured_GB"), [(1, 3.26), (2, 2.38), (4, 1.70), (8, 1.41)])
def test_what_was_measured_on_the_cpu_in_slices(slices, measured_GB):
    """Peak of steps of 850 x 15+15 tokens, preset small, float32, 2 threads, one after another."""
    model = presets()["small"][1].model
    needed = memory.need(model, 8000, "float32", (850, 15, 15), False, micro_batches=slices)
    assert needed.total_bytes == pytest.approx(measured_GB * 1e9, rel=0.17)


def test_slices_hold_their_own_activations_and_one_more_set_of_gradients():
    whole, sliced = need(), need(micro_batches=4)
    assert sliced.activation_bytes == need((35, 56, 56)).activation_bytes
    assert sliced.softmax_bytes <= whole.softmax_bytes
    assert sliced.gradient_bytes == whole.gradient_bytes + 4 * 60_880_896
    assert need(micro_batches=1000).activation_bytes == need((1, 56, 56)).activation_bytes


def test_the_least_slices_that_fit():
    def need_of(slices):
        return need((450, 56, 56), "float16", micro_batches=slices)

    for available_GB in (100, 8, 5, 4):
        slices = memory.slices_that_fit(need_of, 450, available_GB * 10**9)
        assert need_of(slices).total_bytes <= available_GB * 10**9
        assert slices == 1 or need_of(slices // 2).total_bytes > available_GB * 10**9
        assert (slices == 1) == (available_GB == 100)
        assert memory.slices_to_take(need_of, 450, available_GB * 10**9) == slices
    # Where no slice is small enough, no more are taken than make a difference.
    assert memory.slices_that_fit(need_of, 450, 10**9) == 0
    taken = memory.slices_to_take(need_of, 450, 10**9)
    assert 4 <= taken <= 64
    assert need_of(512).total_bytes > 0.8 * need_of(taken).total_bytes


def test_activations_of_many_batches_at_once():
    rows, lengths = np.array([10, 20]), np.array([30, 7])
    together = memory.activation_bytes(BASE, 4, rows, lengths, lengths)
    alone = [memory.activation_bytes(BASE, 4, *batch) for batch in ((10, 30, 30), (20, 7, 7))]
    assert together.tolist() == alone


def test_the_widest_batch_holds_the_tokens_of_its_rank():
    rows, source, target = memory.widest_batch(10_000, 4, 56)
    assert source == target == 56
    assert 10_000 / 4 <= rows * target < 10_000 / 4 + 3 * 56


def test_the_formula_is_the_losses_own_limit():
    assert memory.PIECE_ELEMENTS == (loss.ON_CPU, loss.ON_GPU)

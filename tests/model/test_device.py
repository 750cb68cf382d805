"""The precision picked from facts of the hardware."""

import pytest

from hvd_nmt.model import device

SKYLAKE = {"avx2", "avx512f", "avx512_vnni"}


@pytest.mark.parametrize(
    ("capability", "flags", "picked"),
    [
        (None, set(), "float32"),
        (None, SKYLAKE, "float32"),
        (None, SKYLAKE | {"avx512_bf16"}, "bfloat16"),
        (None, SKYLAKE | {"amx_bf16", "amx_tile"}, "bfloat16"),
        ((6, 1), {"avx512_bf16"}, "float32"),  # Pascal; the processor does not count
        ((7, 0), {"avx512_bf16"}, "float16"),  # V100
        ((8, 0), set(), "bfloat16"),  # A100
        ((), {"avx512_bf16"}, "float32"),  # unknown
    ],
)
def test_auto_is_what_the_hardware_is_good_at_and_a_wish_wins(
    capability, flags, picked, monkeypatch
):
    monkeypatch.setattr(device, "compute_capability", lambda: capability)
    assert device.precision("auto", flags) == picked
    assert device.precision("float16", flags) == "float16"

"""The precision picked from facts of the hardware."""

import pytest

from hvd_nmt.config import precision

SKYLAKE = {"avx2", "avx512f", "avx512_vnni"}


@pytest.mark.parametrize(
    ("flags", "picked"),
    [
        (SKYLAKE, "float32"),
        (set(), "float32"),
        (SKYLAKE | {"avx512_bf16"}, "bfloat16"),
        (SKYLAKE | {"amx_bf16", "amx_tile"}, "bfloat16"),
    ],
)
def test_a_cpu_computes_bfloat16_only_if_it_can(flags, picked):
    assert precision.pick("auto", None, precision.cpu_has_bfloat16(flags)) == picked


@pytest.mark.parametrize(
    ("capability", "picked"),
    [
        ((6, 1), "float32"),  # Pascal
        ((7, 0), "float16"),  # V100
        ((8, 0), "bfloat16"),  # A100
        ((9, 0), "bfloat16"),  # H100
        ((), "float32"),  # unknown
    ],
)
def test_a_gpu_computes_what_its_tensor_cores_do(capability, picked):
    for cpu_has_bfloat16 in (False, True):  # it does not count
        assert precision.pick("auto", capability, cpu_has_bfloat16) == picked


def test_an_explicit_wish_wins():
    for wanted in ("float32", "bfloat16", "float16"):
        assert precision.pick(wanted, (7, 0), cpu_has_bfloat16=True) == wanted

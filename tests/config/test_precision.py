"""The precision picked from facts of the hardware, and which GPUs code runs on."""

import pytest

from hvd_nmt.config import precision
from hvd_nmt.config.precision import has_code

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


def test_machine_code_runs_within_a_major_number_and_ptx_on_everything_later():
    # What the wheels of TensorFlow 2.18 and 2.21 were compiled for.
    wheel = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]
    for capability, runs in {
        (3, 7): False,  # K80
        (6, 1): True,  # machine code of 6.0
        (7, 0): True,  # V100
        (7, 5): True,  # T4, machine code of 7.0
        (9, 0): True,  # H100, PTX
        (10, 0): True,  # B200, PTX of 9.0
    }.items():
        assert has_code(wheel, capability) is runs, capability
    assert not has_code(["sm_80"], (9, 0))  # no PTX, another major number
    assert not has_code(["sm_86"], (8, 0))  # machine code of a later minor number
    assert has_code(["sm_100", "compute_120"], (10, 3))
    assert not has_code(["compute_90"], (8, 9))
    assert not has_code([], (7, 0))

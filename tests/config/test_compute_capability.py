"""Which GPUs the code of TensorFlow and of cuDNN runs on."""

import pytest

from hvd_nmt.config.compute_capability import cudnn_has_code, has_code

WHEEL = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]
"""what the wheels of TensorFlow 2.18 and 2.21 were compiled for"""


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (WHEEL, (3, 7), False),  # K80
        (WHEEL, (6, 1), True),  # machine code of 6.0
        (WHEEL, (7, 0), True),  # V100
        (WHEEL, (7, 5), True),  # T4, machine code of 7.0
        (WHEEL, (9, 0), True),  # H100, PTX
        (WHEEL, (10, 0), True),  # B200, PTX of 9.0
        (["sm_80"], (9, 0), False),  # no PTX, another major number
        (["sm_86"], (8, 0), False),  # machine code of a later minor number
        (["sm_100", "compute_120"], (10, 3), True),
        (["compute_90"], (8, 9), False),
        ([], (7, 0), False),
    ],
)
def test_machine_code_runs_within_a_major_number_and_ptx_on_everything_later(
    architectures, capability, runs
):
    assert has_code(architectures, capability) is runs


@pytest.mark.parametrize(
    ("version", "capability", "runs"),
    [
        ("9.10.2.21", (7, 0), True),
        ("9.11.0.98", (7, 0), False),
        ("9.12.0.46", (6, 0), False),
        ("10.0.0", (7, 0), False),
        ("9.12.0.46", (7, 5), True),
    ],
)
def test_cudnn_lost_volta_and_older_with_9_11(version, capability, runs):
    assert cudnn_has_code(version, capability) is runs

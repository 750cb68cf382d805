"""The arithmetic that suits some hardware."""

from collections.abc import Collection

from hvd_nmt.config.schema import Precision

_AMPERE, _VOLTA = (8, 0), (7, 0)


def pick(
    wanted: Precision, gpu_capability: tuple[int, ...] | None, cpu_flags: Collection[str] = ()
) -> str:
    """The arithmetic of a run on some hardware.

    It is what was wanted, or for "auto" bfloat16 where the GPU (Ampere and later) or the CPU (by
    its instruction-set flags) multiplies it faster than float32; float16, with loss scaling, on
    Volta and Turing; else float32. `gpu_capability` is CUDA's (major, minor), () if it does not
    tell; None: no GPU.
    """
    if wanted != "auto":
        return wanted
    if gpu_capability is None:
        return "bfloat16" if {"avx512_bf16", "amx_bf16"}.intersection(cpu_flags) else "float32"
    if gpu_capability >= _AMPERE:
        return "bfloat16"
    return "float16" if gpu_capability >= _VOLTA else "float32"

"""Which GPUs the CUDA code of a library runs on."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TURING = (7, 5)
_CUDNN_WITHOUT_VOLTA = (9, 11)
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)")


def has_code(architectures: Iterable[str], capability: tuple[int, ...]) -> bool:
    """Whether CUDA code runs on a GPU.

    Args:
        architectures: what the code was compiled for. sm_XY is machine code for compute capability
            X.Y and later ones with the same X; compute_XY is PTX, which the driver compiles for
            every GPU from X.Y on.
        capability: of the GPU (major, minor).

    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    for kind, major, minor in filter(None, map(_parsed, architectures)):
        later = capability >= (major, minor)
        if later and (kind == "compute" or capability[0] == major):
            return True
    return False


def _parsed(architecture: str) -> tuple[str, int, int] | None:
    found = _ARCHITECTURE.match(architecture)
    return found and (found[1], int(found[2]), int(found[3]))


def cudnn_has_code(version: str, capability: tuple[int, ...]) -> bool:
    """Whether cuDNN of a version runs on a GPU: Maxwell, Pascal and Volta lost it with 9.11.

    Source: "Support Matrix" in the documentation of cuDNN 9.10 and of 9.11.
    """
    major, minor = map(int, version.split(".")[:2])
    return (major, minor) < _CUDNN_WITHOUT_VOLTA or capability >= _TURING

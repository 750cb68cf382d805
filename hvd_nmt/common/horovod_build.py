"""What Horovod was built with, read from its library: importing it takes TensorFlow along."""

from __future__ import annotations

import importlib.util
import mmap
from pathlib import Path

_SIGNS = {"nccl": b"ncclAllReduce", "gloo": b"N4gloo", "mpi": b"MPI_Allreduce"}
"""its error messages name the functions they are about, so a library without has no such text"""


def built_with() -> dict[str, bool]:
    """Whether it has tensorflow, nccl, gloo and mpi; all False where it is not installed."""
    spec = importlib.util.find_spec("horovod")
    folders = [] if spec is None else spec.submodule_search_locations or []
    libraries = [path for folder in folders for path in Path(folder).glob("tensorflow/mpi_lib*.so")]
    if not libraries:
        return dict.fromkeys(("tensorflow", *_SIGNS), False)
    with (
        libraries[0].open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        found = {name: content.find(sign) >= 0 for name, sign in _SIGNS.items()}
    return {"tensorflow": True, **found}

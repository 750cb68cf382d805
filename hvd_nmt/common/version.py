"""Which code this is: the version of hvd_nmt, a hash of it, and what Horovod was built with."""

import hashlib
import importlib.util
from pathlib import Path

__version__ = "0.2.0"
_PACKAGE = Path(__file__).parents[1]
_SIGNS = {"nccl": b"ncclAllReduce", "gloo": b"N4gloo", "mpi": b"MPI_Allreduce"}
"""its error messages name the functions they are about, so a library without has no such text"""


def code_hash() -> str:
    """Give the sha256 over all modules of the package and their paths, equal where the code is."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def horovod_built_with() -> dict[str, bool]:
    """Whether Horovod has tensorflow, nccl, gloo and mpi; all False where it is not installed.

    Read from its library: importing it takes TensorFlow along.
    """
    spec = importlib.util.find_spec("horovod")
    folders = [] if spec is None else spec.submodule_search_locations or []
    libraries = [path for folder in folders for path in Path(folder).glob("tensorflow/mpi_lib*.so")]
    if not libraries:
        return dict.fromkeys(("tensorflow", *_SIGNS), False)
    content = libraries[0].read_bytes()
    return {"tensorflow": True, **{name: sign in content for name, sign in _SIGNS.items()}}

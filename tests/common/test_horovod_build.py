"""What Horovod was built with, from the text in its library."""

import importlib.util
from types import SimpleNamespace

import horovod.tensorflow as hvd

from hvd_nmt.common.horovod_build import built_with


def test_it_is_read_from_the_library(tmp_path, monkeypatch):
    library = tmp_path / "horovod" / "tensorflow" / "mpi_lib.cpython-311-x86_64-linux-gnu.so"
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "horovod")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    nothing = {"tensorflow": False, "nccl": False, "gloo": False, "mpi": False}
    assert built_with() == nothing
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF ... ncclAllReduce ... _ZN4gloo9transport")
    assert built_with() == {"tensorflow": True, "nccl": True, "gloo": True, "mpi": False}
    library.write_bytes(b"\x7fELF ... MPI_Allreduce")
    assert built_with() == nothing | {"tensorflow": True, "mpi": True}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert built_with() == nothing


def test_the_installed_one_is_read_as_it_says_itself():
    said = {"nccl": hvd.nccl_built(), "gloo": hvd.gloo_built(), "mpi": hvd.mpi_built()}
    assert built_with() == {"tensorflow": True} | {name: bool(is_) for name, is_ in said.items()}

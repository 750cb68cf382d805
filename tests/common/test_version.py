"""Which code this is, when its process began, and what Horovod was built with."""

import importlib.util
import time
from types import SimpleNamespace

import horovod.tensorflow as hvd

from hvd_nmt.common import version
from hvd_nmt.common.version import horovod_built_with
from toy import python


def test_the_code_hash_sees_any_byte_of_any_module(tmp_path, monkeypatch):
    package = tmp_path / "hvd_nmt"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "deep" / "module.py").write_text("x = 1\n")
    monkeypatch.setattr(version, "_PACKAGE", package)

    first = version.code_hash()
    assert version.code_hash() == first
    (package / "deep" / "module.py").write_text("x = 2\n")
    second = version.code_hash()
    (package / "deep" / "module.py").rename(package / "deep" / "renamed.py")

    assert len({first, second, version.code_hash()}) == 3


def test_horovod_s_build_is_read_from_its_library(tmp_path, monkeypatch):
    said = {"nccl": hvd.nccl_built(), "gloo": hvd.gloo_built(), "mpi": hvd.mpi_built()}
    assert horovod_built_with() == {"tensorflow": True} | {n: bool(is_) for n, is_ in said.items()}
    library = tmp_path / "horovod" / "tensorflow" / "mpi_lib.cpython-311-x86_64-linux-gnu.so"
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "horovod")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    nothing = {"tensorflow": False, "nccl": False, "gloo": False, "mpi": False}
    assert horovod_built_with() == nothing
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF ... ncclAllReduce ... _ZN4gloo9transport")
    assert horovod_built_with() == {"tensorflow": True, "nccl": True, "gloo": True, "mpi": False}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert horovod_built_with() == nothing


def test_a_process_knows_when_it_began():
    """As another process sees it, and before it could have asked."""
    code = "from hvd_nmt.common.tensorflow_import import process_started_s as s; print(s())"
    before_s = time.time()
    assert before_s - 0.1 < float(python("-c", code).stdout) < time.time()

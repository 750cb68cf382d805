"""TensorFlow's checkpoint files, read without TensorFlow, against what TensorFlow wrote."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.checkpoints import index_file
from hvd_nmt.common.errors import RunError

TENSORS = {
    "a/float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a/float64": np.array([1.5, -2.5]),
    "a/float16": np.array([[0.25]], np.float16),
    "a/int64": np.array(2**40, np.int64),
    "b/bool": np.array([True, False, True]),
    "b/empty": np.zeros([0, 4], np.float32),
}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """A checkpoint with `TENSORS`, a string, and 2,000 more so that the index has many blocks."""
    path = tmp_path_factory.mktemp("bundle") / "saved"
    more = {f"layer_{n}/kernel": np.full([2], n, np.int32) for n in range(2000)}
    more["text"] = np.array(b"x" * 300)
    everything = TENSORS | more
    tf.raw_ops.SaveV2(
        prefix=os.fspath(path),
        tensor_names=list(everything),
        shape_and_slices=[""] * len(everything),
        tensors=[tf.constant(value) for value in everything.values()],
    )
    return path


def test_every_tensor_is_what_tensorflow_reads(prefix):
    reader = tf.train.load_checkpoint(os.fspath(prefix))
    found = {tensor.name: tensor for tensor in index_file.tensors(prefix)}
    assert {n: list(t.shape) for n, t in found.items()} == reader.get_variable_to_shape_map()
    assert list(found) == sorted(found)
    for name, value in TENSORS.items():
        read = index_file.values(found[name])
        assert read.dtype == value.dtype
        np.testing.assert_array_equal(read, value)
    for n in range(0, 2000, 97):
        assert index_file.values(found[f"layer_{n}/kernel"]).tolist() == [n, n]


def test_missing_files_are_named(prefix, tmp_path):
    with pytest.raises(RunError, match=r"nothing\.index cannot be read"):
        index_file.tensors(tmp_path / "nothing")
    index = tmp_path / "c.index"
    index.write_bytes(Path(f"{prefix}.index").read_bytes())
    tensor = index_file.tensors(tmp_path / "c")[0]
    with pytest.raises(RunError, match=r"c\.data-00000-of-00001 cannot be read"):
        index_file.values(tensor)
    tensor.path.write_bytes(b"1234")
    with pytest.raises(RunError, match=f"ends before {tensor.name}"):
        index_file.values(tensor)


def test_damaged_index_gives_an_error_or_tensors_but_no_traceback(prefix, tmp_path):
    content = Path(f"{prefix}.index").read_bytes()
    chance = random.Random(5)
    refused = 0
    for _ in range(60):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        (tmp_path / "c.index").write_bytes(damaged[: chance.choice([len(content), 4000])])
        try:
            index_file.tensors(tmp_path / "c")
        except RunError:
            refused += 1
    assert refused > 30  # each that was cut short, and some with a flipped bit

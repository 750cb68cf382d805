"""TensorFlow's checkpoint files, read without TensorFlow.

    PREFIX.index                 a sorted table, as of LevelDB: tensor name -> BundleEntryProto
    PREFIX.data-00000-of-00001   the values, one tensor after the other, little-endian

A table is blocks of entries (each key without what it shares with the one before), a block that
says where they are, and a footer of 48 bytes that says where that one is.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.h, core/protobuf/tensor_bundle.proto and
core/lib/io/format.h.
"""

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvd_nmt.common.errors import RunError

_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER_BYTES = 48
# Numbers of tensorflow/core/framework/types.proto.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string",
    9: "int64", 10: "bool", 14: "bfloat16", 19: "float16", 22: "uint32", 23: "uint64",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """Where a tensor is."""

    name: str
    dtype: str
    """type of the values as NumPy calls it; "string" and "bfloat16" are not NumPy's"""
    shape: tuple[int, ...]
    path: Path
    """data file that holds the tensor"""
    offset: int
    """bytes before the tensor in the data file"""
    n_bytes: int
    """bytes of the tensor's values; a string's length and checksum count too"""

    @property
    def count(self) -> int:
        """How many values it has."""
        return math.prod(self.shape)


def tensors(prefix: Path) -> list[Tensor]:
    """What the index of a checkpoint lists, in the order of the names.

    Args:
        prefix: path without `.index`.

    Raises:
        RunError: the index cannot be read, or is damaged.
    """
    path = Path(f"{prefix}.index")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}).") from None
    try:
        entries = dict(_table(content))
        shards = _number(entries.pop(b""), 1)
        return [_tensor(prefix, shards, name, entry) for name, entry in entries.items()]
    except (IndexError, KeyError, ValueError, struct.error) as error:
        raise RunError(
            f"{path} is no index of a TensorFlow checkpoint, or it is damaged ({error})."
        ) from None


def values(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor, in its shape."""
    if tensor.dtype in ("string", "bfloat16"):
        raise RunError(f"{tensor.name} is of type {tensor.dtype}, which holds no NumPy numbers.")
    dtype = np.dtype(tensor.dtype).newbyteorder("<")
    return np.frombuffer(content(tensor), dtype).reshape(tensor.shape)


def text(tensor: Tensor) -> bytes:
    """The bytes of a string tensor with one element."""
    if tensor.dtype != "string" or tensor.count != 1:
        raise RunError(f"{tensor.name} is no single string.")
    raw = content(tensor)
    length, begin = _varint(raw, 0)
    return raw[begin + 4 : begin + 4 + length]  # 4 bytes: the checksum of the length


def content(tensor: Tensor) -> bytes:
    """The bytes of a tensor as they are in the file."""
    try:
        with tensor.path.open("rb") as stream:
            if tensor.offset + tensor.n_bytes <= os.fstat(stream.fileno()).st_size:
                stream.seek(tensor.offset)
                return stream.read(tensor.n_bytes)
    except OSError as error:
        raise RunError(f"{tensor.path} cannot be read ({error.strerror}).") from None
    raise RunError(f"{tensor.path} ends before {tensor.name} does: it is incomplete.")


def fields(message: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a serialized protocol buffer.

    Args:
        message: its bytes. What `fields` gives may be handed to it again: a number is no message.

    Raises:
        ValueError, IndexError or KeyError: it is none.

    Source: the encoding described at protobuf.dev/programming-guides/encoding.
    """
    if isinstance(message, int):
        raise ValueError("a number where a message is expected")
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        value: int | bytes
        if key & 7 == 0:
            value, position = _varint(message, position)
        else:
            if key & 7 == 2:
                size, position = _varint(message, position)
            else:
                size = {1: 8, 5: 4}[key & 7]
            value = message[position : position + size]
            if len(value) != size:
                raise ValueError("a field is longer than its message")
            position += size
        yield key >> 3, value


def _tensor(prefix: Path, shards: int, name: bytes, entry: bytes) -> Tensor:
    shape = next((value for number, value in fields(entry) if number == 2), b"")
    dimensions = (value for number, value in fields(shape) if number == 2)  # TensorShapeProto.dim
    dtype = _number(entry, 1)
    return Tensor(
        name=name.decode(),
        dtype=_DTYPES.get(dtype, f"type {dtype}"),
        shape=tuple(_number(dimension, 1) for dimension in dimensions),
        path=Path(f"{prefix}.data-{_number(entry, 3):05d}-of-{shards:05d}"),
        offset=_number(entry, 4),
        n_bytes=_number(entry, 5),
    )


def _number(message: int | bytes, wanted: int) -> int:
    """The number in a field; 0 is not written."""
    value = next((value for number, value in fields(message) if number == wanted), 0)
    if not isinstance(value, int):
        raise ValueError(f"field {wanted} is no number")
    return value


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    footer = content[-_FOOTER_BYTES:]
    if footer[-len(_MAGIC) :] != _MAGIC:
        raise ValueError("it does not end as a table does")
    position = 0
    for _ in range(2):  # the place of an unused block
        _, position = _varint(footer, position)
    for _, place in _block(content, footer[position:]):
        yield from _block(content, place)


def _block(content: bytes, place: bytes) -> Iterator[tuple[bytes, bytes]]:
    begin, position = _varint(place, 0)
    size, _ = _varint(place, position)
    if content[begin + size]:
        raise ValueError("its blocks are compressed")
    block = content[begin : begin + size]
    (restarts,) = struct.unpack("<I", block[-4:])
    end = size - 4 - 4 * restarts
    key, position = b"", 0
    while position < end:
        shared, position = _varint(block, position)
        own, position = _varint(block, position)
        length, position = _varint(block, position)
        key = key[:shared] + block[position : position + own]
        position += own + length
        yield key, block[position - length : position]


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """The number that begins at `position`, and where it ends."""
    value = shift = 0
    while True:
        byte = content[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position

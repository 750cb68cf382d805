"""SentencePiece's model file, read and changed without SentencePiece, where TensorFlow may be.

The messages that come with SentencePiece want a newer protobuf than TensorFlow allows, and load its
C++ library, which has crashed beside TensorFlow's. So this describes the part of ModelProto that is
used here; the rest of a file is kept as it is.

Source: sentencepiece, src/sentencepiece_model.proto.
"""

import re
from collections.abc import Container, Iterable
from functools import cache
from itertools import dropwhile
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""types of pieces"""
SPACE = "\u2581"
"""what SentencePiece writes for the space before a word"""


def parsed(model: bytes) -> Any:
    """A serialised model as a message, see `_MESSAGES`; ValueError: it is none."""
    message = _model_class()()
    try:
        message.ParseFromString(model)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return message


def never_merged(model: bytes) -> dict[str, int]:
    """The pieces that are cut out of text before any merge, or stand for a byte: ids by name."""
    pieces = enumerate(parsed(model).pieces)
    return {piece.piece: i for i, piece in pieces if piece.type in (USER_DEFINED, BYTE)}


def tags(model: bytes) -> dict[str, int]:
    """The pieces that stand in front of a line, such as <2de>: ids by name; raises as `parsed`."""
    return {
        name.removeprefix(SPACE): number
        for name, number in never_merged(model).items()
        if name.startswith(SPACE) and name != SPACE
    }


def without_tags(line: str, known: Container[str]) -> str:
    """A line without the known tags that it begins with."""
    return " ".join(dropwhile(known.__contains__, line.split(" ")))


def languages(known: Iterable[str]) -> list[str]:
    """The languages that some tags ask for."""
    found = (re.fullmatch("<2(.+)>|>>(.+)<<", tag) for tag in known)
    return [match[1] or match[2] for match in found if match]


@cache
def _model_class() -> Any:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="sentencepiece_model.proto", package="sentencepiece", syntax="proto2"
    )
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, (name, kind) in fields.items():
            field = described.field.add(name=name, number=number, label=kinds.LABEL_OPTIONAL)
            if kind in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".sentencepiece.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind}")
            if name == "pieces":
                field.label = kinds.LABEL_REPEATED
            if name == "type":
                field.default_value = str(NORMAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sentencepiece.ModelProto"))


_MESSAGES = {
    "SentencePiece": {1: ("piece", "STRING"), 2: ("score", "FLOAT"), 3: ("type", "INT32")},
    "TrainerSpec": {
        4: ("vocab_size", "INT32"), 24: ("treat_whitespace_as_suffix", "BOOL"),
        40: ("unk_id", "INT32"), 41: ("bos_id", "INT32"),
        42: ("eos_id", "INT32"), 43: ("pad_id", "INT32"),
        45: ("unk_piece", "STRING"), 46: ("bos_piece", "STRING"),
        47: ("eos_piece", "STRING"), 48: ("pad_piece", "STRING"),
    },
    "NormalizerSpec": {1: ("name", "STRING"), 2: ("precompiled_charsmap", "BYTES")},
    "ModelProto": {
        1: ("pieces", "SentencePiece"), 2: ("trainer_spec", "TrainerSpec"),
        3: ("normalizer_spec", "NormalizerSpec"),
    },
}  # fmt: skip

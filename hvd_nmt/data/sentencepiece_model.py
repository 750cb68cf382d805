"""SentencePiece's model file, read and changed without SentencePiece, where TensorFlow may be.

`common.protobuf_messages` says why it is so. The rest of a file is kept as it is.

Source: sentencepiece, src/sentencepiece_model.proto.
"""

import re
from collections.abc import Container, Iterable
from itertools import dropwhile
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from hvd_nmt.common.protobuf_messages import message_class

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""types of pieces"""
SPACE = "\u2581"
"""what SentencePiece writes for the space before a word"""


def parsed(model: bytes) -> Any:
    """A serialised model as a message, see `_MESSAGES`; ValueError: it is none."""
    message = _Model()
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


def tag_of(language: str, known: Container[str]) -> str:
    """The known tag that asks for a language, as Google or as OPUS-MT writes it; "" for none."""
    return next((tag for tag in (f"<2{language}>", f">>{language}<<") if tag in known), "")


def languages(known: Iterable[str]) -> list[str]:
    """The languages that some tags ask for."""
    matches = (re.fullmatch("<2(.+)>|>>(.+)<<", tag) for tag in known)
    return [match[1] or match[2] for match in matches if match]


_MESSAGES = {
    "SentencePiece": {
        1: ("piece", "STRING"), 2: ("score", "FLOAT"), 3: ("type", f"INT32={NORMAL}"),
    },
    "TrainerSpec": {
        4: ("vocab_size", "INT32"), 24: ("treat_whitespace_as_suffix", "BOOL"),
        40: ("unk_id", "INT32"), 41: ("bos_id", "INT32"),
        42: ("eos_id", "INT32"), 43: ("pad_id", "INT32"),
        45: ("unk_piece", "STRING"), 46: ("bos_piece", "STRING"),
        47: ("eos_piece", "STRING"), 48: ("pad_piece", "STRING"),
    },
    "NormalizerSpec": {1: ("name", "STRING"), 2: ("precompiled_charsmap", "BYTES")},
    "ModelProto": {
        1: ("pieces", "SentencePiece*"), 2: ("trainer_spec", "TrainerSpec"),
        3: ("normalizer_spec", "NormalizerSpec"),
    },
}  # fmt: skip
_Model = message_class(_MESSAGES, "ModelProto")

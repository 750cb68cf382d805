"""Where sentences end, as the ONNX graph that Argos Translate and LibreTranslate split text with.

It replaces a learned model, which they would download. The marks are those of `data.language`. The
rule knows no abbreviations but single letters: it cuts after "Mr." in "Mr. Smith". It cuts nothing
after a digit (3. May), before a small letter, and in Thai, Lao and Tibetan, which put no marks.

Source: minisbd, modules/data.py and modules/inference.py.
"""

import json
import sys
import unicodedata

import numpy as np

from hvd_nmt.common.protobuf_messages import message_class
from hvd_nmt.data import language

_WITH_CAPITALS = {"Latn", "Cyrl", "Grek", "Armn"}
_WITHOUT_MARKS = {"Thai", "Laoo", "Tibt"}
_WEIGHTS = {
    "outside": (-20, 0, -50, 0, 0),
    "blank": (-20, 0, -50, 3, 0),
    "opening": (0, 0, -50, 0, 3),
    "closing": (0, 0, 2, -60, 0),
    "mark": (-20, 2, 4, -60, 0),
    "wide": (0, 40, 40, -60, 0),
    "other": (0, 0, -50, 0, 0),
}
"""votes for an end, by the kind of a character and of its four neighbours, left to right

So a mark needs a blank and a start, or a closing quote with both; a wide mark needs none."""
_DIGIT_BEFORE, _START, _ENOUGH = -20, 3, 10
_FLOAT, _INT64, _OPSET, _IR_VERSION = 1, 7, 13, 7


def model(code: str) -> bytes:
    """The ONNX file for a language; ConfigError: its script is not known."""
    scripts, marks = {*language.scripts(code)}, _marks()
    made = message_class(_MESSAGES, "Model")(ir_version=_IR_VERSION)
    made.opset_import.add(version=_OPSET)
    graph = made.graph
    graph.name = "sentences"

    def constant(values: object, dtype: type[np.generic] = np.float32) -> str:
        array, name = np.array(values, dtype), f"constant{len(graph.initializer)}"
        graph.initializer.add(
            name=name, dims=array.shape, raw_data=array.tobytes(),
            data_type=_INT64 if dtype == np.int64 else _FLOAT,
        )  # fmt: skip
        return name

    def add(op: str, *inputs: str, output: str = "") -> str:
        output = output or f"{op}{len(graph.node)}"
        graph.node.add(op_type=op, input=inputs, output=[output])
        return output

    for name, kind in (("units", _INT64), ("features", _FLOAT)):
        graph.input.add(name=name).type.tensor_type.elem_type = kind
    graph.output.add(name="scores").type.tensor_type.elem_type = _FLOAT
    kinds = np.array(["outside", "other", *marks.values()])
    votes = np.array([_WEIGHTS[kind] for kind in kinds])
    has_capitals = bool(scripts & _WITH_CAPITALS)
    if has_capitals:
        votes[kinds == "opening", 2] = 2  # German closes with what opens in English
    else:
        votes[kinds == "other", 4] = _START
    parts = []
    for place, distance in enumerate(range(-2, 3)):
        units = add("Pad", "units", constant([0, -distance, 0, distance], np.int64))
        parts.append(add("Gather", constant(votes[:, [place]]), units))
    for distance, weights in ((-1, [[0], [_DIGIT_BEFORE]]), (2, [[has_capitals * _START], [0]])):
        pads = constant([0, -distance, 0, 0, distance, 0], np.int64)
        parts.append(add("MatMul", add("Pad", "features", pads), constant(weights)))
    ends = add("Mul", add("Sum", *parts), constant([0, 0, 1]))
    # Classes: inside of a sentence, end of a word, end of a sentence.
    add("Add", ends, constant([_ENOUGH - 0.5, -100, 0]), output="scores")

    ids = {name: number for number, name in enumerate(("<PAD>", "<UNK>", *marks))}
    config = {
        "feat_funcs": ["capitalized", "numeric"], "batch_size": 32,
        "no_ssplit": bool(scripts & _WITHOUT_MARKS),
    }  # fmt: skip
    facts = {"config": json.dumps(config), "vocab": json.dumps({"lang": "", "_unit2id": ids})}
    for key, value in (facts | {"lang_code": code}).items():
        made.metadata_props.add(key=key, value=value)
    return bytes(made.SerializeToString(deterministic=True))


def _marks() -> dict[str, str]:
    """What each character is that is not just another one."""
    kinds = {" ": "blank"}
    for character in map(chr, range(sys.maxunicode + 1)):
        category = unicodedata.category(character)
        if category[0] != "P":
            continue
        if language.ends_sentence(character, at_blank=True):
            is_wide = language.ends_sentence(character, at_blank=False)
            kinds[character] = "wide" if is_wide else "mark"
        elif category in ("Ps", "Pi") or character in "¿¡":
            kinds[character] = "opening"
        elif language.ends_sentence(f".{character}", at_blank=True):
            kinds[character] = "closing"
    return kinds


# Source: onnx, onnx/onnx.proto.
_MESSAGES = {
    "Node": {1: ("input", "STRING*"), 2: ("output", "STRING*"), 4: ("op_type", "STRING")},
    "Tensor": {
        1: ("dims", "INT64*"), 2: ("data_type", "INT32"), 8: ("name", "STRING"),
        9: ("raw_data", "BYTES"),
    },
    "TensorType": {1: ("elem_type", "INT32")},
    "Type": {1: ("tensor_type", "TensorType")},
    "Value": {1: ("name", "STRING"), 2: ("type", "Type")},
    "Graph": {
        1: ("node", "Node*"), 2: ("name", "STRING"), 5: ("initializer", "Tensor*"),
        11: ("input", "Value*"), 12: ("output", "Value*"),
    },
    "Operators": {2: ("version", "INT64")},
    "Property": {1: ("key", "STRING"), 2: ("value", "STRING")},
    "Model": {
        1: ("ir_version", "INT64"), 7: ("graph", "Graph"), 8: ("opset_import", "Operators*"),
        14: ("metadata_props", "Property*"),
    },
}  # fmt: skip

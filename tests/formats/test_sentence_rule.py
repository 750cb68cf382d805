"""The rule cuts text as it says, read in NumPy here, and by MiniSBD itself."""

import json
import subprocess
from itertools import pairwise

import numpy as np
import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.protobuf_messages import message_class
from hvd_nmt.formats import sentence_rule

CASES = [
    ("en", ["Hello.", "How are you?", "I am fine."]),
    ("en", ["J. R. Smith went to the U.S. He is on www.foo.com.", "And mails a@b.com now. ok."]),
    ("en", ["Really?!", "(Yes.)", "It costs 3.50 euros! 20 came.", 'He said "Go."', "Then left."]),
    ("en", ["It was 1998. Then he left.", "No.", "Well"]),
    ("en", ["Mr.", "Smith came."]),
    ("de", ["Am 3. Mai kam er.", "Es war z. B. Hund.", "Er sagte: „Geh!“", "Dann ging er."]),
    ("fr", ["« Quoi ? » Oui.", "Voilà ! oui"]),
    ("ru", ["Привет.", "Он А. С. Пушкин.", "Да."]),
    ("ar", ["مرحبا.", "كيف حالك؟", "أنا بخير."]),
    ("hi", ["यह है।", "वह है।"]),
    ("ko", ["안녕하세요.", "반갑습니다."]),
    ("th", ["สวัสดี. ครับ พ.ศ. 2560"]),
]
UNSPACED = ["你好。", "世界！！", "「好。」", "他说。", "再见"]
TEXTS = [(code, " ".join(cut), cut) for code, cut in CASES]
TEXTS += [(code, "".join(UNSPACED), UNSPACED) for code in ("zh", "ja")]


def moved(array, pads):
    """Pad as the rule uses it: zeros come in at one end of a text, as much goes at the other."""
    distance, found = pads[1], np.roll(array, pads[1], 1)
    found[:, slice(distance) if distance > 0 else slice(len(found[0]) + distance, None)] = 0
    return found


def cut(code, text):
    """The sentences of a text, by the graph alone."""
    model = message_class(sentence_rule._MESSAGES, "Model").FromString(sentence_rule.model(code))
    facts = {each.key: each.value for each in model.metadata_props}
    ids, config = json.loads(facts["vocab"])["_unit2id"], json.loads(facts["config"])
    assert config["feat_funcs"] == ["capitalized", "numeric"]
    values = {
        each.name: np.frombuffer(each.raw_data, np.int64 if each.data_type == 7 else np.float32)
        .reshape(each.dims) for each in model.graph.initializer
    }  # fmt: skip
    values["units"] = np.array([[*(ids.get(one, ids["<UNK>"]) for one in text), ids["<PAD>"]]])
    features = [[one.isupper(), one.isdigit()] for one in text]
    values["features"] = np.array([[*features, [0, 0]]], np.float32)
    known = {"Pad": moved, "Gather": lambda table, at: table[at], "MatMul": np.matmul,
             "Sum": lambda *parts: sum(parts), "Mul": np.multiply, "Add": np.add}  # fmt: skip
    for node in model.graph.node:
        values[node.output[0]] = known[node.op_type](*(values[name] for name in node.input))
    classes = values["scores"][0].argmax(-1)[: len(text)]
    assert {*classes} <= {0, 2}
    ends = [] if config["no_ssplit"] else (np.flatnonzero(classes == 2) + 1).tolist()
    bounds = [0, *ends, *([len(text)] if not ends or ends[-1] < len(text) else [])]
    return [text[a:b].strip() for a, b in pairwise(bounds)]


@pytest.mark.parametrize(("code", "text", "sentences"), TEXTS)
def test_sentences_end_as_the_rule_says(code, text, sentences):
    assert cut(code, text) == sentences


def test_a_language_without_a_script_is_refused():
    with pytest.raises(ConfigError, match="No script is known"):
        sentence_rule.model("english")


@pytest.mark.long
def test_minisbd_cuts_the_same(libretranslate, tmp_path):
    for code, _, _ in TEXTS:
        (tmp_path / f"{code}.onnx").write_bytes(sentence_rule.model(code))
    script = (
        "import json, sys, minisbd; print(json.dumps([minisbd.SBDetect(f'{code}.onnx', False)"
        ".sentences(text) for code, text, _ in json.load(sys.stdin)]))"
    )
    done = subprocess.run(
        [libretranslate, "-c", script], input=json.dumps(TEXTS), cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [sentences for *_, sentences in TEXTS]

"""A SavedModel translates text as the run does, in a process that has only TensorFlow."""

import json
import os

import pytest

from hvd_nmt.data.text import plain
from hvd_nmt.formats import saved_model
from hvd_nmt.model.batching import cut
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.translation import engine, long_lines
from hvd_nmt.translation.settings import Settings
from toy import python

DECODING = Decoding(length_penalty=5, n_best=2)  # or a model of 40 steps says nothing
LINES = [
    "the old man sees a bird", "", "   \t ", "a dog\x00sings\x85and\ufeffa man\u2028eats\r",
    "日本語 😀 dog", "</s> <pad> <s>", "the big dog " * 40, "x" * 10_000, "bird",
]  # fmt: skip
WRONG_BYTES = b"a \xff dog \xc3"

STRANGER = """
import json, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hvd_nmt":
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import tensorflow as tf
import tensorflow_text
translate = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
lines = json.load(open(sys.argv[2]))
found = translate(text=tf.constant(lines))
given = {"best": lines, "wrong": [bytes.fromhex(sys.argv[3])], "none": tf.zeros([0], tf.string)}
texts = {name: translate(text=tf.constant(text))["translations"] for name, text in given.items()}
texts["alone"] = tf.concat([translate(text=tf.constant([x]))["translations"] for x in lines], 0)
texts = {name: [text.decode() for text in tensor.numpy()] for name, tensor in texts.items()}
json.dump(texts | {"scores": found["scores"].numpy().tolist()}, open(sys.argv[4], "w"))
"""


@pytest.mark.long  # the export of tests/test_export.py is in the short tier
def test_a_process_without_this_package_translates_as_the_run(toy_run, monkeypatch, tmp_path):
    saved_model.convert(toy_run, "best", tmp_path / "model", DECODING)
    (tmp_path / "lines").write_text(json.dumps(LINES))
    words = [tmp_path / "model", tmp_path / "lines", WRONG_BYTES.hex(), tmp_path / "found"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    python("-c", STRANGER, *words, cwd=tmp_path, env=env)
    strangers = json.loads((tmp_path / "found").read_text())

    monkeypatch.setattr(long_lines, "parts", lambda ids, limit, *_: [cut(ids, limit)])

    def ignore(*_):
        """Characters that the toy vocabulary does not know."""

    ours = engine.load(toy_run, ["best"], Settings(decoding=DECODING))
    found = ours.search([plain(line) for line in LINES], warn=ignore)
    scores = [[one.translation.score for one in ranked] for ranked in found]
    assert strangers["scores"] == pytest.approx([best for best, *_ in scores], abs=1e-4)
    assert strangers["alone"] == strangers["best"]
    # Translations that are equally good may change places.
    clear = [i for i, (best, *next_) in enumerate(scores) if not next_ or next_[0] < 1.01 * best]
    assert len(clear) > 2  # two lines are blank
    assert [strangers["best"][i] for i in clear] == [found[i][0].text for i in clear]
    assert strangers["best"][1:3] == ["", ""]
    assert strangers["best"][0].strip()
    assert strangers["none"] == []
    text = WRONG_BYTES.decode("utf-8", "replace")
    assert strangers["wrong"] == [ours.search([text], warn=ignore)[0][0].text]

"""A SavedModel translates text as the run does, in a process that has only TensorFlow."""

import json
import os
import subprocess
import sys

import pytest

from hvd_nmt.data.text import plain
from hvd_nmt.formats import saved_model
from hvd_nmt.model.batching import cut
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.translation import engine, long_lines
from hvd_nmt.translation.settings import Settings

pytestmark = pytest.mark.long  # the export of tests/test_export.py is in the short tier

DECODING = Decoding(length_penalty=5)  # or a model of 40 steps says nothing
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
model = tf.saved_model.load(sys.argv[1])
lines = json.load(open(sys.argv[2]))
found = model.signatures["serving_default"](text=tf.constant(lines))
alone = [model.signatures["serving_default"](text=tf.constant([x]))["translations"] for x in lines]
none = model.signatures["serving_default"](text=tf.constant([], tf.string))
wrong = model.signatures["serving_default"](text=tf.constant([bytes.fromhex(sys.argv[3])]))
texts = lambda tensor: [text.decode() for text in tensor.numpy().ravel()]
json.dump({
    "best": texts(found["translations"]), "scores": found["scores"].numpy().tolist(),
    "alone": texts(tf.concat(alone, 0)),
    "none": texts(none["translations"]), "wrong": texts(wrong["translations"]),
}, open(sys.argv[4], "w"))
"""


@pytest.fixture(scope="module")
def exported(toy_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "model"
    saved_model.convert(toy_run, "best", out, DECODING)
    return out


@pytest.fixture(scope="module")
def strangers(exported, tmp_path_factory):
    """What a process without this package gets from it."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "lines").write_text(json.dumps(LINES))
    words = [exported, folder / "lines", WRONG_BYTES.hex(), folder / "found"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, *map(str, words)], cwd=folder, env=env,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found").read_text())


@pytest.fixture
def ours(toy_run, monkeypatch):
    """It cuts a line that is too long, as the SavedModel does."""
    monkeypatch.setattr(long_lines, "parts", lambda ids, limit, *_: [cut(ids, limit)])
    return engine.load(toy_run, ["best"], Settings(decoding=DECODING))


def test_a_process_without_this_package_translates_as_the_run(strangers, ours):
    wanted = ours.search([plain(line) for line in LINES])
    scores = [found[0].translation.score for found in wanted]
    assert strangers["scores"] == pytest.approx(scores, abs=1e-4)
    assert strangers["best"][1:3] == ["", ""]
    assert strangers["best"][0].strip()
    assert strangers["best"] == [found[0].text for found in wanted]
    assert strangers["alone"] == strangers["best"]
    assert strangers["none"] == []
    text = WRONG_BYTES.decode("utf-8", "replace")
    assert strangers["wrong"] == [ours.search([text])[0][0].text]

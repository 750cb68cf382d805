"""The subword tokenizer gives the ids of SentencePiece's own wheel, and text on single lines."""

import json

import numpy as np
import pytest

from hvd_nmt.common.errors import DataError
from hvd_nmt.config import BOS, EOS, PAD
from hvd_nmt.model.tokenizer import Tokenizer
from toy import python

LINES = [
    "A man in an orange hat starring at something.",
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    "",
    "   ",
    "  two  spaces\tand a tab ",
    "ﬁ ½ Ａ é é \u00a0 \u3000 \u200b \ufeff x",
    "zero\x00byte",
    "a\rb\x0bc\x0cd\x85e\u2028f\u2029g",
    "\ufffd日本語 😀 </s> <pad> ▁",
    "word " * 3000,
    "a" * 30_000,
]

# The wheel must not share a process with TensorFlow: both ways it has crashed.
WHEEL = """
import json, sys
import sentencepiece
from hvd_nmt.preparation import subwords
lines = json.load(sys.stdin)
text = [line for line in lines if line.strip() and len(line) < 4000] * 20
model = subwords.train(text, 200)
open(sys.argv[1], "wb").write(model)
processor = subwords.load(model)
ids = [processor.encode(line) + [1] for line in lines]
json.dump([ids, [processor.decode(line) for line in ids]], sys.stdout)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A model file, and what the wheel makes of LINES with it: ids, and text decoded from them."""
    path = tmp_path_factory.mktemp("spm") / "spm.model"
    return path, *json.loads(python("-c", WHEEL, path, input=json.dumps(LINES)).stdout)


def test_ids_and_text_are_those_of_the_wheel(wheel):
    path, ids, texts = wheel
    tokenizer = Tokenizer(path)
    encoded = tokenizer.encode(LINES)
    assert [line.tolist() for line in encoded] == ids
    assert {line.dtype for line in encoded} == {np.dtype(np.int32)}
    assert tokenizer.decode(encoded) == [" ".join(text.splitlines()) for text in texts]
    assert tokenizer.decode(encoded)[:2] == LINES[:2]
    surrogate, question = tokenizer.encode(["a\ud800b", "a?b"])  # no UTF-8 for the first
    assert surrogate.tolist() == question.tolist()


def test_decoding_stops_at_eos_and_skips_what_has_no_text(wheel):
    tokenizer = Tokenizer(wheel[0])
    (ids,) = tokenizer.encode(["a man"])
    beyond = tokenizer.vocabulary_size  # embedding rows are padded to a multiple of 8
    noisy = [BOS, PAD, *ids[:-1], beyond, beyond + 7, -1, EOS, *ids]
    assert tokenizer.decode([noisy, [], [EOS, 5], ids[:-1]]) == ["a man", "", "", "a man"]
    assert tokenizer.decode([]) == []
    assert tokenizer.encode([]) == []


def test_says_what_is_wrong_with_the_file(tmp_path):
    with pytest.raises(DataError, match=r"Cannot read .*missing\.model: No such file"):
        Tokenizer(tmp_path / "missing.model")
    for content in (b"", b"no model at all"):
        (tmp_path / "bad.model").write_bytes(content)
        with pytest.raises(DataError, match=r"bad\.model is not a SentencePiece model"):
            Tokenizer(tmp_path / "bad.model")


def test_refuses_a_model_with_other_ids(tmp_path):
    path = tmp_path / "other.model"
    train = (
        "import io, sys, sentencepiece; sentencepiece.SentencePieceTrainer.train("
        "sentence_iterator=iter(['a b c d'] * 9), model_writer=open(sys.argv[1], 'wb'),"
        "vocab_size=12, model_type='bpe', hard_vocab_limit=False, minloglevel=2)"
    )
    python("-c", train, path)
    with pytest.raises(DataError, match=r"marks the end of a sentence with ids \[2\]"):
        Tokenizer(path)

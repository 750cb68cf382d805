"""A model that copies its source, in place of a trained one.

So the right translation of each line is known: the text that the tokenizer makes of its own ids.
The checkpoints that a run directory made here seems to have are `copy` and `short`, which stops
after two tokens.
"""

import random

import tensorflow as tf

from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.manifest import CheckpointManifest
from hvd_nmt.checkpoints.names import SUFFIXES
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.config import EOS, PAD, Config, save
from toy import python

MAX_LENGTH = 40
TOKENS_OF_SHORT = 2
WORDS = ["the", "a", "man", "woman", "dog", "runs", "sees", "in", "on", "with", "red", "house"]
LINES = [" ".join(random.Random(seed).choices(WORDS, k=3 + seed % 6)) for seed in range(30)]

_TRAIN_VOCABULARY = """
import random, sys
from hvd_nmt.preparation import subwords
text = [" ".join(random.Random(i).choices(sys.argv[2:], k=9)) for i in range(300)]
open(sys.argv[1], "wb").write(subwords.train(text, 100))
"""


class CopyModel:
    """A stand-in for Transformer that translates the first `tokens` of a sentence into itself."""

    max_length = MAX_LENGTH
    vocabulary_size = 104
    activation_dtype = tf.float32
    trainable_variables = ()

    def __init__(self, tokens=MAX_LENGTH):
        self.tokens = tokens

    def encode(self, source_BxS):
        return tf.pad(source_BxS, [[0, 0], [0, MAX_LENGTH]])  # room for every position

    def initial_cache(self, sentences):
        return ()

    def decode_step(self, ids_BxK, position, origins_BxKxT, memory, cache):
        token_B = memory[:, position]
        token_B = tf.where((token_B == PAD) | (position >= self.tokens), EOS, token_B)
        logits_BxV = tf.one_hot(token_B, self.vocabulary_size, on_value=20.0)
        return tf.repeat(logits_BxV[:, None], tf.shape(ids_BxK)[1], axis=1), (), cache


def run_directory(folder):
    """Fills an empty folder."""
    # SentencePiece's wheel must not share a process with TensorFlow.
    python("-c", _TRAIN_VOCABULARY, folder / "spm.model", *WORDS)
    save(Config(), RunDirectory(folder).config)
    for name in ("copy", "short"):
        (folder / f"{name}.index").touch()
        files = {suffix: {"n_bytes": 1, "sha256": name} for suffix in SUFFIXES}
        manifest = CheckpointManifest(100, None, "", "", {}, 104, 1, files)
        (folder / f"{name}.json").write_text(manifest.text(), encoding="utf-8")
    return folder


def load_model(run_dir, which, compute_dtype="float32"):
    """Stands in for `hvd_nmt.checkpoints.weights.load_model`."""
    name = find(run_dir, which).name
    return CopyModel(TOKENS_OF_SHORT if name == "short" else MAX_LENGTH), 100

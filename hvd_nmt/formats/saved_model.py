"""A run's model as a SavedModel: text in, text out, in one TensorFlow graph.

It needs tensorflow_text and nothing of this package, and treats text as `hvd_nmt.translate` does,
but for a line with too many tokens, which is cut. Letters as in `model`.
"""

import os
import shlex
import textwrap
from pathlib import Path

import tensorflow as tf
import tensorflow_text as tf_text

from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.run_files import RunDirectory, new_directory
from hvd_nmt.checkpoints.weights import load_model
from hvd_nmt.config import BOS, EOS, PAD
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.formats import card
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.model.translator import Translator

# More than any model reads. SentencePiece needs time quadratic in a run of unknown characters.
_LINE_CHARACTERS = 1 << 16
_SHOW = 'python -c "import tensorflow_text, tensorflow.python.tools.saved_model_cli as x; x.main()"'
# What hvd_nmt.data.text makes a space, in the words of RE2.
_CONTROLS = r"[\x00-\x1f\x7f-\x{9f}\x{2028}\x{2029}\x{feff}]"


def convert(run: Path, checkpoint: str, out: Path, decoding: Decoding, licence: str = "") -> None:
    """Write a checkpoint and options of the search as a SavedModel, complete or not at all.

    Raises what `new_directory` does, and RunError if the run or the checkpoint cannot be used.
    """
    prefix = find(run, checkpoint)
    model, step = load_model(run, os.fspath(prefix))
    decoding = RunDirectory(run).decoding(decoding)
    lines = LinesToLines(model, RunDirectory(run).vocabularies(), decoding)
    with new_directory(out) as draft:
        tf.saved_model.save(lines, os.fspath(draft), {"serving_default": lines.translate})
        (draft / card.PROGRAM).write_text(card.program("saved_model.txt"), encoding="utf-8")
        text = _readme(out, run, step, decoding, model.max_length)
        card.write(draft, run, prefix, licence, text)


class LinesToLines(tf.Module):
    """Text to text with a model and its SentencePiece models."""

    def __init__(
        self, model: Transformer, vocabularies: tuple[Path, Path], decoding: Decoding
    ) -> None:
        super().__init__()
        # Not the Keras model itself: all that a SavedModel must hold of it are its weights.
        self.weights = list(model.weights)
        # Two of one name would be the first of them twice in what is loaded.
        made = {
            path: tf_text.SentencepieceTokenizer(
                path.read_bytes(), out_type=tf.int32, add_eos=True, name=path.stem
            )
            for path in set(vocabularies)
        }
        self.source_sentencepiece, self.sentencepiece = (made[path] for path in vocabularies)
        self._translator = Translator(model, decoding)
        tags = sentencepiece_model.tags(vocabularies[0].read_bytes())
        self._without_text = tf.constant([PAD, EOS, *tags.values()])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best translation of each of B lines and its score, logp / length penalty."""
        source_BxS = self._source(text)
        result = self._translator.search(source_BxS)
        is_empty_B = tf.reduce_all(source_BxS == PAD, 1)
        return {
            "translations": tf.where(is_empty_B, "", self._text(result.ids_BxKxT[:, 0])),
            "scores": tf.where(is_empty_B, 0.0, result.scores_BxK[:, 0]),
        }

    def _source(self, text_B: tf.Tensor) -> tf.Tensor:
        """Ids of the lines, padded; nothing but padding where a line holds no text."""
        text_B = tf.strings.unicode_transcode(text_B, "UTF-8", "UTF-8", errors="replace")
        text_B = tf.strings.substr(text_B, 0, _LINE_CHARACTERS, unit="UTF8_CHAR")
        text_B = tf.strings.regex_replace(text_B, _CONTROLS, " ")
        ragged = self.source_sentencepiece.tokenize(text_B)
        length_Bx1 = tf.cast(ragged.row_lengths(), tf.int32)[:, None]
        limit = self._translator.max_length
        ids_BxS = ragged.to_tensor(PAD)[:, :limit]
        last_S = tf.range(tf.shape(ids_BxS)[1]) == limit - 1
        ids_BxS = tf.where((length_Bx1 > limit) & last_S, EOS, ids_BxS)
        is_text_BxS = tf.reduce_all(ids_BxS[..., None] != self._without_text, -1)
        return tf.where(tf.reduce_any(is_text_BxS, 1, keepdims=True), ids_BxS, PAD)

    def _text(self, ids_BxT: tf.Tensor) -> tf.Tensor:
        """Text of translations: up to their eos, each on a single line."""
        ended_BxT = tf.cumsum(tf.cast(ids_BxT == EOS, tf.int32), 1) > 0
        known_BxT = ids_BxT < self.sentencepiece.vocab_size()
        has_text_BxT = ~ended_BxT & known_BxT & (ids_BxT != PAD) & (ids_BxT != BOS)
        words = tf.ragged.boolean_mask(ids_BxT, has_text_BxT)
        return tf.strings.regex_replace(self.sentencepiece.detokenize(words), _CONTROLS, " ")


def _readme(out: Path, run: Path, step: int, decoding: Decoding, max_length: int) -> str:
    release = ".".join(tf.__version__.split(".")[:2])
    search = textwrap.fill(f"The search's options are part of the model: {decoding}.", 100)
    divisor = "length" if decoding.normalization == "marian" else "((5 + length) / 6)"
    return f"""\
A translation model as a TensorFlow SavedModel, made by hvd_nmt.export from step {step:,}.

    pip install 'tensorflow=={release}.*' 'tensorflow-text=={release}.*'

{card.use(out, run)}
Its signature makes of text, string [B], one sentence in each, the translations, string [B], and
their scores, float32 [B]. TensorFlow's own command lists it, once SentencePiece is loaded:

    {_SHOW} \\
        show --all --dir {shlex.quote(out.name)}

A score is log-probability / {divisor}^{decoding.alpha:g}. Lines that are sent together are padded
to the longest of them: send lines of similar length, some dozens at a time. A line with more than
{max_length} subword tokens is cut to them, its end included, silently: split it before.
{search}
"""

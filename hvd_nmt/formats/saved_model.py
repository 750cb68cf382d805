"""A run's model as a SavedModel: text in, text out, in one TensorFlow graph.

It needs tensorflow_text and nothing of this package, see `usage`: SentencePiece with the run's
vocabularies, the search and its options are inside. It treats text as `hvd_nmt.translate` does:
control characters are spaces, wrong UTF-8 is read as U+FFFD, an empty line stays empty, a line with
too many tokens is cut.

B sentences, S source positions, K translations of each, T target positions.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf
import tensorflow_text as tf_text

from hvd_nmt.checkpoints.run_files import decoding_of, vocabularies
from hvd_nmt.checkpoints.weights import load_model
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.files import exclusive, replacing, require_free
from hvd_nmt.config import BOS, EOS, PAD
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.model.translator import DEFAULT, Translator

# More than any model reads. SentencePiece needs time quadratic in a run of unknown characters.
_LINE_CHARACTERS = 1 << 16
# What hvd_nmt.data.text makes a space, in the words of RE2.
_CONTROLS = r"[\x00-\x1f\x7f-\x{9f}\x{2028}\x{2029}\x{feff}]"
_BATCH_LINES = 32


def convert(run: Path, checkpoint: str, out: Path, decoding: Decoding = DEFAULT) -> None:
    """Write a checkpoint and options of the search as a SavedModel, complete or not at all.

    Raises:
        ConfigError: `out` is there already, or `decoding` asks for random draws.
        RunError: the run or the checkpoint cannot be used.
        DataError: `out` cannot be written.
    """
    if decoding.sample:
        raise ConfigError("A SavedModel gives the same answer every time: leave --sample out.")
    with exclusive(out):
        require_free(out)
        model, step = load_model(run, checkpoint)
        decoding = decoding_of(run, decoding)
        source, target = (path.read_bytes() for path in vocabularies(run))
        lines = LinesToLines(model, source, target, decoding)
        with replacing(out) as draft:
            signatures = {"serving_default": lines.best, "n_best": lines.n_best}
            tf.saved_model.save(lines, os.fspath(draft), signatures)
            text = _readme(out, step, decoding, model.max_length)
            (draft / "README.txt").write_text(text, encoding="utf-8")


def usage(path: Path) -> str:
    """A few lines of Python that translate with a SavedModel, without this package."""
    return f"""\
import tensorflow as tf
import tensorflow_text
model = tf.saved_model.load("{path}")
found = model.signatures["serving_default"](text=tf.constant(["A man sees a dog."]))
print(found["translations"].numpy()[0].decode(), found["scores"].numpy()[0])
"""


def translated(lines: Sequence[str], path: Path) -> list[str]:
    """The translations of lines by a SavedModel, some at a time, of similar length."""
    translate = tf.saved_model.load(os.fspath(path)).signatures["serving_default"]
    order = sorted(range(len(lines)), key=lambda index: len(lines[index]))
    found = [""] * len(lines)
    for batch in (order[i : i + _BATCH_LINES] for i in range(0, len(order), _BATCH_LINES)):
        texts = translate(text=tf.constant([lines[index] for index in batch]))["translations"]
        for index, text in zip(batch, texts.numpy(), strict=True):
            found[index] = text.decode("utf-8")
    return found


class LinesToLines(tf.Module):
    """Text to text with a model and SentencePiece models, equal bytes where these are joint."""

    def __init__(
        self, model: Transformer, source: bytes, target: bytes, decoding: Decoding
    ) -> None:
        super().__init__()
        # Not the Keras model itself: all that a SavedModel must hold of it are its weights.
        self.weights = list(model.weights)
        self.source_sentencepiece = self.sentencepiece = _sentencepiece(target)
        if source != target:
            # Two of one name would be the first of them twice in what is loaded.
            self.source_sentencepiece = _sentencepiece(source, "source_sentencepiece")
        self.decoding = decoding
        self._translator = Translator(model, decoding)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def best(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The best translation of each of B lines and its score, logp / length penalty."""
        found = self.n_best(text)
        return {name: tensor_BxK[:, 0] for name, tensor_BxK in found.items()}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def n_best(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The `decoding.n_best` best of each line, best first; score -inf where there are fewer."""
        source_BxS = self._source(text)
        found = self._translator.search(source_BxS)
        K = self.decoding.n_best
        scores_BxK = found.scores_BxK[:, :K]
        empty_Bx1 = tf.reduce_all(source_BxS == PAD, 1, keepdims=True)
        return {
            "translations": tf.where(empty_Bx1, "", self._text(found.ids_BxKxT[:, :K])),
            "scores": tf.where(empty_Bx1, 0.0, scores_BxK),
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
        return tf.where(length_Bx1 > 1, ids_BxS, PAD)

    def _text(self, ids_BxKxT: tf.Tensor) -> tf.Tensor:
        """Text BxK of translations: up to their eos, each on a single line."""
        shape = tf.shape(ids_BxKxT)
        ids_NxT = tf.reshape(ids_BxKxT, [shape[0] * shape[1], shape[2]])
        ended_NxT = tf.cumsum(tf.cast(ids_NxT == EOS, tf.int32), 1) > 0
        known_NxT = ids_NxT < self.sentencepiece.vocab_size()
        has_text_NxT = ~ended_NxT & known_NxT & (ids_NxT != PAD) & (ids_NxT != BOS)
        words = tf.RaggedTensor.from_row_lengths(
            tf.boolean_mask(ids_NxT, has_text_NxT),
            tf.math.count_nonzero(has_text_NxT, 1),
            validate=False,
        )
        text_N = tf.strings.regex_replace(self.sentencepiece.detokenize(words), _CONTROLS, " ")
        return tf.reshape(text_N, shape[:2])


def _sentencepiece(model: bytes, name: str | None = None) -> tf_text.SentencepieceTokenizer:
    return tf_text.SentencepieceTokenizer(model, out_type=tf.int32, add_eos=True, name=name)


def _readme(out: Path, step: int, decoding: Decoding, max_length: int) -> str:
    release = ".".join(tf.__version__.split(".")[:2])
    divisor = "length" if decoding.normalization == "marian" else "((5 + length) / 6)"
    return f"""\
A translation model as a TensorFlow SavedModel, made by hvd_nmt.export from step {step:,}.

    pip install 'tensorflow=={release}.*' 'tensorflow-text=={release}.*'

{usage(Path(out.name))}
Signatures, both from text, string [B], one sentence in each:
    serving_default   translations, string [B], and scores, float32 [B]
    n_best            the same, [B, {decoding.n_best}]
A score is log-probability / {divisor}^{decoding.alpha:g}. Lines that are sent together are padded
to the longest of them: send lines of similar length, some dozens at a time. A line with more than
{max_length} subword tokens is cut to them, its end included, without a word: split it before.
The search's options are part of the model: {decoding}.
"""

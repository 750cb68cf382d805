"""Text to subword ids and back, with the run's SentencePiece model inside TensorFlow.

SentencePiece's own wheel and TensorFlow have crashed in one process, by import order. So next to
a model tensorflow_text is used, which gives the same ids from the same file.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from hvd_nmt.common.errors import DataError
from hvd_nmt.config import BOS, EOS, PAD, UNK


class Tokenizers(NamedTuple):
    """What makes ids of a source, and what makes ids of a target and text of ids."""

    source: "Tokenizer"
    target: "Tokenizer"

    @classmethod
    def of(cls, source_spm_path: Path, spm_path: Path) -> "Tokenizers":
        """Two tokenizers of two models, or twice one of one; raises what `Tokenizer` raises."""
        target = Tokenizer(spm_path)
        return cls(target if source_spm_path == spm_path else Tokenizer(source_spm_path), target)


class Tokenizer:
    """A SentencePiece model with the ids pad 0, eos 1, bos 2; DataError: the file holds none."""

    def __init__(self, spm_path: str | Path) -> None:
        try:
            model = Path(spm_path).read_bytes()
        except OSError as error:
            raise DataError(f"Cannot read {spm_path}: {error.strerror or error}.") from None
        try:
            self._sentencepiece = tf_text.SentencepieceTokenizer(
                model, out_type=tf.int32, add_eos=True
            )
            self._compile()
            empty_line = self.encode([""])[0].tolist()
        except (tf.errors.InternalError, tf.errors.InvalidArgumentError):
            raise DataError(f"{spm_path} is not a SentencePiece model: restore it.") from None
        self._is_known: dict[str, bool] = {}
        if empty_line != [EOS]:
            raise DataError(
                f"{spm_path} marks the end of a sentence with ids {empty_line}: train it with "
                "--pad_id=0 --eos_id=1 --bos_id=2 --unk_id=3."
            )
        self.vocabulary_size = int(self._sentencepiece.vocab_size())

    def encode(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Ids of each line, int32, with eos, without bos; a lone surrogate is read as "?"."""
        if not lines:
            return []
        raw = [line.encode("utf-8", "replace") for line in lines]
        ids, splits = self._tokenize(tf.constant(raw))
        return np.split(ids.numpy(), splits.numpy()[1:-1])

    def unknown(self, line: str) -> list[str]:
        """The characters of a line that have no piece, each once."""
        characters = dict.fromkeys(line)
        new = [character for character in characters if character not in self._is_known]
        self._is_known |= zip(new, (UNK not in ids for ids in self.encode(new)), strict=True)
        return [character for character in characters if not self._is_known[character]]

    def decode(self, sentences: Iterable[Sequence[int] | np.ndarray]) -> list[str]:
        """The text of each sentence of ids, each on a single line.

        A sentence ends at its first eos. Padding, bos and ids beyond the vocabulary (its embedding
        rows are padded to a multiple of 8) have no text; unk is SentencePiece's " ⁇ ".
        """
        words = [self._with_text(np.asarray(ids, np.int32)) for ids in sentences]
        if not words:
            return []
        lengths = tf.constant([*map(len, words)], tf.int32)
        texts = self._detokenize(tf.constant(np.concatenate(words)), lengths).numpy()
        # A vocabulary may hold separators such as U+2028, at which other readers end a line.
        return [" ".join(text.decode("utf-8", "replace").splitlines()) for text in texts]

    @cached_property
    def pieces(self) -> list[str]:
        """The name of each piece, by id, as SentencePiece itself gives it."""
        names = self._sentencepiece.id_to_string(tf.range(self.vocabulary_size)).numpy()
        return [name.decode("utf-8") for name in names]

    def _compile(self) -> None:
        """Graphs: one by one, the operations of a single line take longer than SentencePiece."""
        sentencepiece = self._sentencepiece

        def tokenize(lines_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            ragged = sentencepiece.tokenize(lines_B)
            return ragged.values, ragged.row_splits

        def detokenize(ids_N: tf.Tensor, lengths_B: tf.Tensor) -> tf.Tensor:
            words = tf.RaggedTensor.from_row_lengths(ids_N, lengths_B, validate=False)
            return sentencepiece.detokenize(words)

        text_B, ids_N = tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int32)
        tokenize_graph = tf.function(tokenize, [text_B], autograph=False)
        detokenize_graph = tf.function(detokenize, [ids_N, ids_N], autograph=False)
        self._tokenize = tokenize_graph.get_concrete_function()
        self._detokenize = detokenize_graph.get_concrete_function()

    def _with_text(self, ids_T: np.ndarray) -> np.ndarray:
        ids_T = ids_T[: np.argmax(np.append(ids_T, EOS) == EOS)]
        in_vocabulary = (ids_T >= 0) & (ids_T < self.vocabulary_size)
        return ids_T[in_vocabulary & (ids_T != PAD) & (ids_T != BOS)]

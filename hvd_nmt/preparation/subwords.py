"""SentencePiece vocabularies with the recipe's ids: pad 0, eos 1, bos 2, unk 3.

This module never imports TensorFlow: SentencePiece and TensorFlow in one process have crashed by
import order. Graphs use tensorflow_text with the same model file.

Encoding then decoding gives the text back as `normalization` has made it, with single blanks; a
character without a piece comes back as " ⁇ ".
"""

import ctypes
import io
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import sentencepiece

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.config import BOS, EOS, PAD, UNK
from hvd_nmt.config.schema import Limit, require_limits
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.sentencepiece_model import SPACE
from hvd_nmt.preparation.normalization import Rule, normalized, with_rule

_TAG = re.compile(r"[<>\[{@#|][!-~]*[>\]}@#|]")  # no word of text, for text may stand behind it


def require_tags(tags: Sequence[Any]) -> None:
    """See that tags can stand in front of text, or raise ConfigError."""
    for tag in tags:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag) or tags.count(tag) > 1:
            raise ConfigError(f"tag {tag!r}: write it like <2de>, once, in ASCII, without spaces.")


@dataclass(frozen=True)
class Learning:
    """How SentencePiece learns the pieces."""

    vocabulary_type: Literal["bpe", "unigram"] = "bpe"
    """bpe: byte-pair encoding; unigram: a language model of pieces, without BPE-dropout"""
    character_coverage: Annotated[
        float, Limit(lambda share: 0.98 <= share <= 1, "give a share from 0.98 to 1")
    ] = 1.0
    """share of the text with pieces, 0.98 to 1; its rarest characters are unknown.
    0.9995 is usual for thousands of characters, as in Chinese and Japanese"""
    byte_fallback: bool = False
    """write characters without a piece as UTF-8 bytes, 256 pieces; then none is unknown"""
    user_defined_symbols: tuple[str, ...] = ()
    """texts that are one piece each wherever they stand, such as placeholders"""
    normalization_rule: Rule = "auto"
    """what becomes of targets; nfc: a letter and its marks are one character, nothing is lost;
    visible: also kinds of space become a space, and invisible characters without a meaning go;
    the others are SentencePiece's. auto: nfc; of wmt16-en-de nmt_nfkc, as the recipe has it"""
    tags: tuple[str, ...] = ()
    """tags that sources may begin with, such as <2de> <bt>; those of --corpora are known"""

    def __post_init__(self) -> None:
        require_limits(self)
        require_tags(self.tags)


def train(
    lines: Iterable[str], vocabulary_size: int, learning: Learning = Learning(),
    size_option: str = "--vocabulary-size",
) -> bytes:  # fmt: skip
    """Trains a vocabulary on lines of text; returns the serialised model.

    The result depends on the arguments alone. The size is rounded up to a multiple of 8; a corpus
    too small for that many pieces gives as many as it has. SentencePiece leaves out lines longer
    than 4,192 bytes. `size_option` is what an error names to ask for more.
    DataError: the text has more characters than the vocabulary pieces, or none.
    """
    model, rule = io.BytesIO(), learning.normalization_rule
    rule = "nfc" if rule == "auto" else rule
    # What is said at all is written into the model.
    more: dict[str, Any] = {"pad_id": PAD, "eos_id": EOS, "bos_id": BOS, "unk_id": UNK}
    if learning.byte_fallback:
        more["byte_fallback"] = True
    if symbols := [*learning.user_defined_symbols, *learning.tags]:
        more["user_defined_symbols"] = symbols
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=normalized(lines, rule),
            normalization_rule_name="identity",  # by now
            model_writer=model,
            model_type=learning.vocabulary_type,
            vocab_size=rounded_up(vocabulary_size),
            hard_vocab_limit=False,  # fewer pieces, not an error, when the corpus is small
            character_coverage=learning.character_coverage,
            **more,
            num_threads=1,  # recorded in the model, so not the number of cores
            minloglevel=2,
        )
    except RuntimeError as error:
        text = f"SentencePiece cannot make a vocabulary from the text: {str(error).strip()}"
        if least := re.search(r"\d+ vs (\d+)", str(error)):
            text = (
                f"{size_option} {vocabulary_size} is too small for the different characters of the "
                f"text: give at least {rounded_up(int(least[1]))}."
            )
        raise DataError(text) from None
    with suppress(AttributeError):  # other C libraries than glibc have no such function
        ctypes.CDLL(None).malloc_trim(0)  # a GB or so, which glibc would keep
    return with_rule(_with_space_before(model.getvalue(), learning.tags), rule)


def _with_space_before(model: bytes, tags: Sequence[str]) -> bytes:
    """Make the space before a tag part of its piece; SentencePiece would make it a piece."""
    if not tags:
        return model
    parsed = sentencepiece_model.parsed(model)
    for piece in parsed.pieces:
        if piece.type == sentencepiece_model.USER_DEFINED and piece.piece in tags:
            piece.piece = SPACE + piece.piece
    return bytes(load(parsed.SerializeToString()).serialized_model_proto())


def spread(pairs: int, most: int) -> np.ndarray:
    """Which pairs to train on, evenly spread: at most `most`, for memory (0: all); bool [pairs]."""
    chosen = min(most or pairs, pairs)
    which = np.zeros(pairs, bool)
    which[-(-np.arange(1, chosen + 1) * pairs // max(chosen, 1)) - 1] = True
    return which


def rounded_up(pieces: int) -> int:
    """Embedding rows for so many pieces: the next multiple of 8, as tensor cores want it."""
    return -(-pieces // 8) * 8


def encode_lines(
    model: sentencepiece.SentencePieceProcessor, lines: list[str] | list[bytes]
) -> list[list[int]]:
    """The ids of each line, ending with eos, no bos. An empty line is eos alone."""
    return model.encode(lines, out_type=int, add_eos=True, num_threads=1)


def load(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """The processor of a serialised model."""
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def require_fit(path: Path, tags: Iterable[str]) -> None:
    """See that a model has this package's ids, and the tags, or raise DataError."""
    try:
        content = path.read_bytes()
        if not content:  # SentencePiece reads it as a model that has no pieces
            raise RuntimeError("it is empty")
        model = load(content)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}. Check the path.") from None
    except RuntimeError:  # its text names lines of SentencePiece's source and nothing else
        raise DataError(
            f"{path} is not a SentencePiece model, or is damaged: give a .model file of "
            "SentencePiece, such as spm.model of a prepared data directory."
        ) from None
    if (model.pad_id(), model.eos_id(), model.bos_id(), model.unk_id()) != (PAD, EOS, BOS, UNK):
        raise DataError(
            f"{path} has other ids for pad, eos, bos and unk than {PAD}, {EOS}, {BOS} and {UNK}: "
            f"train it with --pad_id={PAD} --eos_id={EOS} --bos_id={BOS} --unk_id={UNK}, or let "
            "prepare train one."
        )
    if sentencepiece_model.parsed(content).trainer_spec.treat_whitespace_as_suffix:
        raise DataError(
            f"{path} has spaces at the end of its pieces, and each line would end with one: train "
            "it without --treat_whitespace_as_suffix, or let prepare train one."
        )
    for tag in tags:
        if model.encode(tag, out_type=str) != [SPACE + tag]:
            raise DataError(
                f"{path} has no piece for the tag {tag}: use tags that it has, or remove the "
                "option, and prepare trains a vocabulary."
            )


def pieces(model: sentencepiece.SentencePieceProcessor) -> list[str]:
    """The pieces of a model by id."""
    return [model.id_to_piece(number) for number in range(model.get_piece_size())]

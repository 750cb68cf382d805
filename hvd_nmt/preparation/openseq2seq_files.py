"""The files of the OpenSeq2Seq recipe, read and written.

    m_common.model m_common.vocab                  the joint SentencePiece vocabulary
    train.clean.en.shuffled.BPE_common.32K.tok     training pieces, a sentence a line
    train.clean.de.shuffled.BPE_common.32K.tok
    wmt13-en-de.src.BPE_common.32K.tok  .ref.      dev: newstest2013
    wmt14-en-de.src.BPE_common.32K.tok  .ref.      test: newstest2014, if it is there

Pieces stand between bytes 0x20 and nothing else splits them; the id of a piece is its line in
m_common.vocab, from 0; a piece that is not there is <unk>.

The recipe puts a start symbol before each sentence and cuts what is then longer than its
max_length: of 56, 54 pieces and eos are left. This package has no start symbol, so a sentence has
at most max_length - 1 tokens here, eos counted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import replacing
from hvd_nmt.common.progress import progress
from hvd_nmt.config import EOS, UNK
from hvd_nmt.data import vocabulary
from hvd_nmt.data.corpus import DataDirectory, ParallelCorpus, Sentences
from hvd_nmt.data.text import Block
from hvd_nmt.preparation import subwords, workers
from hvd_nmt.preparation.encoding import (
    EncodedBlock,
    Ids,
    LengthLimit,
    encoded_block,
    left_out,
    write_ids,
)
from hvd_nmt.preparation.parts import Input, PartState, Paths
from hvd_nmt.preparation.quality import Quality

MODEL, VOCABULARY = "m_common.model", "m_common.vocab"
RECORD = "prepared_from.json"
"""the hash of the data that `write` made the folder of, and the sizes of its files"""
_SPECIAL = ("<pad>", "</s>", "<s>", "<unk>")
_SPACE = "\u2581".encode()


def parts(directory: Path, languages: tuple[str, str]) -> dict[str, Paths]:
    """The files of train, dev and, if it is there, test.

    Raises:
        DataError: a file is missing.
    """
    found = {}
    for part, paths in _paths(directory, languages).items():
        missing = [path for path in paths if not path.is_file()]
        if not missing:
            found[part] = paths
        elif part != "test":
            raise DataError(
                f"{missing[0]} is missing: --dataset-dir must be a folder that the recipe's "
                "script, or --write-recipe, has made."
            )
    for name in (MODEL, VOCABULARY):
        if not (directory / name).is_file():
            raise DataError(f"{directory / name} is missing: copy it from where the recipe ran.")
    return found


def pieces_of(path: Path, model_path: Path) -> list[str]:
    """The pieces of m_common.vocab, by id; the model must have the same.

    Raises:
        DataError: they cannot be read, differ, or their first ids are not those of the recipe.
    """
    pieces = [piece for piece, _ in vocabulary.read(path)]
    if tuple(pieces[:4]) != _SPECIAL:
        raise DataError(
            f"{path} does not begin with {', '.join(_SPECIAL)}: it is not the vocabulary of the "
            "recipe."
        )
    model = subwords.read(model_path)
    if [model.id_to_piece(i) for i in range(model.get_piece_size())] != pieces:
        raise DataError(
            f"{path} does not hold the pieces of {model_path}: take both from the same place."
        )
    return pieces


def read(
    raw: Input, pieces: list[str], limit: LengthLimit, stems: Paths,
    quality: Quality | None = None,
) -> PartState:  # fmt: skip
    """Encodes a part into `<stem>.ids.npy` and `<stem>.offsets.npy`.

    Args:
        raw: source and target file of pieces.
        pieces: by id.
        limit: as the recipe counts it, with its start symbol; of dev and test all pairs stay.
        stems: paths without the ending.
        quality: of training; counts its pairs, of which blank ones are left out too. Without it
            all pairs stay, and their text, put together from the pieces, is written to `stems`.

    Raises:
        DataError: as `Input.blocks`.
    """
    part, train = PartState(raw.files, stems), quality is not None
    settings = pieces, limit._replace(tokens=limit.tokens - 1), train
    with ExitStack() as stack:
        text = [] if train else [stack.enter_context(open(stem, "wb")) for stem in stems]

        def counted(blocks: Iterable[_Block]) -> Iterator[EncodedBlock]:
            for block in blocks:
                part.pairs_read += block.encoded.pairs
                for side in (0, 1):
                    part.text_bytes[side] += block.text_bytes[side]
                for stream, lines in zip(text, block.text, strict=False):
                    stream.write(b"".join(line + b"\n" for line in lines))
                yield block.encoded

        blocks = workers.in_order(_encode, (block for _, block in raw.blocks()), _load, settings)
        write_ids(part, counted(blocks), stems, (len(pieces), len(pieces)), quality)
    return part


def write(directory: Path, data: DataDirectory) -> None:
    """Writes prepared data as the recipe's files, training pairs in a shuffled order.

    The directory is replaced if it is there: use it inside `exclusive(directory)`. Of a sentence
    that was cut only what was kept is written.
    """
    model = subwords.load(data.spm_path.read_bytes())
    pieces = [piece for piece, _ in vocabulary.read(data.spm_vocab_path)]
    corpora = {"train": data.train, "dev": data.dev}
    if "test" in data.manifest.parts:
        source, target = (_sentences(model, lines) for lines in data.text("test"))
        corpora["test"] = ParallelCorpus(source, target)
    languages = data.manifest.source_language, data.manifest.target_language
    with replacing(directory) as folder:
        shutil.copyfile(data.spm_path, folder / MODEL)
        shutil.copyfile(data.spm_vocab_path, folder / VOCABULARY)
        for part, paths in _paths(folder, languages).items():
            if part in corpora:
                pairs = corpora[part]
                order = np.arange(len(pairs))
                if part == "train":
                    chance = np.random.Philox(key=0).random_raw(len(order))
                    order = np.argsort(chance, kind="stable")
                _write_side(paths[0], pairs.source, order, pieces)
                _write_side(paths[1], pairs.target, order, pieces)
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        record = {"data": data.manifest.hash, "files": sizes}
        (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def is_of(directory: Path, data: DataDirectory) -> bool:
    """Whether `write` has made a folder of these very data, and all its files are there."""
    try:
        record = json.loads((directory / RECORD).read_bytes())
        return bool(
            record["data"] == data.manifest.hash
            and all((directory / name).stat().st_size == n for name, n in record["files"].items())
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


class _Block(NamedTuple):
    encoded: EncodedBlock
    text_bytes: list[int]
    """bytes of the lines of pieces, as they were read: of the sources, of the targets"""
    text: list[list[bytes]]
    """lines put together from the pieces, except of train"""


def _load(settings: tuple[list[str], LengthLimit, bool]) -> tuple[Any, ...]:
    ids = {piece.encode(): i for i, piece in enumerate(settings[0])}
    names = {b"<0x%02X>" % byte: bytes([byte]) for byte in range(256)}
    # A vocabulary with bytes has all of them.
    return ids, names if ids.keys() >= names.keys() else {}, *settings[1:]


def _encode(state: tuple[Any, ...], block: Block) -> _Block:
    """What a worker does with a block of pieces."""
    ids, written_bytes, limit, train = state
    lines = [side.removesuffix(b"\n").split(b"\n") for side in (block.source, block.target)]
    source, target = (_looked_up(ids, side) for side in lines)
    removed, quality = {}, Quality(limit.tokens)
    text = [[_joined(line, written_bytes) for line in side] for side in lines]
    if train:
        removed = left_out(source[1], target[1], limit)
        decoded = ([line.decode("utf-8", "replace") for line in side] for side in text)
        quality.add(list(zip(*decoded, strict=True)), source[1], target[1])
    return _Block(
        encoded_block(lines, (source, target), removed, limit.tokens, quality),
        text_bytes=[sum(map(len, side)) + len(side) for side in lines],
        text=[] if train else text,
    )


def _looked_up(ids: dict[bytes, int], lines: list[bytes]) -> Ids:
    flat: list[int] = []
    ends = []
    for line in lines:
        if line:
            flat.extend([ids.get(piece, UNK) for piece in line.split(b" ")])
        flat.append(EOS)
        ends.append(len(flat))
    return np.array(flat, np.int32), np.diff(np.array(ends, np.int64), prepend=0)


def _joined(line: bytes, written_bytes: dict[bytes, bytes]) -> bytes:
    """The text of a line of pieces, of which some may be bytes of characters."""
    if b"<0x" in line and written_bytes:
        raw = b" ".join(written_bytes.get(piece, piece) for piece in line.split(b" "))
        line = raw.replace(b" ", b"").decode("utf-8", "replace").encode()  # torn where it was cut
    return line.replace(b" ", b"").replace(_SPACE, b" ").strip()


def _write_side(path: Path, side: Sentences, order: np.ndarray, pieces: list[str]) -> None:
    table = np.array(pieces, dtype=object)
    with (
        open(path, "w", encoding="utf-8", newline="\n") as stream,
        progress(len(order), "pairs", f"writing {path.name}") as bar,
    ):
        for index in order:
            stream.write(" ".join(table[side[index][:-1]]) + "\n")
            bar.update()


def _sentences(model: Any, lines: list[str]) -> Sentences:
    ids = subwords.encode_lines(model, lines, workers.cores())
    lengths = [len(sentence) for sentence in ids]
    flat = np.fromiter(chain.from_iterable(ids), np.int32, sum(lengths))
    return Sentences(flat, np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))


def _paths(directory: Path, languages: tuple[str, str]) -> dict[str, Paths]:
    ending = "BPE_common.32K.tok"
    source, target = (
        directory / f"train.clean.{language}.shuffled.{ending}" for language in languages
    )
    found = {"train": (source, target)}
    for part, year in (("dev", "wmt13"), ("test", "wmt14")):
        stem = f"{year}-{'-'.join(languages)}"
        found[part] = directory / f"{stem}.src.{ending}", directory / f"{stem}.ref.{ending}"
    return found

"""The prepared data directory: encoded sentences, the text to score against, and a manifest.

    data/multi30k-en-de/
        manifest.json                   what is in here and how it was made: `DataManifest`
        spm.model spm.vocab             the SentencePiece vocabulary: joint, or of the target
        spm.source.model spm.source.vocab   that of the source, where it has its own
        train.en.ids.npy                ids of all sentences, one after the other
        train.en.offsets.npy            where each sentence begins, and the end of the last one
        train.de.* dev.en.* dev.de.*    the same for the other side, and for the dev part
        train.copies.*                  the training pairs cut and spelled differently
        dev.en dev.de test.en test.de   raw text, one sentence per line, to score against
        quality.json                    what is known of the training text: no part of the data
        removed.tsv.gz                  training pairs that cleaning has removed: no part either

A prepared directory is complete or not there: `hvd_nmt.prepare` builds it under another name and
renames it. It can be copied anywhere; two hosts hold the same data iff `hash` of their manifests is
equal.
"""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, final

import numpy as np

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import FileFacts, fingerprint
from hvd_nmt.config.mixture import Weight
from hvd_nmt.data.text import read_lines

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
SPM_MODEL = "spm.model"
SPM_SOURCE_MODEL = "spm.source.model"


def load(directory: str | Path, verify: bool = False) -> "DataDirectory":
    """Opens a directory that `hvd_nmt.prepare` has made. The ids are memory-mapped, not read.

    Every file must have the size that the manifest records; `verify`: also the sha256. DataError:
    the directory is missing, is something else, or is damaged.
    """
    path = Path(directory)
    manifest = read_manifest(path)
    for name, file in manifest.files.items():
        try:
            n_bytes = (path / name).stat().st_size
        except OSError as error:
            raise DataError(f"{path / name} is missing ({error.strerror}): {_AGAIN}") from None
        if n_bytes != file.n_bytes or (verify and fingerprint(path / name) != file):
            raise DataError(f"{path / name} is not the file that was prepared: {_AGAIN}")
    train, dev = (_parallel(path, manifest, part) for part in ("train", "dev"))
    copies = _parallel(path, manifest, "train", manifest.copies) if manifest.copies else None
    return DataDirectory(path, manifest, train, dev, copies)


_AGAIN = (
    "copy the directory again, or run the `python -m hvd_nmt.prepare` command that made it, with "
    "--overwrite."
)


@final
@dataclass(frozen=True, eq=False)
class DataDirectory:
    """A prepared data directory, opened."""

    path: Path
    manifest: "DataManifest"
    train: "ParallelCorpus"
    dev: "ParallelCorpus"
    copies: "ParallelCorpus | None" = None
    """copies of each training pair one after the other, of which each epoch takes the next one;
    None: every epoch takes the pairs as they are"""

    @property
    def epochs(self) -> "ParallelCorpus":
        """What the epochs of a run take their pairs from."""
        return self.train if self.copies is None else self.copies

    @property
    def spm_path(self) -> Path:
        """The SentencePiece model of the target, and of the source too where it is joint."""
        return self.path / SPM_MODEL

    @property
    def source_spm_path(self) -> Path:
        """The SentencePiece model of the source; `spm_path` where it is joint."""
        return self.path / (SPM_SOURCE_MODEL if self.manifest.source_has_own else SPM_MODEL)

    def text_path(self, part: str, language: str) -> Path:
        """The raw text of "dev" or "test", for example `dev.de`."""
        return self.path / f"{part}.{language}"

    def text(self, part: str) -> tuple[list[str], list[str]]:
        """Raw lines of "dev" or "test", source and target, in order; DataError: no such part."""
        if part == "train" or part not in self.manifest.parts:
            raise DataError(f"{self.path} has no {part} text to score: give dev, or prepare test.")
        source, target = (
            list(read_lines(self.text_path(part, language)))
            for language in (self.manifest.source_language, self.manifest.target_language)
        )
        return source, target


@final
@dataclass(frozen=True, eq=False)
class Sentences:
    """One side of a corpus, encoded: flat ids and where each sentence begins."""

    ids: np.ndarray
    """uint16 or int32 [tokens], all sentences in a row, each ending with eos (1), no bos"""
    offsets: np.ndarray
    """int64 [sentences + 1], sentence i is ids[offsets[i] : offsets[i + 1]]"""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """The ids of one sentence, 0 <= index < len."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def part(self, pairs: range) -> "Sentences":
        """Some sentences in a row."""
        return Sentences(self.ids, self.offsets[pairs.start : pairs.stop + 1])

    @cached_property
    def lengths(self) -> np.ndarray:
        """int32 [sentences], tokens of each sentence, eos counted."""
        return np.diff(self.offsets).astype(np.int32)


@final
@dataclass(frozen=True, eq=False)
class ParallelCorpus:
    """Sentence pairs: source i belongs to target i."""

    source: Sentences
    target: Sentences

    def __len__(self) -> int:
        return len(self.source)

    def part(self, pairs: range) -> "ParallelCorpus":
        """Some pairs in a row."""
        return ParallelCorpus(self.source.part(pairs), self.target.part(pairs))


@dataclass(frozen=True)
class Side:
    """One side of one part."""

    input: FileFacts
    """the raw file as it was given, compressed if it was"""
    text_bytes: int
    """UTF-8 text read from the raw file and cleaned, one byte per line end"""
    kept_text_bytes: int
    """UTF-8 text of the pairs that were kept, one byte per line end"""
    tokens: int
    """tokens of the pairs that were kept, eos counted; 0 for "test", which is not encoded"""


@dataclass(frozen=True)
class Part:
    """The train, dev or test pairs."""

    pairs_read: int
    """pairs of the raw files"""
    pairs: int
    """pairs that were kept"""
    removed: dict[str, int]
    """pairs removed by each rule"""
    truncated: int
    """pairs kept with a side cut to max_length"""
    source: Side
    target: Side


@dataclass(frozen=True)
class MixedCorpus:
    """One of several corpora in a prepared data directory."""

    name: str
    source_language: str
    target_language: str
    tags: list[str]
    """pieces in front of each source"""
    weight: Weight
    """share of an epoch's pairs, relative to the other weights; or each pair once"""
    date: str
    """when the text was collected"""
    pairs: dict[str, int]
    """number of its pairs in each part"""

    @property
    def direction(self) -> str:
        """Such as en-de."""
        return f"{self.source_language}-{self.target_language}"


@dataclass(frozen=True)
class DataManifest:
    """What is in a prepared data directory, and how it was made."""

    format_version: int
    source_language: str
    target_language: str
    vocabulary_pieces: int
    """pieces of the SentencePiece model"""
    vocabulary_size: int
    """rows of the embedding, of the target or joint: pieces rounded up to a multiple of 8"""
    max_length: int
    """tokens of the longest sentence kept, eos counted"""
    request: dict[str, Any]
    """the settings and inputs that the directory was made from"""
    versions: dict[str, str]
    """versions of the programs that made the directory"""
    parts: dict[str, Part]
    """what became of train, dev and perhaps test"""
    files: dict[str, FileFacts]
    """every file that is part of the data"""
    corpora: list[MixedCorpus] = field(default_factory=list)
    """those that the parts are made of, one after the other; empty: of one"""
    copies: int = 0
    """copies of each training pair, cut or spelled differently; 0: there are none"""
    source_vocabulary_pieces: int = 0
    """pieces of the source's own SentencePiece model; 0: it has none, the vocabulary is joint"""
    source_vocabulary_size: int = 0
    """rows of the source's own embedding; 0: it has none, for both models give a piece one id"""

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Source and target language of each corpus, each once."""
        pairs = [(mixed.source_language, mixed.target_language) for mixed in self.corpora]
        return list(dict.fromkeys(pairs or [(self.source_language, self.target_language)]))

    @property
    def source_has_own(self) -> bool:
        """Whether the source has its own SentencePiece model."""
        return self.source_vocabulary_pieces > 0

    @property
    def hash(self) -> str:
        """sha256 over all files and their names, and over what is known of several corpora."""
        lines = [f"{file.sha256}  {name}\n" for name, file in sorted(self.files.items())]
        if self.corpora:  # which of the pairs are whose, and how much weighs
            lines.append(json.dumps([asdict(corpus) for corpus in self.corpora]))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def by_corpus(self, part: str) -> dict[str, range]:
        """Which pairs of a part are of each of several corpora, by name; {} with a single one."""
        ends = [0, *accumulate(corpus.pairs.get(part, 0) for corpus in self.corpora)]
        names = (corpus.name for corpus in self.corpora)
        return {name: range(*ends) for name, ends in zip(names, pairwise(ends), strict=True)}

    def sample(self, part: str, count: int) -> list[int]:
        """The first `count` pairs of a part (0: all); of several corpora the first of each."""
        pairs = self.parts[part].pairs
        count = min(count or pairs, pairs)
        ranges = self.by_corpus(part).values() or [range(pairs)]
        quotas = (count * of.stop // pairs - count * of.start // pairs for of in ranges)
        return [index for of, quota in zip(ranges, quotas, strict=True) for index in of[:quota]]

    @property
    def vocabulary_hash(self) -> str:
        """sha256 of the SentencePiece model: what a checkpoint is bound to."""
        return self.files[SPM_MODEL].sha256

    @property
    def source_vocabulary_hash(self) -> str:
        """sha256 of the source's own SentencePiece model; "" where it has none."""
        return self.files[SPM_SOURCE_MODEL].sha256 if self.source_has_own else ""


def read_manifest(directory: Path) -> DataManifest:
    """Reads the manifest; DataError: there is none, or it is not one that this version reads."""
    path = directory / MANIFEST
    try:
        raw = json.loads(path.read_bytes())
        version = raw["format_version"]
        if version != FORMAT_VERSION:
            raise ValueError(f"format version {version!r}, this version reads {FORMAT_VERSION}")
        parts = {name: _part(**part) for name, part in raw.pop("parts").items()}
        files = {name: FileFacts(**file) for name, file in raw.pop("files").items()}
        raw.pop("hash", None)
        corpora = [MixedCorpus(**corpus) for corpus in raw.pop("corpora", [])]
        return DataManifest(parts=parts, files=files, corpora=corpora, **raw)
    except FileNotFoundError:
        state = "is not a prepared data directory" if directory.is_dir() else "does not exist"
        out = "NEW" if directory.is_dir() else shlex.quote(str(directory))
        raise DataError(
            f"{directory} {state}: make one with `python -m hvd_nmt.prepare --out {out} "
            "--train-source FILE --train-target FILE --dev-size 1000`, or with --dataset embedded, "
            "multi30k-en-de or wmt16-en-de instead of files."
        ) from None
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} cannot be read ({error}): {_AGAIN}") from None


def write_manifest(directory: Path, manifest: DataManifest) -> None:
    """Writes `manifest.json`. Its hash is for human readers only."""
    content = asdict(manifest) | {"hash": manifest.hash}
    # Without what 0.1.0 does not know, where nothing needs it.
    for name in ("corpora", "copies", "source_vocabulary_pieces", "source_vocabulary_size"):
        if not content[name]:
            del content[name]
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _part(source: dict[str, Any], target: dict[str, Any], **rest: Any) -> Part:
    sides = (Side(**side | {"input": FileFacts(**side["input"])}) for side in (source, target))
    return Part(**rest | dict(zip(("source", "target"), sides, strict=True)))


def copies_stem(stem: Path) -> Path:
    """Where the copies of a side lie, such as train.copies.en of train.en."""
    return stem.with_name(stem.name.replace(".", ".copies.", 1))


def _parallel(path: Path, manifest: DataManifest, part: str, copies: int = 0) -> ParallelCorpus:
    pairs = manifest.parts[part].pairs * max(copies, 1)
    stems = [
        path / f"{part}.{lang}" for lang in (manifest.source_language, manifest.target_language)
    ]
    source, target = (_sentences(copies_stem(stem) if copies else stem, pairs) for stem in stems)
    return ParallelCorpus(source, target)


def _sentences(stem: Path, pairs: int) -> Sentences:
    try:
        # asarray: the same mapped memory without the memmap class, which makes indexing slow.
        ids = np.asarray(np.load(f"{stem}.ids.npy", mmap_mode="r"))
        offsets = np.asarray(np.load(f"{stem}.offsets.npy", mmap_mode="r"))
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{stem}.*.npy cannot be read ({error}): {_AGAIN}") from None
    if offsets.shape != (pairs + 1,) or offsets[0] != 0 or offsets[-1] != len(ids):
        raise DataError(f"{stem}.ids.npy and {stem}.offsets.npy do not belong together: {_AGAIN}")
    return Sentences(ids, offsets)


@contextmanager
def writing(stem: Path, vocabulary_size: int) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    """Gives what appends sentences to the .npy files of a stem: their ids, the tokens of each."""
    dtype = np.dtype(np.uint16 if vocabulary_size <= 2**16 else np.int32)
    written: list[np.ndarray] = [np.zeros(1, np.int64)]
    with open(f"{stem}.ids.npy", "wb") as stream:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(stream, header | {"shape": (0,)})

        def append(ids: np.ndarray, lengths: np.ndarray) -> None:
            stream.write(ids.astype(dtype, copy=False).tobytes())
            written.append(lengths.astype(np.int64))

        yield append
        offsets = np.cumsum(np.concatenate(written))
        stream.seek(0)  # NumPy keeps room in the header for the length to grow
        np.lib.format.write_array_header_1_0(stream, header | {"shape": (int(offsets[-1]),)})
    np.save(f"{stem}.offsets.npy", offsets)

"""The prepared directory: what is written is read, and damage is named."""

import dataclasses
import json

import numpy as np
import pytest

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import FileFacts, fingerprint
from hvd_nmt.data import corpus
from hvd_nmt.data.corpus import DataManifest, Part, Side

TRAIN = ([[5, 6, 1], [1], [7, 1]], [[8, 1], [9, 9, 9, 1], [1]])
DEV = ([[5, 1]], [[6, 1]])


def write_part(directory, part, source, target, vocabulary_size):
    for language, ids in (("en", source), ("de", target)):
        with corpus.writing(directory / f"{part}.{language}", vocabulary_size) as append:
            for some in (ids[:2], ids[2:]):
                lengths = np.array([len(sentence) for sentence in some], np.int64)
                append(np.array([i for ids in some for i in ids], np.int32), lengths)


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    write_part(path, "train", *TRAIN, vocabulary_size=16)
    write_part(path, "dev", *DEV, vocabulary_size=16)
    (path / "dev.en").write_bytes(b"Hello\x0bthere\n")
    (path / "dev.de").write_text("Grüß Gott\n", encoding="utf-8")
    (path / corpus.SPM_MODEL).write_bytes(b"model")
    side = Side(FileFacts(1, "0"), 1, 1, 1)
    parts = {"train": Part(4, 3, {"too long": 1}, 0, side, side),
             "dev": Part(1, 1, {}, 0, side, side)}  # fmt: skip
    files = {file.name: fingerprint(file) for file in path.iterdir()}
    manifest = DataManifest(
        corpus.FORMAT_VERSION, "en", "de", 13, 16, 8, {"a": 1}, {}, parts, files
    )
    corpus.write_manifest(path, manifest)
    return path


def test_what_is_written_is_read(directory):
    data = corpus.load(directory, verify=True)
    for part, expected in ((data.train, TRAIN), (data.dev, DEV)):
        for side, ids in zip((part.source, part.target), expected, strict=True):
            assert [sentence.tolist() for sentence in side] == ids
            assert side.lengths.tolist() == [len(sentence) for sentence in ids]
            assert side.ids.dtype == np.uint16
    assert len(data.train) == 3
    assert isinstance(data.train.source.ids.base, np.memmap)
    with corpus.writing(directory / "x", 65_544) as append:
        append(np.array([65_543, 1]), np.array([2]))
    ids = np.load(directory / "x.ids.npy")
    assert (ids.dtype, ids.tolist()) == (np.int32, [65_543, 1])
    assert data.text("dev") == (["Hello there"], ["Grüß Gott"])
    assert data.text_path("dev", "de") == directory / "dev.de"
    assert data.spm_path.read_bytes() == b"model"
    assert data.manifest == corpus.read_manifest(directory)
    assert data.manifest.parts["train"].removed == {"too long": 1}
    for part in ("train", "test"):
        with pytest.raises(DataError, match=f"has no {part} text"):
            data.text(part)


def test_the_hash_follows_names_and_contents(directory):
    manifest = corpus.read_manifest(directory)
    assert json.loads((directory / "manifest.json").read_text())["hash"] == manifest.hash
    shuffled = dataclasses.replace(manifest, files=dict(reversed(manifest.files.items())))
    assert shuffled.hash == manifest.hash
    other = dict(manifest.files)
    other["dev.en"], other["dev.de"] = other["dev.de"], other["dev.en"]
    assert dataclasses.replace(manifest, files=other).hash != manifest.hash
    assert manifest.vocabulary_hash == fingerprint(directory / "spm.model").sha256


@pytest.mark.parametrize("name", ["train.en.ids.npy", "dev.de.offsets.npy", "spm.model", "dev.en"])
def test_a_missing_torn_or_changed_file_is_named(directory, name):
    raw = (directory / name).read_bytes()
    (directory / name).write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(DataError, match=f"{name} is not the file that was prepared"):
        corpus.load(directory, verify=True)
    (directory / name).write_bytes(raw[:-1])
    with pytest.raises(DataError, match=f"{name} is not the file that was prepared"):
        corpus.load(directory)
    (directory / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        corpus.load(directory)


def test_a_missing_directory_is_named_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(DataError, match="is not a prepared data directory: make one with"):
        corpus.load(tmp_path)
    with pytest.raises(DataError, match=f"does not exist: .*hvd_nmt.prepare --out {tmp_path}/new"):
        corpus.load(tmp_path / "new")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format version 2, this version reads 1"),
        ({"max_length": ...}, "max_length"),
        ({"parts": [1]}, ""),
        ({"files": {"spm.model": 3}}, ""),
        ({"unheard_of": 1}, "unheard_of"),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
        (b"[{}]", ""),
    ],
)
def test_a_wrong_manifest_is_named(directory, change, message):
    path = directory / "manifest.json"
    if isinstance(change, dict):
        raw = json.loads(path.read_text()) | change
        change = json.dumps({key: value for key, value in raw.items() if value is not ...}).encode()
    path.write_bytes(change)
    with pytest.raises(DataError, match=rf"manifest\.json cannot be read .*{message}"):
        corpus.load(directory)


def test_arrays_that_do_not_belong_together_or_are_pickles_are_named(directory):
    """Same size, other offsets: only their relation shows it without reading everything."""
    path = directory / "train.en.offsets.npy"
    raw, offsets = path.read_bytes(), np.load(path)
    offsets[-1] += 1
    np.save(path, offsets)
    with pytest.raises(DataError, match="do not belong together"):
        corpus.load(directory)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    path.write_bytes(path.read_bytes()[: len(raw)].ljust(len(raw), b"\0"))
    with pytest.raises(DataError, match="cannot be read"):
        corpus.load(directory)

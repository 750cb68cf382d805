"""The recipe's files: read as the recipe reads them, written so that they come back the same."""

import pytest

from hvd_nmt import prepare
from hvd_nmt.data import corpus
from hvd_nmt.data.text import read_pairs
from hvd_nmt.preparation import subwords
from hvd_nmt.preparation.openseq2seq_files import MODEL, VOCABULARY

PAIRS = [(f"the man {i} sees a dog", f"DER MANN {i} SIEHT EINEN HUND") for i in range(300)]


def paths(folder, part):
    name = {"train": "train.clean.{}.shuffled", "dev": "wmt13-en-de.{}", "test": "wmt14-en-de.{}"}
    sides = ("en", "de") if part == "train" else ("src", "ref")
    return [folder / f"{name[part].format(side)}.BPE_common.32K.tok" for side in sides]


@pytest.fixture(scope="module")
def model():
    return subwords.train([line for pair in PAIRS for line in pair], 120)


@pytest.fixture
def folder(tmp_path, model):
    """A folder as the recipe's script leaves it."""
    made = tmp_path / "recipe"
    made.mkdir()
    (made / MODEL).write_bytes(model)
    processor = subwords.load(model)
    subwords.write_vocabulary(processor, made / VOCABULARY)
    for part, pairs in (("train", PAIRS), ("dev", PAIRS[:9]), ("test", PAIRS[:5])):
        for path, lines in zip(paths(made, part), zip(*pairs, strict=True), strict=True):
            text = "".join(" ".join(processor.encode(line, out_type=str)) + "\n" for line in lines)
            path.write_text(text, encoding="utf-8", newline="\n")
    return made


def run(folder, *options):
    out = folder.parent / "out"
    return prepare.main(["--dataset-dir", str(folder), "--out", str(out), *options]), out


def test_ids_are_lines_of_the_vocabulary(folder, model):
    code, out = run(folder)
    assert code == 0
    data = corpus.load(out, verify=True)
    processor = subwords.load(model)
    sides = zip(data.train.source, data.train.target, strict=True)
    for ids, lines in zip(sides, PAIRS, strict=True):
        assert [side.tolist() for side in ids] == [[*processor.encode(line), 1] for line in lines]
    assert data.text("dev") == tuple(map(list, zip(*PAIRS[:9], strict=True)))
    assert data.text("test") == tuple(map(list, zip(*PAIRS[:5], strict=True)))
    assert data.spm_path.read_bytes() == model
    assert (out / "quality.json").is_file()


def test_what_is_written_comes_back(folder):
    assert run(folder, "--write-recipe", str(folder.parent / "again"))[0] == 0
    again = folder.parent / "again"
    for part in ("dev", "test"):
        for path in paths(folder, part):
            assert (again / path.name).read_bytes() == path.read_bytes()
    for name in (MODEL, VOCABULARY):
        assert (again / name).read_bytes() == (folder / name).read_bytes()

    ours, theirs = (list(read_pairs(*paths(made, "train"))) for made in (again, folder))
    assert ours != theirs
    assert sorted(ours) == sorted(theirs)

"""The recipe's files: read as the recipe reads them, written so that they come back the same."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from hvd_nmt import prepare
from hvd_nmt.data import corpus, vocabulary
from hvd_nmt.data.text import read_pairs
from hvd_nmt.preparation import subwords
from hvd_nmt.preparation.openseq2seq_files import MODEL, VOCABULARY

RECIPE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "openseq2seq"
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


def test_only_0x20_splits_and_unknown_pieces_are_unk(folder):
    source, target = paths(folder, "train")
    source.write_bytes("▁the\u00a0x ▁man\u2003 ▁the\x1f ▁man\r\n\n▁the\n".encode())
    target.write_bytes("▁D ER\n▁D\n▁\n".encode())
    code, out = run(folder)
    assert code == 0
    data = corpus.load(out)
    assert len(data.train) == 2
    assert data.train.source[0].tolist() == [3, 3, 3, 3, 1]
    assert data.manifest.parts["train"].removed == {"a side is empty": 1}


@pytest.mark.parametrize("how", ["truncate", "skip"])
def test_long_sentences_as_in_the_recipe(folder, how):
    """The recipe reads [start] + pieces[:max_length - 2] + [eos]; there is no start symbol here."""
    source, target = paths(folder, "train")
    numbers = range(1, 12)
    source.write_text("".join(" ".join(["▁the"] * n) + "\n" for n in numbers))
    target.write_text("▁D\n" * len(numbers))
    code, out = run(folder, "--max-length", "8", "--too-long", how)
    assert code == 0
    data = corpus.load(out)
    part = data.manifest.parts["train"]
    lengths = data.train.source.lengths.tolist()
    if how == "truncate":
        assert lengths == [min(n, 6) + 1 for n in numbers]
        assert (part.truncated, part.removed) == (5, {})
        assert all(ids[-1] == 1 for ids in data.train.source)
    else:
        assert lengths == [n + 1 for n in numbers if n <= 6]
        assert (part.truncated, part.removed) == (0, {"too long": 5})


def test_what_is_written_comes_back(folder, capsys):
    assert run(folder, "--write-recipe", str(folder.parent / "again"))[0] == 0
    again = folder.parent / "again"
    for part in ("dev", "test"):
        for path in paths(folder, part):
            assert (again / path.name).read_bytes() == path.read_bytes()
    for name in (MODEL, VOCABULARY):
        assert (again / name).read_bytes() == (folder / name).read_bytes()

    assert run(folder, "--write-recipe", str(again))[0] == 0, "given again, it is done"
    ours, theirs = (list(read_pairs(*paths(made, "train"))) for made in (again, folder))
    assert ours != theirs
    assert sorted(ours) == sorted(theirs)
    (again / MODEL).unlink()
    assert run(folder, "--write-recipe", str(again))[0] == 2, "never replaced"
    assert "is there already: choose another --write-recipe" in capsys.readouterr().err
    nowhere = folder / MODEL / "again"
    assert run(folder, "--write-recipe", str(nowhere))[0] == 3
    assert f"{nowhere} cannot be written: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: paths(folder, "dev")[1].unlink(), "ref.BPE_common.32K.tok is missing"),
        (lambda folder: (folder / MODEL).unlink(), "m_common.model is missing: copy it"),
        (lambda folder: (folder / VOCABULARY).write_text(
            "<pad>\n</s>\n<s>\n<unk>\n"), "does not hold the pieces of"),
        (lambda folder: (folder / VOCABULARY).write_text("a\tb\n"), "is no vocabulary of"),
    ],
)  # fmt: skip
def test_a_folder_that_is_not_the_recipes_is_named(folder, capsys, spoil, message):
    spoil(folder)
    code, out = run(folder)
    assert code == 3
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_a_file_that_changes_after_its_fingerprint_is_named(folder, monkeypatch, capsys):
    request, path = prepare.request, folder / VOCABULARY
    change = path.read_bytes().replace(b"5\n", b"4\n")
    monkeypatch.setattr(prepare, "request", lambda *a: [request(*a), path.write_bytes(change)][0])
    code, out = run(folder)
    assert code == 3
    assert f"{path} has changed" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.long
@pytest.mark.skipif(not RECIPE.is_dir(), reason=f"{RECIPE} is not there")
def test_files_made_by_the_recipe_itself(tmp_path):
    folder = tmp_path / "recipe"
    folder.mkdir()
    for name in (MODEL, VOCABULARY):
        shutil.copy(RECIPE / "checkpoint" / name, folder)
    for part in ("train", "dev"):
        for path, side in zip(paths(folder, part), ("en", "de"), strict=True):
            shutil.copy(RECIPE / "checkpoint" / f"val.{side}.tok", path)
    code, out = run(folder, "--max-length", "56", "--too-long", "truncate")
    assert code == 0
    data = corpus.load(out, verify=True)
    assert len(data.train) == 1014
    pieces = [piece for piece, _ in vocabulary.read(folder / VOCABULARY)]
    with open(paths(folder, "train")[0], encoding="utf-8", newline="\n") as stream:
        for i, line in enumerate(stream):
            assert " ".join(pieces[id] for id in data.train.source[i][:-1]) == line.rstrip("\n")
    # The text put together from the pieces is encoded to the same pieces again.
    model = subwords.load(data.spm_path.read_bytes())
    again = subwords.encode_lines(model, data.text("dev")[0], 2)
    same = np.mean([ids == data.dev.source[i].tolist() for i, ids in enumerate(again)])
    assert same > 0.98

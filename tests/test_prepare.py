"""The command: raw text to a prepared directory, wrong input as one sentence and nothing left."""

import errno
import gzip
import json
import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

import mirrors
from hvd_nmt import prepare
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.files import fingerprint
from hvd_nmt.data import corpus, vocabulary
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.preparation import embedded, encoding, parts, subwords, workers

ROOT = Path(__file__).resolve().parent.parent
MULTI30K = ROOT.parent / "shared" / "data" / "multi30k"

NOUNS = ["man", "woman", "child", "dog", "garden", "house", "street", "ball", "hat", "tree"]
VERBS = ["sees", "likes", "paints", "finds", "holds"]


def toy_pairs(n_pairs):
    """Different pairs whose target names the source's words in capitals, backwards."""
    pairs = []
    for i in range(n_pairs):
        words = [NOUNS[i % 10], VERBS[i // 10 % 5], NOUNS[i // 50 % 10], str(i)]
        pairs.append((" ".join(words), " ".join(reversed(words)).upper()))
    return pairs


def write(path, lines, ending="\n"):
    path.write_bytes("".join(line + ending for line in lines).encode())
    return path


class Toy:
    """A small corpus on disk and the command line that prepares it."""

    def __init__(self, directory):
        self.directory = directory
        self.out = directory / "out"
        self.options = {"out": self.out, "vocabulary-size": 120, "max-length": 24}
        self.write("train", toy_pairs(300))
        self.write("dev", toy_pairs(20))

    def write(self, part, pairs):
        for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            self.options[f"{part}-{side}"] = write(self.directory / f"{part}.{side}", lines)

    def argv(self, **changes):
        options = self.options | {key.replace("_", "-"): v for key, v in changes.items()}
        words = []
        for key, value in options.items():
            if value is not None:
                words += [f"--{key}"] if value is True else [f"--{key}", str(value)]
        return words

    def run(self, **changes):
        return prepare.main(self.argv(**changes))

    def left(self):
        """What lies beside the raw files."""
        names = sorted(path.name for path in self.directory.iterdir())
        return [name for name in names if not name.startswith(("train", "dev"))]


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


def decoded(data, side):
    model = sentencepiece.SentencePieceProcessor(model_file=str(data.spm_path))
    return [model.decode(ids.tolist()) for ids in side]


def test_the_directory_holds_the_text(toy):
    toy.out.mkdir()  # an empty one may be filled
    assert toy.run() == 0
    data = corpus.load(toy.out, verify=True)
    sources, targets = map(list, zip(*toy_pairs(300), strict=True))
    assert decoded(data, data.train.source) == sources
    assert decoded(data, data.train.target) == targets
    assert data.text("dev") == (sources[:20], targets[:20])
    assert decoded(data, data.dev.target) == targets[:20]
    assert toy.left() == ["out"]
    train = data.manifest.parts["train"]
    assert (train.pairs_read, train.pairs, train.removed, train.truncated) == (300, 300, {}, 0)
    assert train.source.text_bytes == toy.options["train-source"].stat().st_size
    assert train.source.input == fingerprint(toy.options["train-source"])
    assert train.target.tokens == len(data.train.target.ids)
    assert data.manifest.vocabulary_pieces == data.manifest.vocabulary_size == 120
    assert json.loads((toy.out / "quality.json").read_text())["parts"]["train"]["pairs"] == 300
    assert (toy.out / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert not {"quality.json", "lengths.png", "removed.tsv.gz"} & set(data.manifest.files)
    # One vocabulary leaves no trace of two.
    assert not [path.name for path in toy.out.iterdir() if "source" in path.name]
    content = json.loads((toy.out / "manifest.json").read_text())
    assert not [name for name in [*content, *content["request"]] if "source_v" in name]
    assert data.source_spm_path == data.spm_path
    assert not data.manifest.source_has_own


def test_what_is_printed(toy, capsys, golden_page):
    toy.write("dev", [("dog", "DOG"), ("man " * 100, "MAN")])
    page = ""
    for changes in (
        {}, {"vocabulary_size": 117, "overwrite": True}, {},
        {"vocabulary_size": 8000, "overwrite": True},
        {"separate_vocabularies": True, "source_vocabulary_size": 90, "overwrite": True},
    ):  # fmt: skip
        code = toy.run(**changes)
        said = capsys.readouterr()
        page += f"{changes}: {code}\n{said.out}{said.err}\n"
    page = re.sub(r"\d+\.\d s\b", "N s", page.replace(str(toy.directory), "DIRECTORY"))
    golden_page("prepare.txt", re.sub(r"\b[0-9a-f]{12}\b", "HASH", page))


def test_the_same_command_again_is_done_and_other_work_is_refused(toy, capsys):
    assert toy.run() == 0
    before = (toy.out / "manifest.json").stat().st_ino
    assert toy.run() == 0
    assert "already prepared" in capsys.readouterr().out
    assert (toy.out / "manifest.json").stat().st_ino == before
    assert toy.run(max_length=23) == 3
    assert "prepared with other settings or from other text" in capsys.readouterr().err
    assert toy.run(max_length=23, overwrite=True) == 0
    assert corpus.load(toy.out).manifest.max_length == 23
    toy.write("dev", toy_pairs(21))
    assert toy.run(max_length=23) == 3
    (toy.out / "dev.en").write_text("torn")
    assert toy.run() == 3
    assert "dev.en has 4 bytes instead of" in capsys.readouterr().err
    assert toy.run(overwrite=True) == 0
    corpus.load(toy.out, verify=True)


def test_a_directory_of_something_else_is_never_replaced(toy, capsys):
    toy.out.mkdir()
    write(toy.out / "thesis.tex", ["precious"])
    assert toy.run(overwrite=True) == 3
    assert "is not a prepared data directory: choose another --out" in capsys.readouterr().err
    assert (toy.out / "thesis.tex").read_text() == "precious\n"


def test_two_hosts_get_the_same_data(toy, tmp_path):
    """From other paths, compressed or not, with CRLF or without: equal text, equal hash."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    pairs = toy_pairs(300)
    source = write(other / "train.en", [source for source, _ in pairs], ending="\r\n")
    target = other / "train.de.gz"
    target.write_bytes(gzip.compress(b"\xef\xbb\xbf" + "\n".join(t for _, t in pairs).encode()))
    assert toy.run() == 0
    assert toy.run(out=other / "out", train_source=source, train_target=target) == 0
    here, there = corpus.load(toy.out).manifest, corpus.load(other / "out").manifest
    assert here.hash == there.hash
    assert here.vocabulary_hash == there.vocabulary_hash
    assert here.request != there.request


def test_what_is_not_fatal_is_left_out_as_pairs_and_counted(toy):
    pairs = toy_pairs(300)
    pairs[10] = ("", pairs[10][1])
    pairs[11] = (pairs[11][0], " \t ")
    pairs[12] = ("x" * 1_000_000, pairs[12][1])
    pairs[13] = (pairs[13][0], "word " * 24)
    pairs[14] = ("two\x0blines\u2028in one\x00", pairs[14][1])
    toy.write("train", pairs)
    assert toy.run() == 0
    data = corpus.load(toy.out)
    part = data.manifest.parts["train"]
    assert part.removed == {"a side is empty": 2, "too long": 2}
    assert (part.pairs_read, part.pairs) == (300, 296)
    sources = decoded(data, data.train.source)
    assert sources == [
        "two lines in one" if i == 14 else pairs[i][0] for i in range(300) if i not in range(10, 14)
    ]
    assert max(data.train.source.lengths.max(), data.train.target.lengths.max()) <= 24
    packed = (toy.out / "removed.tsv.gz").read_bytes()
    rows = gzip.decompress(packed).decode().splitlines()
    assert rows[:2] == [f"a side is empty\t11\t\t{pairs[10][1]}",
                        f"a side is empty\t12\t{pairs[11][0]}\t   "]  # fmt: skip
    assert packed[4:8] == bytes(4), "the time, so that the same pairs give the same bytes"
    # Text is counted as it is used: U+2028, three bytes, has become a space.
    text_bytes = [len(source.encode()) + 1 for source, _ in pairs]
    assert part.source.text_bytes == sum(text_bytes) - 2
    assert part.source.kept_text_bytes == sum(text_bytes) - 2 - sum(text_bytes[10:14])


def test_a_side_that_normalisation_leaves_nothing_of_is_empty(toy):
    """As --dataset-dir says of the pieces of the same text."""
    pairs = toy_pairs(300)
    for i, mark in enumerate("\u200b\ufeff\u2581\ufffd\u200f\u2060\u00ad"):
        pairs[10 * i] = (pairs[10 * i][0], mark) if i % 2 else (f" {mark}{mark} ", pairs[10 * i][1])
    toy.write("train", pairs)
    assert toy.run() == 0
    data = corpus.load(toy.out)
    assert min(data.train.source.lengths.min(), data.train.target.lengths.min()) > 1
    assert len(data.train) == 300 - sum(data.manifest.parts["train"].removed.values()) < 297
    packed = (toy.out / "removed.tsv.gz").read_bytes()
    assert len(data.train) == 300 - len(gzip.decompress(packed).splitlines())
    assert toy.run(write_recipe=(recipe := toy.directory / "recipe")) == 0
    out = ["--out", str(toy.directory / "again"), "--max-length", "25"]
    assert prepare.main(["--dataset-dir", str(recipe), *out]) == 0
    again = corpus.load(toy.directory / "again").manifest.parts["train"]
    assert (again.pairs, again.removed) == (len(data.train), {})


def test_noise_that_is_left_out_takes_no_pieces(toy):
    pairs, lines = toy_pairs(1500), 60  # of which many characters are within the usual coverage
    noise = ["".join(map(chr, range(at, at + 30))) for at in range(0x4E00, 0x4E00 + 30 * lines, 30)]
    toy.write("train", [*pairs, *((line, f"{line}.") for line in noise)])
    assert toy.run(out=toy.directory / "noisy") == 0
    noisy = corpus.load(toy.directory / "noisy").manifest
    assert noisy.parts["train"].removed == {"too long": lines}
    toy.write("train", pairs)
    assert toy.run() == 0
    assert noisy.vocabulary_hash == corpus.load(toy.out).manifest.vocabulary_hash
    assert "learning" not in noisy.request, "or data from before are not known to be done"


def test_sentencepieces_options(toy, capsys):
    pairs = [(f"<ph>{s}", f"<ph>{t}") for s, t in toy_pairs(300)]
    pairs[7] = pairs[7][0], pairs[7][1] + " \u4e2d"
    toy.write("train", pairs)
    toy.write("dev", pairs[:20])
    changes = {
        "vocabulary_type": "unigram", "character_coverage": 0.999, "byte_fallback": True,
        "vocabulary_size": 400, "max_length": 40, "write_recipe": toy.directory / "recipe",
    }  # fmt: skip
    argv = [*toy.argv(**changes), "--user-defined-symbols", "<ph>", "a,b"]
    assert [prepare.main(argv), prepare.main(argv)] == [0, 0]
    assert "already prepared" in capsys.readouterr().out
    data = corpus.load(toy.out, verify=True)
    names = [piece for piece, _ in vocabulary.read(data.spm_vocab_path)]
    assert {"<ph>", "a,b", "<0xE4>"} <= {*names}
    assert all(names.index("<ph>") in ids for ids in data.train.source)
    assert names.index("<0xE4>") in data.train.target[7]
    assert decoded(data, data.train.target) == [target for _, target in pairs]
    again = toy.directory / "again"  # of files in which bytes are pieces
    argv = ["--dataset-dir", str(changes["write_recipe"]), "--out", str(again)]
    assert prepare.main(argv) == 0
    assert corpus.load(again).text("dev") == data.text("dev")


def of_side(data, side):
    """Processor, ids of train and of dev of a side."""
    path = data.source_spm_path if side == "source" else data.spm_path
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return model, getattr(data.train, side), getattr(data.dev, side)


def test_each_side_learns_a_vocabulary_of_its_own_text(toy, capsys):
    pairs = toy_pairs(300)
    pairs[7] = pairs[7][0], pairs[7][1] + " \u4e2d"
    toy.write("train", pairs)
    changes = {
        "byte_fallback": True, "character_coverage": 0.999,
        "separate_vocabularies": True, "source_vocabulary_size": 320, "vocabulary_size": 350,
        "max_length": 40,
    }  # fmt: skip
    assert [toy.run(**changes), toy.run(**changes)] == [0, 0]
    assert "already prepared" in capsys.readouterr().out
    data = corpus.load(toy.out, verify=True)
    names = {}
    for number, side in enumerate(("source", "target")):
        model, train, dev = of_side(data, side)
        texts = [pair[number] for pair in pairs]
        assert [model.decode(ids.tolist()) for ids in train] == texts
        assert [model.decode(ids.tolist()) for ids in dev] == data.text("dev")[number]
        names[side] = set(subwords.pieces(model))
    assert any(name.islower() for name in names["source"])
    assert not any(name.isupper() and name.isalpha() for name in names["source"])
    assert not any(name.islower() and name.isalpha() for name in names["target"])
    manifest = data.manifest
    rows = manifest.source_vocabulary_size, manifest.vocabulary_size
    assert rows == tuple(map(subwords.rounded_up, map(len, (names["source"], names["target"]))))
    assert manifest.source_vocabulary_hash == manifest.files["spm.source.model"].sha256
    assert toy.run(**changes | {"source_vocabulary_size": 328}) == 3


def test_two_given_vocabularies_are_used_as_they_are(toy, tmp_path, capsys):
    assert toy.run(separate_vocabularies=True, source_vocabulary_size=96) == 0
    first = corpus.load(toy.out)
    own = {"vocabulary_size": None, "out": tmp_path / "again"}
    given = own | {"vocabulary": first.spm_path, "source_vocabulary": first.source_spm_path}
    assert toy.run(**given) == 0
    again = corpus.load(tmp_path / "again", verify=True)
    assert again.manifest.hash == first.manifest.hash
    assert again.manifest.source_vocabulary_size == 96
    assert toy.run(**own, vocabulary=first.spm_path) == 2
    assert f"--source-vocabulary {first.source_spm_path}." in capsys.readouterr().err
    # Both give each piece the same id: only how text is cut differs, one matrix serves both.
    same = shutil.copyfile(first.spm_path, tmp_path / "same.model")
    given |= {"source_vocabulary": same, "out": tmp_path / "shared"}
    assert toy.run(**given) == 0
    shared = corpus.load(tmp_path / "shared").manifest
    assert (shared.source_vocabulary_pieces, shared.source_vocabulary_size) == (120, 0)
    assert "one embedding for both" in capsys.readouterr().out


def test_the_ids_of_a_side_are_as_wide_as_its_vocabulary_asks(toy):
    paths = toy.options["dev-source"], toy.options["dev-target"]
    part = parts.PartState(parts.Input.of([paths]).files, paths)
    stems = toy.directory / "x.en", toy.directory / "x.de"
    encoding.write_ids(part, [], stems, (70_000, 120), None)
    types = [np.load(f"{stem}.ids.npy").dtype for stem in stems]
    assert types == [np.int32, np.uint16]


def test_dev_and_test_pairs_are_all_kept(toy):
    toy.write("dev", [("", "LEER"), ("man " * 100, "MAN"), ("dog", "DOG")])
    toy.write("test", [("", ""), ("dog", "DOG")])
    assert toy.run() == 0
    data = corpus.load(toy.out)
    assert data.text("test") == (["", "dog"], ["", "DOG"])
    assert data.text("dev")[0][1] == "man " * 100
    assert data.dev.source.lengths[:2].tolist() == [1, 24]
    assert data.manifest.parts["dev"].truncated == 1


def test_dev_pairs_can_be_held_out(toy):
    pairs = [*toy_pairs(100), *toy_pairs(90)]
    toy.write("train", pairs)
    assert toy.run(dev_source=None, dev_target=None, dev_size=10) == 0
    data = corpus.load(toy.out)
    dev_sources, dev_targets = data.text("dev")
    expected = [pairs[i] for i in (9, 28, 47, 66, 85, 104, 123, 142, 161, 180)]
    assert list(zip(dev_sources, dev_targets, strict=True)) == expected
    rest = [pair for pair in pairs if pair[0] not in dev_sources]
    sides = (decoded(data, side) for side in (data.train.source, data.train.target))
    assert list(zip(*sides, strict=True)) == rest
    part = data.manifest.parts["train"]
    assert part.removed == {"held out for dev": 10, "source is in dev": 180 - len(rest)}
    assert part.pairs == len(rest)


def test_without_leaks_the_targets_of_held_out_pairs_leave_too(toy):
    pairs = toy_pairs(100)
    pairs[0] = "another dog", pairs[5][1]
    toy.write("train", pairs)
    assert toy.run(dev_source=None, dev_target=None, dev_size=10, remove_leaks=True) == 0
    data = corpus.load(toy.out)
    assert pairs[5][1] in data.text("dev")[1]
    removed = {"held out for dev": 10, "target is in dev": 1}
    assert data.manifest.parts["train"].removed == removed
    assert len(data.train) == 89


def test_holding_out_too_much_or_of_blank_lines_is_refused(toy, capsys):
    assert toy.run(dev_source=None, dev_target=None, dev_size=151) == 3
    assert "--dev-size 151 is more than half of the 300" in capsys.readouterr().err
    toy.write("train", [("", " ")] * 300)
    assert toy.run(dev_source=None, dev_target=None, dev_size=100) == 3
    err = capsys.readouterr().err
    assert err.endswith("No training pair is left of 300: 300 a side is empty.\n")
    assert toy.left() == []


def test_output_that_nobody_takes_is_no_fault_of_the_data(toy):
    argv = shlex.join([sys.executable, "-m", "hvd_nmt.prepare", *toy.argv()])
    command = ["bash", "-c", f"{argv} > /dev/full"]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=600)
    assert (done.returncode, toy.left()) == (0, ["out"])
    lost = "hvd_nmt.prepare goes on without stdout, which cannot be written any more"
    assert done.stderr == f"{lost} (No space left on device).\n"


def test_a_link_as_out_leads_to_the_data(toy, tmp_path_factory):
    disk = tmp_path_factory.mktemp("disk")
    (disk / "data").mkdir()
    toy.out.symlink_to(disk / "data")
    assert toy.run() == 0
    assert toy.out.is_symlink()
    corpus.load(disk / "data", verify=True)
    assert os.listdir(disk) == ["data"]


def changed(option, change):
    return lambda toy: toy.options[option].write_bytes(change(toy.options[option].read_bytes()))


def spoil_gz(toy):
    toy.options["dev-source"] = toy.options["dev-source"].rename(toy.directory / "dev.gz")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (changed("train-target", lambda raw: raw + b"one more\n"),
         r"train\.source has 300 lines, but .*train\.target has 301"),
        (changed("train-target", lambda raw: raw.replace(b"\n41 ", b"\nStra\xdfe ")),
         r"train\.target, line 42: byte 0xdf at column 5 is not UTF-8"),
        (changed("train-source", lambda raw: b""), r"train\.source is empty"),
        (lambda toy: toy.options["dev-target"].unlink(),
         r"dev\.target cannot be read: No such file"),
        (spoil_gz, r"dev\.gz is not a whole gzip file"),
        (lambda toy: toy.options.update({"dev-target": "/dev/null"}),
         "/dev/null is a pipe or a device, and the text is read more than once: give a"),
        (lambda toy: toy.options.update({"dev-target": "/proc/self/mem"}),
         r"/proc/self/mem cannot be read: Input/output error\."),
        (lambda toy: toy.write("train", [("", "x"), ("y", "")]),
         r"No training pair is left of 2: 2 a side is empty\.$"),
        (lambda toy: toy.options.update({"max-length": 2}),
         "No training pair is left of 300: 300 too long"),
    ],
)  # fmt: skip
def test_wrong_data_is_one_sentence_with_code_3_and_leaves_nothing(toy, capsys, spoil, message):
    spoil(toy)
    assert toy.run() == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("hvd_nmt.prepare: ")
    assert re.search(message, err)
    assert toy.left() == []


@pytest.mark.parametrize("option", ["train-target", "vocabulary"])
def test_a_file_that_changes_after_its_fingerprint_is_named(toy, monkeypatch, capsys, option):
    if option == "vocabulary":
        path, toy.options["vocabulary-size"] = toy.directory / "train.model", None
        old, new = (subwords.train((s for s, _ in toy_pairs(n)), 60) for n in (90, 99))
    else:
        path = toy.options[option].with_suffix(".gz")
        old, new = map(gzip.compress, (raw := toy.options[option].read_bytes(), raw.swapcase()))
    path.write_bytes(old)
    toy.options[option] = path
    # After the command knows what the file is, and before it has read it.
    request = prepare.request
    monkeypatch.setattr(prepare, "request", lambda *a: [request(*a), path.write_bytes(new)][0])
    assert toy.run() == 3
    assert f"{path} has changed " in capsys.readouterr().err
    assert toy.left() == []
    monkeypatch.undo()
    assert toy.run() == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_target": None}, "Give both --train-source and --train-target"),
        ({"train_source": None, "train_target": None}, "or --corpus embedded"),
        ({"dev_size": 5}, "Give either --dev-source"),
        ({"corpus": "embedded"}, "brings its own dev and test"),
        ({"dataset": "multi30k-en-de"}, "no text files or --dev-size"),
        ({"corpora": __file__}, "--corpora names all files"),
        ({"dataset": "wmt16-en-fr"}, "wmt16-en-de"),
        ({"source_language": "../en"}, "is no language name"),
        ({"source_language": "de"}, "must have different names"),
        ({"max_length": 1}, "--max-length must be at least 2"),
        ({"vocabulary_size": 5_000_000_000}, "must be at most 10,000,000"),
        ({"vocabulary": __file__}, "--vocabulary-size would have no effect: --vocabulary is"),
        ({"max_words": 50}, "--max-words would have no effect: these rules need --clean moses"),
        ({"mirror": "."}, "--mirror would have no effect: only a --dataset is downloaded"),
        ({"write_recipe": "."}, "--write-recipe is the working directory"),
        ({"source_vocabulary_size": 96}, "it needs --separate-vocabularies"),
        ({"source_vocabulary": "spm"}, "--source-vocabulary: there is no file spm"),
        ({"source_vocabulary": __file__}, "belongs to --vocabulary"),
        ({"separate_vocabularies": True, "write_recipe": "recipe"}, "have one joint vocabulary"),
    ],
)
def test_a_wrong_command_line_ends_with_code_2(toy, capsys, changes, message):
    try:
        code = toy.run(**changes)
    except SystemExit as stop:  # the command line's parser may end the process itself
        code = stop.code
    assert code == 2
    words = re.sub("[\u2500-\u257f]", " ", capsys.readouterr().err).split()  # without a drawn box
    assert message in " ".join(words)
    assert toy.left() == []


@pytest.mark.parametrize("recipe", ["y/../x", "x/recipe", "../"])
def test_the_recipe_s_place_must_be_another(recipe):
    with pytest.raises(ConfigError, match="must be another directory than --out, and neither in"):
        prepare.Options(Path("x"), corpus="embedded", write_recipe=Path(recipe))


def fake_generate(seed, **_):
    pairs = toy_pairs(200 + seed)
    return {"train": pairs, "dev": pairs[:10], "test": pairs[10:15]}


def test_the_embedded_corpus(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(embedded, "generate", fake_generate)
    out = tmp_path / "embedded-en-de"
    argv = ["--corpus", "embedded", "--out", str(out), "--vocabulary-size", "120"]
    assert prepare.main(argv) == 0
    data = corpus.load(out, verify=True)
    assert (len(data.train), len(data.dev)) == (201, 10)
    assert data.text("test")[0] == [source for source, _ in toy_pairs(15)[10:]]
    assert data.manifest.parts["train"].source.input.n_bytes == sum(
        len(source) + 1 for source, _ in toy_pairs(201)
    )
    assert prepare.main(argv) == 0
    assert "already prepared" in capsys.readouterr().out
    assert prepare.main([*argv, "--seed", "2"]) == 3


def start(argv):
    command, pipe = [sys.executable, "-m", "hvd_nmt.prepare", *argv], subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def test_two_processes_at_once_prepare_once(toy):
    outputs = []
    for process in [start(toy.argv()) for _ in range(2)]:
        out, err = process.communicate(timeout=600)
        assert (process.returncode, err) == (0, "")
        outputs.append("already prepared" in out)
    assert sorted(outputs) == [False, True]
    assert toy.left() == ["out"]


def contents(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def stages(journal):
    """Names of the finished stages in a journal; none if there is none yet."""
    lines = journal.read_bytes().split(b"\n")[1:-1] if journal.is_file() else []
    return [json.loads(line)["stage"] for line in lines]


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """A corpus of several blocks, its command line without --out, and its result."""
    toy = Toy(tmp_path_factory.mktemp("larger"))
    toy.write("train", [(f"{s} {i}", f"{t} {i}") for i in range(75) for s, t in toy_pairs(300)])
    assert toy.run() == 0
    assert toy.left() == ["out"]
    return toy, contents(toy.out)


DIES = """
import os, signal, sys
from hvd_nmt import prepare
from hvd_nmt.preparation.journal import Journal

def stage(self, name, work, whole=Journal.stage, last=sys.argv.pop()):
    if name == last:
        work()
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, name, work)

Journal.stage = stage
prepare.main()
"""
long = pytest.mark.long


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("read dev", marks=long), pytest.param("read train", marks=long),
        pytest.param("vocabulary", marks=long), "encode train",
        pytest.param("encode dev", marks=long), pytest.param("check sums", marks=long),
    ],
)  # fmt: skip
def test_a_killed_process_goes_on_behind_the_last_finished_stage(larger, tmp_path, stage):
    """Killed when the files of a stage are written, and not yet that it is finished."""
    toy, whole = larger
    out = tmp_path / "out"
    command = [sys.executable, "-c", DIES, *toy.argv(out=out), stage]
    assert subprocess.run(command, cwd=ROOT, timeout=600).returncode == -signal.SIGKILL
    assert not out.exists()
    every = ["read dev", "read train", "vocabulary", "encode train", "encode dev", "check sums"]
    assert stages(tmp_path / "out.work" / "journal.jsonl") == every[: every.index(stage)]
    assert toy.run(out=out) == 0
    assert contents(out) == whole
    assert os.listdir(tmp_path) == ["out"]


def test_finished_stages_are_not_repeated(toy, monkeypatch, capsys):
    """A stage that fails with an error of the machine leaves the others done."""
    monkeypatch.setattr(prepare, "put_in_place", fail)
    assert toy.run() == 3
    assert "No space left on device. The same command goes on" in capsys.readouterr().err
    assert toy.left() == ["out.work"]
    monkeypatch.undo()
    monkeypatch.setattr(parts, "clean", None)
    monkeypatch.setattr(subwords, "train", None)
    monkeypatch.setattr(encoding, "encode", None)
    assert toy.run() == 0
    assert "encode train" in (out := capsys.readouterr().out)
    assert out.count("(before)") == 6
    corpus.load(toy.out, verify=True)
    assert toy.left() == ["out"]


def test_work_on_another_request_is_not_used(toy, monkeypatch):
    monkeypatch.setattr(prepare, "put_in_place", fail)
    assert toy.run() == 3
    monkeypatch.undo()
    toy.write("dev", toy_pairs(7))
    assert toy.run() == 0
    assert len(corpus.load(toy.out, verify=True).dev) == 7
    assert toy.left() == ["out"]


def kill_yourself(*_):
    assert multiprocessing.parent_process(), "only a worker may"
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_the_machine_kills_costs_one_stage(larger, tmp_path, monkeypatch, capsys):
    toy, whole = larger
    out = tmp_path / "out"
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(encoding, "_encode", kill_yourself)
    assert toy.run(out=out) == 3
    assert "the same command goes on after the last finished stage" in capsys.readouterr().err
    assert stages(tmp_path / "out.work" / "journal.jsonl")[-1] == "vocabulary"
    monkeypatch.undo()
    monkeypatch.setattr(subwords, "train", None)
    assert toy.run(out=out) == 0
    assert contents(out) == whole
    assert os.listdir(tmp_path) == ["out"]


def test_a_vocabulary_that_is_no_model_is_one_sentence(toy, capfd):
    path = write(toy.directory / "train.txt", ["word"])
    assert toy.run(vocabulary=path, vocabulary_size=None) == 3
    assert capfd.readouterr().err == (
        f"hvd_nmt.prepare: {path} is no SentencePiece model, or a damaged one: give the .model "
        "file that SentencePiece has written, such as spm.model of a prepared data directory.\n"
    )
    assert toy.left() == []


def test_a_vocabulary_with_other_marks_is_refused(toy, tmp_path_factory, capsys):
    prefix = tmp_path_factory.mktemp("spm") / "theirs"
    sentencepiece.SentencePieceTrainer.train(
        input=str(toy.options["train-source"]), model_prefix=str(prefix), vocab_size=60,
        model_type="bpe", minloglevel=2,
    )  # fmt: skip
    assert toy.run(vocabulary=f"{prefix}.model", vocabulary_size=None) == 3
    assert "theirs.model has other ids for pad, eos, bos and unk" in capsys.readouterr().err
    assert toy.left() == []


def fail(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(scope="module")
def wmt(tmp_path_factory):
    """A server with the archives of wmt16-en-de, laid out as the originals, and small."""
    train = toy_pairs(3000)
    train[5:8] = [("", "leer"), ("word " * 81, "zu lang"), ("a|b", "1 2 3 4 5 6 7 8 9 10")]
    test = [("a test", "EIN TEST"), ("dog", "HUND")]
    parts = {"train": train, "dev": toy_pairs(20), "test": test}
    folder = tmp_path_factory.mktemp("wmt")
    mirrors.build_wmt(folder, parts)
    with mirrors.serving(mirrors.folder_routes(folder)) as server:
        yield server.url


def dataset_argv(directory, url):
    return [
        "--dataset", "wmt16-en-de", "--mirror", url, "--cache", str(directory / "cache"),
        "--vocabulary-size", "120", "--out", str(directory / "out"),
    ]  # fmt: skip


def test_a_dataset_by_its_name(wmt, tmp_path, capsys):
    argv = dataset_argv(tmp_path, wmt)
    assert prepare.main(argv) == 0
    data = corpus.load(tmp_path / "out", verify=True)
    part = data.manifest.parts["train"]
    assert part.removed == {"a side is empty": 1, "too many words": 1, "word ratio": 1}
    assert (part.pairs_read, len(data.dev), data.text("test")[0]) == (3000, 20, ["a test", "dog"])
    removed = gzip.decompress((tmp_path / "out" / "removed.tsv.gz").read_bytes()).decode()
    rows = [row.split("\t") for row in removed.splitlines()]
    assert [(rule, number) for rule, number, _, _ in rows] == [
        ("a side is empty", "6"), ("too many words", "7"), ("word ratio", "8"),
    ]  # fmt: skip
    capsys.readouterr()
    assert prepare.main(argv) == 0
    assert "already prepared" in capsys.readouterr().out


CALLS = """
import os, signal, sys
from hvd_nmt import prepare

calls, last, pid = 0, int(sys.argv.pop()), os.getpid()

def count(*_):
    global calls
    calls += 1
    if calls == last:
        os.kill(pid, signal.SIGKILL)

sys.setprofile(count)
code = prepare.main()
sys.setprofile(None)
print(calls)
sys.exit(code)
"""


@pytest.mark.long
def test_ten_deaths_at_any_call_of_any_function(wmt, tmp_path):
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    command = [sys.executable, "-c", CALLS]
    out = subprocess.check_output([*command, *dataset_argv(whole, wmt), "0"], cwd=ROOT)
    chance, calls = random.Random(1), int(out.splitlines()[-1])
    codes = []
    for _ in range(10):
        last = str(chance.randrange(1, calls))
        done = subprocess.run([*command, *dataset_argv(torn, wmt), last], cwd=ROOT)
        codes.append(done.returncode)
    assert codes[0] == -signal.SIGKILL
    assert {*codes} <= {0, -signal.SIGKILL}
    assert prepare.main(dataset_argv(torn, wmt)) == 0
    assert contents(torn / "out") == contents(whole / "out")
    assert [path.name for path in torn.iterdir() if path.name.startswith("out")] == ["out"]


@pytest.mark.long
def test_memory_does_not_grow_with_the_corpus(toy):
    """36,000 pairs more of 100 characters a side: in lists they would take 12 MB."""
    code = (
        "from hvd_nmt import prepare; from hvd_nmt.data import text;"
        "text._BLOCK_BYTES = 200_000;"  # small, for a few of them are in memory at any size
        "assert prepare.main() == 0;"
        # Not ru_maxrss, which begins with the size of the process that started this one.
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    peaks_kb = []
    for times in (30, 150):
        pairs = toy_pairs(300 * times)
        toy.write("train", [(f"{s} {s} {s}", f"{t} {t} {t}") for s, t in pairs])
        command = toy.argv(overwrite=True, vocabulary_sample=2000, max_length=99)
        out = subprocess.check_output([sys.executable, "-c", code, *command], cwd=ROOT)
        peaks_kb.append(int(out.splitlines()[-1]))
    assert peaks_kb[1] - peaks_kb[0] < 7_000


def test_no_tensorflow_is_imported():
    code = "import sys, hvd_nmt.prepare; print([m for m in sys.modules if 'tensorflow' in m])"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT) == b"[]\n"


@pytest.mark.long
@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"{MULTI30K} is not there")
def test_multi30k(tmp_path):
    out = tmp_path / "multi30k"
    argv = ["--vocabulary-size", "8000", "--out", str(out)]
    for part, name in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        for side, language in (("source", "en"), ("target", "de")):
            argv += [f"--{part}-{side}", str(MULTI30K / f"{name}.{language}.gz")]
    assert prepare.main(argv) == 0
    data = corpus.load(out, verify=True)
    assert (len(data.train), len(data.dev), len(data.text("test")[0])) == (29_000, 1_014, 1_000)
    assert data.manifest.vocabulary_size == 8000
    assert data.manifest.vocabulary_hash.startswith("b1913b3d90eb")
    with gzip.open(MULTI30K / "train.de.gz", "rb") as stream:
        raw = stream.read().decode().split("\n")
    assert data.manifest.parts["train"].target.text_bytes == len("\n".join(raw).encode())
    normal = [" ".join(line.split()) for line in raw[:2000]]
    same = np.mean([a == b for a, b in zip(decoded(data, data.train.target), normal, strict=False)])
    assert same > 0.99  # the rest holds characters that SentencePiece normalises
    plan = BatchPlan.of(data.train, 4096, seed=1)
    assert plan.steps_per_epoch == -(-int(data.train.target.lengths.sum()) // 4096)

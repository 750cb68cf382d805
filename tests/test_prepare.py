"""The command: raw text to a prepared directory, wrong input as one sentence and nothing left."""

import errno
import gzip
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece

import mirrors
from hvd_nmt import prepare
from hvd_nmt.common.files import fingerprint
from hvd_nmt.data import corpus
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.preparation import embedded, stages, subwords

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
        """What lies beside the raw files and the lock."""
        names = sorted(path.name for path in self.directory.iterdir())
        return [name for name in names if not name.startswith(("train", "dev", ".out.lock"))]


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


def decoded(data, side):
    model = sentencepiece.SentencePieceProcessor(model_file=str(data.spm_path))
    return [model.decode(ids.tolist()) for ids in side]


def test_the_directory_holds_the_text(toy, capsys, monkeypatch):
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
    assert not {"quality.json", "removed.tsv.gz"} & set(data.manifest.files)
    # Sources are normalised more, with the same pieces and one embedding.
    assert data.manifest.source_has_own
    assert data.manifest.source_vocabulary_size == 0
    # One vocabulary leaves no trace of two.
    monkeypatch.setattr(stages, "_ROUGH_PAIRS", 299)  # more take long
    assert toy.run(overwrite=True, source_normalization_rule="nfc") == 0
    assert capsys.readouterr().err == "learning the vocabulary from 300 pairs\n"
    assert not [path.name for path in toy.out.iterdir() if "source" in path.name]
    content = json.loads((toy.out / "manifest.json").read_text())
    assert not [name for name in [*content, *content["request"]] if "source_v" in name]
    data = corpus.load(toy.out)
    assert data.source_spm_path == data.spm_path
    assert not data.manifest.source_has_own


def test_a_reader_sees_what_is_in_the_text(toy, capsys):
    """Other scripts, what is normalised, what usual rules would remove, what is unknown."""
    more = [
        ("I go\u00adto bed.", "我去睡覺，\u200b好。"), ("At\u00a0home", "在家。"), ("dog", "dog"),
        ("the big dog sees nine men and one small child", "大狗今天在這裏看見九個男人。"),
    ]  # fmt: skip
    toy.write("train", more + [(f"cat {word}", f"貓貓 {word}。") for word in "abcdef" * 3])
    toy.write("dev", [("cat ツ", "貓")])
    languages = {"source_language": "eng", "target_language": "yue"}
    assert toy.run(**languages, show=2) == 0
    said = capsys.readouterr().out
    for line in (
        "train  normalization: visible of sources, nfc of targets",
        "train  letters: eng Latin 100.0 %; yue Han 72.7 %, Latin 27.3 %",
        "train  normalization changes 9.09 % of sources: U+00AD to nothing, U+00A0 to U+0020",
        "train  --remove-copies is off; it would remove 4.55 %",
        "train  --normalization-rule visible is off; it would change 4.55 % of targets",
        "dev    sources with unknown characters: 1 (ツ)",
        "pair 6\n  cat b\n  貓貓 b。",
    ):  # fmt: skip
        assert line in said, said
    assert said.count("normalization changes") == 1
    assert "hardly fit" not in said
    data = corpus.load(toy.out)
    assert decoded(data, data.train.target)[0] == more[0][1], "as it was, with U+200B"
    source = sentencepiece.SentencePieceProcessor(model_file=str(data.source_spm_path))
    assert source.decode(data.train.source[0].tolist()) == "I goto bed."
    # Sentences of nine English words are one "word" of Chinese to Moses; wrong names of languages.
    assert toy.run(overwrite=True, clean="moses") == 0
    assert "removed" not in (said := capsys.readouterr().out)
    assert "train  letters hardly fit en and de: check --source-language" in said
    # Asked again, a finished directory shows what was removed.
    toy.write("train", [*more, ("a " * 30, "b"), ("", "x")])
    assert toy.run(**languages, overwrite=True, clean="moses", show=1, removed=True) == 0
    said = capsys.readouterr().out
    assert f"line 5: word ratio\n  {'a ' * 30}\n  b\nline 6: a side is empty\n  \n  x" in said
    assert toy.run(**languages, clean="moses", show=1) == 0
    assert "nothing to prepare.\npair 3\n  dog" in capsys.readouterr().out


def test_what_is_printed(toy, capsys, golden_page):
    toy.write("dev", [("dog", "DOG"), ("man " * 100, "MAN")])
    page = ""
    for changes in (
        {"vocabulary_size": 117}, {"vocabulary_size": 8000, "overwrite": True},
        {"separate_vocabularies": True, "source_vocabulary_size": 90, "overwrite": True},
    ):  # fmt: skip
        code = toy.run(**changes)
        said = capsys.readouterr()
        page += f"{changes}: {code}\n{said.out}{said.err}\n"
    page = re.sub(r"\b[0-9a-f]{12}\b", "HASH", page.replace(str(toy.directory), "DIRECTORY"))
    golden_page("prepare.txt", page)


def test_the_same_command_again_is_done_and_other_work_is_refused(toy, capsys):
    assert toy.run() == 0
    before = (toy.out / "manifest.json").stat().st_ino
    assert toy.run() == 0
    assert "nothing to prepare" in capsys.readouterr().out
    assert (toy.out / "manifest.json").stat().st_ino == before
    assert toy.run(max_length=23) == 3
    assert "prepared with other settings or from other text" in capsys.readouterr().err
    (toy.out / "run").mkdir()
    assert toy.run(max_length=23, overwrite=True) == 3
    assert f"{toy.out / 'run'} would be removed with" in capsys.readouterr().err
    (toy.out / "run").rmdir()
    assert toy.run(max_length=23, overwrite=True) == 0
    assert corpus.load(toy.out).manifest.max_length == 23
    toy.write("dev", toy_pairs(21))
    assert toy.run(max_length=23) == 3
    (toy.out / "dev.en").write_text("torn")
    assert toy.run() == 3
    assert "dev.en is not the file that was prepared" in capsys.readouterr().err
    assert toy.run(overwrite=True) == 0
    corpus.load(toy.out, verify=True)
    (toy.out / "manifest.json").rename(toy.out / "thesis.tex")
    assert toy.run(overwrite=True) == 3
    assert "is not a prepared data directory: choose another --out" in capsys.readouterr().err
    assert (toy.out / "thesis.tex").exists()


def test_two_hosts_get_the_same_data(toy, tmp_path, capsys):
    """From other paths, compressed or not, with CRLF or without: equal text, equal hash."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    pairs = toy_pairs(300)
    source = write(other / "train.en", [source for source, _ in pairs], ending="\r\n")
    target = other / "train.de.gz"
    target.write_bytes(gzip.compress(b"\xef\xbb\xbf" + "\n".join(t for _, t in pairs).encode()))
    assert toy.run() == 0
    assert "CR" not in capsys.readouterr().err
    assert toy.run(out=other / "out", train_source=source, train_target=target) == 0
    assert f"300 lines of {source} ended in CR LF; the CR was removed" in capsys.readouterr().err
    here, there = corpus.load(toy.out).manifest, corpus.load(other / "out").manifest
    assert here.hash == there.hash
    assert here.vocabulary_hash == there.vocabulary_hash
    assert here.request != there.request


def test_swapped_dev_files_are_named(toy, capsys):
    source, target = toy.options["dev-source"], toy.options["dev-target"]
    assert toy.run() == 0
    assert "swapped" not in capsys.readouterr().err
    assert toy.run(out=toy.directory / "b", dev_source=target, dev_target=source) == 0
    said = f"{target} reads like the targets of train, {source} like the sources"
    assert said in capsys.readouterr().err


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
    assert (part.pairs_read, part.removed) == (300, {"a side is empty": 2, "too long": 2})
    sources = [source for source, _ in pairs[:10] + pairs[14:]]
    sources[10] = "two lines in one"
    assert decoded(data, data.train.source) == sources
    assert max(data.train.source.lengths.max(), data.train.target.lengths.max()) <= 24
    packed = (toy.out / "removed.tsv.gz").read_bytes()
    assert gzip.decompress(packed).decode().splitlines() == [
        f"a side is empty\t11\t\t{pairs[10][1]}", f"a side is empty\t12\t{pairs[11][0]}\t   ",
        "\t".join(["too long", "13", *pairs[12]]), "\t".join(["too long", "14", *pairs[13]]),
    ]  # fmt: skip
    assert packed[4:8] == bytes(4), "the time, so that the same pairs give the same bytes"
    # Text is counted as it is used: U+2028, three bytes, has become a space.
    assert part.source.text_bytes == sum(len(source.encode()) + 1 for source, _ in pairs) - 2


def test_sentencepieces_options(toy, capsys):
    pairs = [(f"<ph>{s}", f"<ph>{t}") for s, t in toy_pairs(300)]
    pairs[7] = pairs[7][0], pairs[7][1] + " \u4e2d"
    toy.write("train", pairs)
    toy.write("dev", pairs[:20])
    changes = {
        "vocabulary_type": "unigram", "character_coverage": 0.999, "byte_fallback": True,
        "vocabulary_size": 400, "max_length": 40,
    }  # fmt: skip
    argv = [*toy.argv(**changes), "--user-defined-symbols", "<ph>", "a,b"]
    assert [prepare.main(argv), prepare.main(argv)] == [0, 0]
    assert "nothing to prepare" in capsys.readouterr().out
    data = corpus.load(toy.out, verify=True)
    lines = (toy.out / "spm.vocab").read_text(encoding="utf-8").splitlines()
    names = [line.partition("\t")[0] for line in lines]
    assert {"<ph>", "a,b", "<0xE4>"} <= {*names}
    assert all(names.index("<ph>") in ids for ids in data.train.source)
    assert names.index("<0xE4>") in data.train.target[7]
    assert decoded(data, data.train.target) == [target for _, target in pairs]


def test_each_side_learns_a_vocabulary_of_its_own_text(toy):
    changes = {"separate_vocabularies": True, "source_vocabulary_size": 96, "vocabulary_size": 104}
    assert toy.run(**changes) == 0
    data = corpus.load(toy.out, verify=True)
    texts, manifest = zip(*toy_pairs(300), strict=True), data.manifest
    sizes = manifest.source_vocabulary_size, manifest.vocabulary_size
    paths, sides = (data.source_spm_path, data.spm_path), (data.train.source, data.train.target)
    for path, side, lines, size in zip(paths, sides, texts, sizes, strict=True):
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        assert [model.decode(ids.tolist()) for ids in side] == [*lines]
        letters = {name for name in subwords.pieces(model)[4:] if name.isalpha()}
        assert {name.isupper() for name in letters} == {path == data.spm_path}
        assert size == subwords.rounded_up(model.get_piece_size())
    assert manifest.source_vocabulary_hash == manifest.files["spm.source.model"].sha256
    assert toy.run(**changes | {"source_vocabulary_size": 88}) == 3


def test_two_given_vocabularies_are_used_as_they_are(toy, tmp_path, capsys):
    assert toy.run(separate_vocabularies=True, source_vocabulary_size=96) == 0
    first = corpus.load(toy.out)
    given = {"vocabulary_size": None, "vocabulary": first.spm_path}
    source = {"source_vocabulary": first.source_spm_path}
    for name, more in (("beside", {}), ("named", source)):
        assert toy.run(**given, **more, out=tmp_path / name) == 0
        again = corpus.load(tmp_path / name, verify=True)
        assert again.manifest.hash == first.manifest.hash
        assert again.manifest.source_vocabulary_size == 96
    # Both give each piece the same id: only how text is cut differs, one matrix serves both.
    same = shutil.copyfile(first.spm_path, tmp_path / "same.model")
    given |= {"source_vocabulary": same, "out": tmp_path / "shared"}
    assert toy.run(**given) == 0
    shared = corpus.load(tmp_path / "shared").manifest
    assert (shared.source_vocabulary_pieces, shared.source_vocabulary_size) == (120, 0)
    assert "joint vocabulary: 120 pieces" in capsys.readouterr().out


def test_dev_and_test_pairs_are_all_kept(toy):
    toy.write("dev", [("", "LEER"), ("man " * 100, "MAN"), ("dog", "DOG")])
    toy.write("test", [("", ""), ("dog", "DOG")])
    assert toy.run() == 0
    data = corpus.load(toy.out)
    assert data.text("test") == (["", "dog"], ["", "DOG"])
    assert data.text("dev")[0][1] == "man " * 100
    assert data.dev.source.lengths[:2].tolist() == [1, 24]
    assert data.manifest.parts["dev"].truncated == 1


@pytest.mark.parametrize("remove_leaks", [None, True])
def test_dev_pairs_can_be_held_out(toy, remove_leaks):
    pairs = [*toy_pairs(100), *toy_pairs(90)]
    pairs[0] = "another dog", pairs[9][1]
    toy.write("train", pairs)
    assert toy.run(dev_source=None, dev_target=None, dev_size=10, remove_leaks=remove_leaks) == 0
    data = corpus.load(toy.out)
    dev_sources, dev_targets = data.text("dev")
    expected = [pairs[i] for i in (9, 28, 47, 66, 85, 104, 123, 142, 161, 180)]
    assert list(zip(dev_sources, dev_targets, strict=True)) == expected
    rest = [pair for pair in (pairs[1:] if remove_leaks else pairs) if pair[0] not in dev_sources]
    sides = (decoded(data, side) for side in (data.train.source, data.train.target))
    assert list(zip(*sides, strict=True)) == rest
    removed = {"held out for dev": 10, "source is in dev": 180 - len(rest)}
    if remove_leaks:
        removed |= {"source is in dev": 179 - len(rest), "target is in dev": 1}
    assert data.manifest.parts["train"].removed == removed


def changed(option, change):
    return lambda toy: toy.options[option].write_bytes(change(toy.options[option].read_bytes()))


def spoil_gz(toy):
    path = toy.options["dev-source"] = toy.options["dev-source"].rename(toy.directory / "dev.gz")
    path.write_bytes(gzip.compress(path.read_bytes())[:-4])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (changed("train-target", lambda raw: raw + b"one more\n"),
         r"train\.source has 300 lines, but .*train\.target has 301"),
        (changed("train-target", lambda raw: raw.replace(b"\n41 ", b"\nStra\xdfe ")),
         r"train\.target, line 42: byte 0xdf at column 5 is not UTF-8"),
        (changed("train-source", lambda raw: b""), r"train\.source is empty"),
        (lambda toy: toy.options["dev-target"].unlink(),
         r"Cannot read .*dev\.target: No such file"),
        (spoil_gz, r"Cannot read .*dev\.gz: Compressed file ended"),
        (lambda toy: toy.options.update({"dev-target": "/dev/null"}),
         "/dev/null is a pipe or a device, but the text is read more than once: give a"),
        (lambda toy: toy.write("train", [("", "x"), ("y", "")]),
         r"Cleaning leaves none of 2 training pairs \(2 a side is empty\): check the files"),
        (lambda toy: toy.options.update(
            {"dev-source": None, "dev-target": None, "dev-size": 151}),
         "--dev-size 151 is more than half of the 300"),
        (lambda toy: toy.options.update({"separate-vocabularies": True, "vocabulary-size": 8}),
         r"--source-vocabulary-size 8 is too small .* give at least \d+\.$"),
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": "spm.model", "normalization_rule": "nfc"}, "has its own normalization"),
        ({"train_target": None}, "Give both --train-source and --train-target"),
        ({"dev_size": 5}, "must come from one place: give --dev-source"),
        ({"dataset": "embedded"}, "already names all text"),
        ({"corpora": __file__}, "--corpora already names all text"),
        ({"dataset": "wmt16-en-fr"}, "wmt16-en-de"),
        ({"dev_size": -3}, "--dev-size is -3: it must be at least 0"),
        ({"max_length": 0}, "--max-length is 0: it must be above 0"),
        ({"max_words": 50}, "--max-words would have no effect: these rules need --clean moses"),
        ({"source_vocabulary_size": 96}, "-size needs --separate-vocabularies"),
        ({"bpe_dropout": 1}, "--bpe-dropout is 1.0: give a share in"),
        ({"noise.no_punctuation": 1}, "--noise.no-punctuation is 1.0: give a share in"),
        ({"min_words": -1}, "--min-words is -1: it must be"),
        ({"max_word_ratio": "inf"}, "--max-word-ratio is inf: it must be"),
        ({"character_coverage": 0.9}, "--character-coverage is 0.9: give a share from 0.98 to 1"),
        ({"character_coverage": "nan"}, "--character-coverage is nan"),
        ({"tags": "de"}, "tag 'de': write it like"),
    ],
)
def test_a_wrong_command_line_ends_with_code_2(toy, capsys, changes, message):
    assert toy.run(**changes) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "None" not in said
    assert toy.left() == []


def test_the_embedded_corpus(toy, monkeypatch):
    toy.write("test", toy_pairs(15)[10:])
    raw = {
        part: (toy.options[f"{part}-source"], toy.options[f"{part}-target"])
        for part in ("train", "dev", "test")
    }
    monkeypatch.setattr(embedded, "unpack", lambda folder: raw)
    argv = ["--dataset", "embedded", "--out", str(toy.out), "--vocabulary-size", "120"]
    assert prepare.main(argv) == 0
    data = corpus.load(toy.out, verify=True)
    assert (len(data.train), len(data.dev), len(data.text("test")[0])) == (300, 20, 5)


KILLED = """
import os, signal
from hvd_nmt import prepare
from hvd_nmt.preparation import quality

quality.report = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
prepare.main()
"""


def test_nothing_appears_of_a_killed_process_and_the_next_one_leaves_nothing_else(toy):
    toy.write("train", [(f"{s} {i}", f"{t} {i}") for i in range(75) for s, t in toy_pairs(300)])
    assert toy.run() == 0
    whole = {path.name: path.read_bytes() for path in toy.out.iterdir()}
    shutil.rmtree(toy.out)
    done = subprocess.run([sys.executable, "-c", KILLED, *toy.argv()], cwd=ROOT, timeout=600)
    assert done.returncode == -signal.SIGKILL
    assert not toy.out.exists()
    assert toy.run() == 0
    assert {path.name: path.read_bytes() for path in toy.out.iterdir()} == whole
    assert toy.left() == ["out"]


def test_a_full_disk_is_a_sentence_and_leaves_nothing(toy, monkeypatch, capsys):
    monkeypatch.setattr(corpus, "write_manifest", fail)
    assert toy.run() == 3
    assert "out (No space left on device): fix that, or" in capsys.readouterr().err
    assert toy.left() == []


def test_a_vocabulary_that_is_no_model(toy, capfd):
    path = write(toy.directory / "train.txt", ["word"])
    assert toy.run(vocabulary=path, vocabulary_size=None) == 3
    assert f"{path} is not a SentencePiece model, or is damaged: give" in capfd.readouterr().err
    assert toy.left() == []


def fail(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_dataset_by_its_name(tmp_path, capsys, monkeypatch):
    train = toy_pairs(3000)
    train[5:8] = [("", "leer"), ("word " * 81, "zu lang"), ("a|b", "1 2 3 4 5 6 7 8 9 10")]
    test = [("a test", "EIN TEST"), ("dog", "HUND")]
    mirrors.build_wmt(tmp_path, {"train": train, "dev": toy_pairs(20), "test": test})
    mirrors.pin(monkeypatch, tmp_path)
    with mirrors.serving(tmp_path) as server:
        argv = ["--dataset", "wmt16-en-de", "--mirror", server.url, "--vocabulary-size", "120",
                "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]  # fmt: skip
        assert [prepare.main(argv), prepare.main(argv)] == [0, 0]
    assert "nothing to prepare" in capsys.readouterr().out
    data = corpus.load(tmp_path / "out", verify=True)
    part = data.manifest.parts["train"]
    assert part.removed == {"a side is empty": 1, "too many words": 1, "word ratio": 1}
    assert (part.pairs_read, len(data.dev), data.text("test")[0]) == (3000, 20, ["a test", "dog"])


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
    assert data.manifest.vocabulary_hash.startswith("094f795d428a")
    plan = BatchPlan(data.train.source.lengths, data.train.target.lengths, 4096, seed=1)
    assert plan.steps_per_epoch == -(-int(data.train.target.lengths.sum()) // 4096)

"""The YAML file of several corpora, and the directory that is made of them."""

import gzip
import json

import pytest

from hvd_nmt import prepare
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.mixture import AS_IS
from hvd_nmt.data import corpus, sentencepiece_model
from hvd_nmt.preparation import corpus_files, subwords
from hvd_nmt.preparation.cleaning import CleaningRules

WORDS = ["the", "a", "dog", "man", "tree", "house", "sees", "likes", "red", "big", "old", "and",
         "street", "bird", "ball", "hat"]  # fmt: skip
DEV = [f"dev {WORDS[i % 16]} {WORDS[i % 7]}" for i in range(6)]


def line(i):
    return f"{WORDS[i % 16]} {WORDS[i * 7 % 16]} {WORDS[i * 3 % 11]} {i}"


def write(folder, name, lines):
    (folder / name).write_text("".join(text + "\n" for text in lines), encoding="utf-8")


@pytest.fixture
def files(tmp_path):
    """Two corpora of one direction, of which the first has duplicates, and one of another."""
    clean = [line(i) for i in range(100)] + [line(0)] * 5
    for name, source, target in (
        ("clean", clean, [text.upper() for text in clean]),
        ("crawled", [*map(line, range(80, 200)), "", "x " * 40], ["y", *map(line, range(81, 200)),
                                                                 "leer", "z " * 40]),
        ("french", [*map(line, range(50))], [f"le {line(i)}" for i in range(50)]),
        ("dev", DEV, [text.upper() for text in DEV]),
        ("dev.fr", DEV, [f"le {text}" for text in DEV]),
    ):  # fmt: skip
        write(tmp_path, f"{name}.s", source)
        write(tmp_path, f"{name}.t", target)
    return tmp_path


YAML = """
corpora:
  - name: clean
    source: clean.s
    target: clean.t
    tags: [<2de>]
    weight: 2
    date: 2016-08
    cleaning: {remove_duplicates: true}
    dev: {source: dev.s, target: dev.t}
  - {name: crawled, source: [crawled.s], target: [crawled.t], tags: [<2de>, <web>]}
  - name: french
    source: french.s
    target: french.t
    target_language: fr
    tags: [<2fr>]
    dev: {source: dev.fr.s, target: dev.fr.t}
"""


def prepared(files, yaml=YAML, *more):
    (files / "corpora.yaml").write_text(yaml, encoding="utf-8")
    words = ["--corpora", str(files / "corpora.yaml"), "--out", str(files / "out"),
             "--vocabulary-size", "120", "--max-length", "24", *more]  # fmt: skip
    return prepare.main(words)


def test_a_directory_of_several_corpora(files, capsys):
    assert prepared(files) == 0
    data = corpus.load(files / "out")
    manifest = data.manifest
    assert (manifest.source_language, manifest.target_language) == ("source", "target")
    found = {each.name: (each.direction, each.tags, each.weight, each.date, each.pairs["train"])
             for each in manifest.corpora}  # fmt: skip
    assert found == {
        "clean": ("en-de", ["<2de>"], 2.0, "2016-08", 100),
        "crawled": ("en-de", ["<2de>", "<web>"], AS_IS, "", 120),
        "french": ("en-fr", ["<2fr>"], AS_IS, "", 50),
    }
    assert manifest.parts["train"].pairs == len(data.train) == 270
    assert manifest.parts["train"].removed == {"a side is empty": 1, "duplicate": 5, "too long": 1}
    assert manifest.by_corpus("dev") == {
        "clean": range(6), "crawled": range(6, 6), "french": range(6, 12)
    }  # fmt: skip
    processor = subwords.load(data.spm_path.read_bytes())
    for name, pairs in manifest.by_corpus("train").items():
        tags = " ".join(found[name][1])
        texts = [processor.decode(data.train.source[i].tolist()) for i in pairs]
        assert all(text.startswith(f"{tags} ") for text in texts)
        first = [processor.id_to_piece(int(i)) for i in data.train.source[pairs.start]]
        assert first[: len(found[name][1])] == [f"\u2581{tag}" for tag in found[name][1]]
    sources, targets = data.text("dev")
    assert sources == [f"<2de> {text}" for text in DEV] + [f"<2fr> {text}" for text in DEV]
    assert targets[6:] == [f"le {text}" for text in DEV]
    removed = gzip.decompress((files / "out" / "removed.clean.tsv.gz").read_bytes()).decode()
    assert removed.splitlines() == [
        f"duplicate\t{n}\t<2de> {line(0)}\t{line(0).upper()}" for n in range(101, 106)
    ]
    assert manifest.sample("dev", 4) == [0, 1, 6, 7]
    assert manifest.sample("dev", 5) == [0, 1, 6, 7, 8]
    assert manifest.sample("dev", 0) == manifest.sample("dev", 99) == list(range(12))
    said = capsys.readouterr().out
    assert "corpus crawled: en-de, 120 training pairs, each once an epoch, <2de>, <web>" in said
    assert prepared(files) == 0
    assert "nothing to prepare" in capsys.readouterr().out
    # A vocabulary that is given must have the tags.
    given = ["--vocabulary", str(data.spm_path)]
    words = ["--corpora", str(files / "corpora.yaml"), "--out", str(files / "again"), *given]
    (files / "corpora.yaml").write_text(YAML.replace("<web>", "<new>"))
    assert prepare.main(words) == 3
    assert "has no piece for the tag <new>" in capsys.readouterr().err
    (files / "corpora.yaml").write_text(YAML)
    assert prepare.main(words) == 0


def test_tags_belong_to_the_source_of_two_vocabularies(files):
    assert prepared(files, YAML, "--separate-vocabularies", "--vocabulary-size", "80") == 0
    data = corpus.load(files / "out")
    source, target = (path.read_bytes() for path in (data.source_spm_path, data.spm_path))
    assert set(sentencepiece_model.tags(source)) == {"<2de>", "<web>", "<2fr>"}
    assert sentencepiece_model.tags(target) == {}


def test_tags_may_be_reserved_and_one_direction_names_the_files(files):
    assert prepared(files, YAML[: YAML.index("  - name: french")], "--tags", "<bt>") == 0
    assert (files / "out" / "dev.en").exists()
    model = (files / "out" / "spm.model").read_bytes()
    assert list(sentencepiece_model.tags(model)) == ["<bt>", "<2de>", "<web>"]


WHOLE = """
corpora:
  - name: on
    file: [on.tsv]
    columns: {source: 2, target: 3, min_scores: {1: 0.5}}
    target_language: no
    tags: [<2no>]
    dev_size: 3
    test: {file: test.tmx}
  - {name: 1_000, file: mtdata.tsv, dev: {source: dev.s, target: dev.t}, date: 2024-05-01}
"""


def test_files_with_both_sides_held_out_pairs_and_text_that_yaml_takes_for_other_things(
    files, capsys
):
    write(files, "on.tsv", [f"{i / 100}\t{line(i)}\tLE {line(i)}" for i in range(100)])
    write(
        files, "mtdata.tsv", [f"{line(i)}\t{line(i).upper()}" for i in (*range(200, 260), 49, 58)]
    )
    segments = (f'<tuv xml:lang="{code}"><seg>x {code}</seg></tuv>' for code in ("en", "no"))
    write(files, "test.tmx", [f"<tmx><body><tu>{''.join(segments)}</tu></body></tmx>"])
    assert prepared(files, WHOLE) == 0
    said = capsys.readouterr().out
    data = corpus.load(files / "out")
    found = {each.name: (each.direction, each.date, each.pairs) for each in data.manifest.corpora}
    assert found == {
        "on": ("en-no", "", {"test": 1, "dev": 3, "train": 47}),
        "1_000": ("en-de", "2024-05-01", {"test": 0, "dev": 6, "train": 61}),
    }
    # 50 pairs stay, of which 3 are taken evenly: the one in a sixth of them, then each third.
    sources, targets = data.text("dev")
    assert sources == [*(f"<2no> {line(i)}" for i in (58, 75, 91)), *DEV]
    assert targets == [*(f"LE {line(i)}" for i in (58, 75, 91)), *(text.upper() for text in DEV)]
    assert data.text("test") == (["<2no> x en"], ["x no"])
    assert "corpus on: removed 50 column 1 below 0.5, 3 held out for dev" in said
    assert "corpus 1_000: removed 1 source is in dev" in said
    rows = gzip.decompress((files / "out" / "removed.on.tsv.gz").read_bytes()).decode().splitlines()
    assert rows[0] == f"column 1 below 0.5\t1\t{line(0)}\tLE {line(0)}"
    assert prepared(files, WHOLE) == 0
    assert "nothing to prepare" in capsys.readouterr().out
    assert prepared(files, WHOLE.replace("dev_size: 3", "dev_size: 26"), "--overwrite") == 3
    assert "corpus on: dev_size 26 is more than half of the 50" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("source: clean.s", "file: clean.s"), "train has a file with both sides: remove source"),
        (("weight: 2", "columns: {source: 1}"), "train: columns are those of a `file`"),
        (("weight: 2", "dev_size: 5"), "dev_size must be a number of training pairs, instead of"),
        (
            ("source: [crawled.s], target: [crawled.t]", "file: x, columns: {source: a}"),
            "columns must be numbers, from 1, such as {source: 2, target: 3, min_scores: {1: 0.5}}",
        ),
        (("weight: 2", "wieght: 2"), "corpus clean: unknown key 'wieght' (did you mean 'weight'?)"),
        (("name: crawled", "name: clean"), "two corpora are named clean"),
        (("[crawled.t]", "[crawled.t, a]"), "corpus crawled: train has 1 source and 2 target"),
    ],
)
def test_what_the_file_cannot_say(files, change, said):
    assert YAML.count(change[0]) == 1
    path = files / "corpora.yaml"
    path.write_text(YAML.replace(*change), encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        corpus_files.read_corpora(path, ("en", "de"), CleaningRules(clean="none"), files)
    assert said in str(raised.value)
    assert str(raised.value).startswith(str(path))


def test_a_tag_hides_no_leak(files):
    write(files, "mono.s", [line(0), DEV[1], line(2)])
    write(files, "mono.t", ["a b", "c d", "e f"])
    yaml = YAML + (
        "  - {name: taught, source: mono.s, target: mono.t, tags: [<kd>],\n"
        "     cleaning: {remove_leaks: true}}\n"
    )
    assert prepared(files, yaml) == 0
    data = corpus.load(files / "out")
    assert data.manifest.corpora[-1].pairs["train"] == 2
    assert data.manifest.parts["train"].removed["sentence of dev"] == 1
    report = json.loads((files / "out" / "quality.json").read_text())
    assert report["leakage"]["dev"]["train_pairs"] == 0


def test_rules_know_the_languages_of_each_corpus(files):
    yaml = YAML + "  - {name: russian, source: mono.s, target: mono.t, target_language: ru}\n"
    write(files, "mono.s", ["a dog", "a man"])
    write(files, "mono.t", ["собака", "latin"])
    assert prepared(files, yaml, "--min-script-share", "0.9") == 0
    assert corpus.load(files / "out").manifest.corpora[-1].pairs["train"] == 1

"""The command: checkpoints and files in, a table or JSON out, and what a person did wrong.

Mostly on the two stand-ins for trained models in tests/copying.py: one copies its source, the other
stops after two tokens. So their translations are known, and so are their scores where the reference
is the source.
"""

import dataclasses
import gzip
import json
import os
import shutil
from pathlib import Path

import pytest
from sacrebleu.dataset import DATASETS

import copying
from hvd_nmt import evaluate, translate
from hvd_nmt.checkpoints import weights
from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.data import corpus
from hvd_nmt.translation import scoring
from toy import python


@pytest.fixture
def folder(copy_run, tmp_path, monkeypatch):
    """A working directory with the run, its source and some hypotheses."""
    monkeypatch.setattr(weights, "load_model", copying.load_model)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(copy_run, tmp_path / "run")
    write("source", copying.LINES)
    write("theirs", [line.replace("red", "green") for line in copying.LINES])
    return tmp_path


def write(name, lines):
    Path(name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


OURS = ("--run", "run", "--source", "source", "--reference", "source", "--checkpoint")


def told(capsys, *words):
    """The JSON that the command prints."""
    assert evaluate.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_checkpoints_and_files_are_scored_side_by_side(folder, capsys):
    found = told(capsys, *OURS, "copy", "short", "--hypotheses", "theirs", "--keep", "kept")
    assert [row["name"] for row in found["systems"]] == ["copy", "short", "theirs"]
    bleu, ter = ([row["scores"][name] for row in found["systems"]] for name in ("BLEU", "TER"))
    assert bleu[0]["score"] == pytest.approx(100)
    assert ter[0]["score"] == 0
    assert bleu[1]["score"] < bleu[2]["score"] < 100
    assert [row["p_value"] is None for row in bleu] == [True, False, False]
    (kept,) = RunDirectory(Path("run")).scores_of(
        "short"
    )  # its SHA-256, as tests/copying.py has it
    assert (kept["text"], kept["sentences"]) == ("source", len(copying.LINES))
    assert kept["scores"]["BLEU"] == bleu[1]["score"]
    assert bleu[1]["p_value"] < 0.05
    kept = {path.name: path.read_text().splitlines() for path in Path("kept").iterdir()}
    assert kept.keys() == {"copy.txt", "short.txt"}
    assert kept["copy.txt"] == copying.LINES
    pairs = zip(copying.LINES, kept["short.txt"], strict=True)
    assert all(line.startswith(short) for line, short in pairs)
    assert found["checkpoints"] == ["run/copy", "run/short"]
    assert (found["beam_size"], found["references"]) == (4, ["source"])
    assert found["seed"] == 12345


def test_words_are_found_as_in_training_or_by_script_or_as_asked(folder, capsys):
    def tokenizer(*words):
        return told(capsys, *words)["signatures"]["BLEU"].partition("tok:")[2].partition("|")[0]

    begun = '{"time_s": 1.0, "kind": "start"%s}\n'
    Path("run/metrics.jsonl").write_text(begun % "")  # before a tokenizer was recorded
    assert tokenizer(*OURS, "copy") == "13a"
    Path("run/metrics.jsonl").write_text(begun % ', "tokenizers": {"": "char"}')
    assert tokenizer(*OURS, "copy") == "char"
    assert evaluate.main([*OURS, "copy", "--tokenize", "intl", "--max-length", "4"]) == 0
    out = capsys.readouterr().out
    assert out.split()[:2] == ["system", "BLEU[intl]"]
    assert "\nTranslated source with beam 4, float32, --max-length 4.\n" in out
    assert out.endswith("dev sentences, beam 1, tokenizer char.\n")
    texts = {"zh": "我哋今日去商店。", "13a": "او کتاب‌ها را می‌خواند.", "char": "ฉันไปตลาดทุกเช้า"}
    for wanted, text in texts.items():
        write("text", [text] * 2)
        assert tokenizer("--reference", "text", "--hypotheses", "text") == wanted


def test_files_alone_need_no_run_and_no_tensorflow(tmp_path):
    right = copying.LINES
    for name, lines in (("a", right), ("b", right[1:] + right[:1]), ("r1", right), ("r2", right)):
        (tmp_path / name).write_bytes("".join(line + "\n" for line in lines).encode())
    (tmp_path / "a.gz").write_bytes(gzip.compress((tmp_path / "a").read_bytes()))
    code = (
        "import sys; from hvd_nmt import evaluate; code = evaluate.main(sys.argv[1:]);"
        "print('tensorflow' in sys.modules); sys.exit(code)"
    )
    words = ("--reference", "r1", "r2", "--hypotheses", "a.gz", "b")
    done = python("-W", "error", "-c", code, *words, cwd=tmp_path)
    assert done.stderr == ""
    *lines, with_tensorflow = done.stdout.splitlines()
    assert with_tensorflow == "False"
    assert [line.split()[0] for line in lines[1:3]] == ["a.gz", "b"]
    assert "nrefs:2|bs:1000|" in done.stdout
    assert "p=0.0010*" in lines[2]


def test_what_went_wrong_in_translating_is_told(folder, capsys, monkeypatch):
    write("source", ["dog", "the red house " * 30])
    assert evaluate.main([*OURS, "copy", "--beam-size", "1"]) == 0
    remark = "copy: source, line 2: 91 tokens, more than the 40 that the model reads: split into"
    assert capsys.readouterr().err.startswith(remark)
    step = copying.CopyModel.decode_step

    def nan(*given):
        logits, *others = step(*given)
        return logits + float("nan"), *others

    monkeypatch.setattr(copying.CopyModel, "decode_step", nan)
    write("source", ["", *["dog"] * 2])
    assert evaluate.main([*OURS, "copy"]) == 0
    said = "the model gave no translation (its weights may hold NaN)."
    told = capsys.readouterr().err.splitlines()
    assert told == [f"copy: source, line {number}: {said}" for number in (2, 3)]


FILES = ("--reference", "source", "--hypotheses")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((*OURS, "copy", "--keep", "kept", "--hypotheses", "kept/copy.txt"), 2,
         "--keep might write over kept/copy.txt"),
        ((*FILES, "latin"), 3, "latin, line 1: byte 0xe4 at column 2 is not UTF-8"),
        ((*FILES, "theirs", "long"), 3, "source has 30 lines, but long has 31: line i of one must"),
        ((*OURS, "copy", "none"), 4, "No checkpoint none: give best, latest, or"),
        ((*OURS, "copy", "--keep", "theirs"), 2, "theirs: File exists: fix that, or give anoth"),
        ((*OURS, "copy", "--part", "test"), 2, "--part test is of a run: remove"),
        ((*FILES, "theirs", "--keep", "kept"), 2, "--keep needs --run, the directory of a run."),
        ((*FILES, "theirs", "--backend", "ctranslate2"), 2, "--backend needs --run, the direct"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(words, code, says, folder, refused):
    Path("latin").write_bytes(b"h\xe4tte\n")
    write("long", [*copying.LINES, "dog"])
    Path("kept").mkdir()
    write("kept/copy.txt", copying.LINES)
    assert f"evaluate: {says}" in refused(code, evaluate, *words)
    assert Path("kept/copy.txt").read_text().splitlines() == copying.LINES


@pytest.fixture
def test_sets(tmp_path, monkeypatch):
    """Two small test sets where sacreBLEU looks for them; a server that is not there has others."""
    for name, fields in (("wmt20", ["ref"]), ("wmt20/tworefs", ["ref-0", "ref-1"])):
        folder = tmp_path / "sets" / name
        folder.mkdir(parents=True)
        monkeypatch.setattr(DATASETS[name], "_outdir", os.fspath(folder))
        for field in ("src", *fields, "docid", "genre", "origlang"):
            lines = [f"{line} {field.removeprefix('ref')}".strip() for line in copying.LINES[:5]]
            path = folder / f"{name.replace('/', '_')}.en-de.{field}"
            path.write_text("".join(line.removesuffix(" src") + "\n" for line in lines))
    monkeypatch.setattr(scoring, "SACREBLEU_DIR", os.fspath(tmp_path / "sets"))
    monkeypatch.setattr(DATASETS["wmt19"], "data", ["http://127.0.0.1:9/wmt19.tgz"])
    for name in ("_outdir", "_rawdir"):
        monkeypatch.setattr(DATASETS["wmt19"], name, os.fspath(tmp_path / "sets" / "wmt19"))


def test_a_test_set_by_its_name(folder, test_sets, toy_data, mixed_data, monkeypatch, capsys):
    words = ("--run", "run", "--checkpoint", "copy", "--test-set")
    first, *others = corpus.read_manifest(mixed_data).corpora
    several = [dataclasses.replace(first, target_language="fr"), *others]
    manifest = corpus.read_manifest(toy_data)
    data = [dataclasses.replace(manifest, corpora=several), manifest]
    monkeypatch.setattr(RunDirectory, "data", lambda run: (toy_data, data[-1]))
    found = told(capsys, *words, "wmt20")
    assert found["sentences"] == 5
    assert found["systems"][0]["scores"]["BLEU"]["score"] == pytest.approx(100)
    assert "|test:wmt20|lang:en-de|" in found["signatures"]["BLEU"]
    found = told(capsys, *words, "wmt20/tworefs:en-de")
    assert "nrefs:2|" in found["signatures"]["TER"]
    assert found["systems"][0]["scores"]["BLEU"]["score"] < 100
    for name, code, says in (
        ("wmt2O", 2, "no test set 'wmt2O' (did you mean 'wmt24'?): `sacrebleu --list` shows"),
        ("wmt20:en-xx", 2, "sacreBLEU's test set wmt20 has no en-xx, but cs-en, "),
        ("wmt19", 3, "sacreBLEU cannot get wmt19 ([Errno 111] Connection refused): see that"),
    ):
        assert evaluate.main([*words, name]) == code
        assert says in capsys.readouterr().err
    data.pop()
    assert evaluate.main([*words, "wmt20", "--to", "xx"]) == 2
    assert "The run has en-de, en-fr: add --to, one of the targets" in capsys.readouterr().err


LONGER = ("--length-penalty", "5")
"""a model of 40 steps finds nothing more probable than an empty translation"""


def test_checkpoints_are_translated_as_translate_does_on_the_run_s_own_dev_text(
    toy_run, toy_data, tmp_path, capsys
):
    run, kept = os.fspath(toy_run), tmp_path / "kept"
    names = ["model.ckpt-20", "model.ckpt-40"]
    found = told(capsys, "--run", run, "--checkpoint", names[0], "latest", "--beam-size", "2",
                 "--keep", os.fspath(kept), *LONGER)  # fmt: skip
    assert found["source"] == os.fspath(toy_data / "dev.en")
    assert found["references"] == [os.fspath(toy_data / "dev.de")]
    assert [row["name"] for row in found["systems"]] == names
    texts = [(kept / f"{name}.txt").read_text(encoding="utf-8") for name in names]
    out = tmp_path / "out"
    words = ("--run", run, "--checkpoint", "latest", "--beam-size", "2", "--output", os.fspath(out))
    assert translate.main([*words, "--input", found["source"], *LONGER]) == 0
    assert out.read_text(encoding="utf-8") == texts[1] != texts[0]


def test_best_is_the_default_and_a_missing_part_is_said(toy_run, capsys, refused):
    run = os.fspath(toy_run)
    (row,) = told(capsys, "--run", run, "--beam-size", "1")["systems"]
    assert row["name"] == find(toy_run, "best").name
    assert row["name"].startswith("val_loss=")
    said = refused(3, evaluate, "--run", run, "--part", "test")
    assert "has no test text to score" in said

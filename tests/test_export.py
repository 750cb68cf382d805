"""The command: a run in, a model for others out, compared with the run."""

import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import hvd_nmt
import toy
from hvd_nmt import evaluate, export
from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.names import SUFFIXES, file
from hvd_nmt.data import corpus
from hvd_nmt.formats import shortlist
from hvd_nmt.formats.card import card as card_of
from hvd_nmt.model.tokenizer import Tokenizer
from hvd_nmt.translation.settings import Settings

GOLDEN = Path(__file__).resolve().parent / "golden"
PATH = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_text("the old man\n\na dog sings\n")
    return path


def end_without_a_reader(out):
    """How `translate.py` of an export ends when nobody reads any more: its exit code and stderr."""
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as pipe:
        words = [sys.executable, out / "translate.py"]
        done = subprocess.run(words, input=b"dog\n", stdout=pipe, stderr=subprocess.PIPE)
    return done.returncode, done.stderr.decode()


@pytest.mark.both_tensorflows
def test_ctranslate2_is_written_explained_and_compared(tmp_path, capsys):
    out, run = tmp_path / "model", GOLDEN / "run"
    words = ["--run", str(run), "--to", "ctranslate2", "--out", str(out)]
    assert export.main([*words, "--verify-on", str(GOLDEN / "source.en")]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "reading     " in said.out
    assert f"written     {out}, " in said.out
    assert re.search(rf"verified    (\d+) of \1 lines are translated as {run} does", said.out)
    assert (out / "README.txt").read_text() in said.out
    code = said.out[said.out.index("import sys") :].partition("\n\n")[0]
    done = toy.python("-c", code, cwd=tmp_path)
    line = (GOLDEN / "data" / "dev.en").read_text().splitlines()[0]
    assert f"translate([{line!r}])" in code
    assert done.stdout == f"{export.translated([line], out)}\n"
    assert end_without_a_reader(out) == (0, "")
    program = [sys.executable, out / "translate.py"]
    refused = subprocess.run([*program, "--beam"], capture_output=True, text=True)
    fault = "translate.py takes no argument '--beam': run python translate.py < in.txt > out.txt.\n"
    assert (refused.returncode, refused.stderr) == (2, fault)
    with open("/dev/full", "wb") as full:
        lost = subprocess.run(program, input=b"dog\n", stdout=full, stderr=subprocess.PIPE)
    assert (lost.returncode, lost.stderr[:12]) == (2, b"Cannot write")
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as alone:
        for line in (b"dog\n", b"the old man\n"):  # each is answered before the next one comes
            os.write(alone.stdin.fileno(), line)
            assert alone.stdout.readline().strip()
    assert export.main(words) == 2
    assert capsys.readouterr().err == (
        f"hvd_nmt.export: {out} already exists: choose another --out, or remove it first.\n"
    )


def test_a_shortlist_limits_what_the_export_translates_to(tmp_path, capsys, monkeypatch, refused):
    run, out = shutil.copytree(GOLDEN, tmp_path / "golden") / "run", tmp_path / "model"
    words = ["--run", str(run), "--to", "ctranslate2", "--out", str(out), "--shortlist"]
    assert export.main([*words, "--verify-on", str(run.parent / "data" / "dev.en")]) == 0
    assert re.search(r"verified    2\d of 24 lines", capsys.readouterr().out), "of 24 it was 22"
    lines = ["the old man", "a dog sings"]
    settings = Settings(backend="ctranslate2", shortlist=True)
    model = hvd_nmt.load(run, settings=settings)
    assert [*model.stream(lines)] == export.translated(lines, out)
    (exports,) = (run / "exports").glob("ctranslate2-float32-shortlist-*")
    assert (exports / shortlist.FILE).read_bytes() == (out / shortlist.FILE).read_bytes()
    assert "| shortlist | vmap.txt: " in (out / "README.md").read_text()
    scored = ["--run", str(run), "--backend", "ctranslate2", "--shortlist"]
    assert evaluate.main([*scored, "--beam-size", "1"]) == 0
    assert "1, float32, --backend ctranslate2, --shortlist.\n" in capsys.readouterr().out
    letter = next(piece for piece in Tokenizer(run / "spm.model").pieces if piece.isalpha())
    (out / shortlist.FILE).write_text(f"\t{letter}\n")
    for line in export.translated(lines, out):
        assert set(line) <= {*letter, *" \u2047"}, "nothing but the candidates and unk"
    monkeypatch.setattr(corpus.DataManifest, "directions", [("en", "de"), ("en", "fr")])
    words[words.index(str(out))] = str(tmp_path / "of-two")
    assert "and --shortlist is for one" in refused(2, export, *words)


@pytest.mark.both_tensorflows
def test_saved_model_is_written_and_compared_on_given_text(toy_run, text, tmp_path, capsys):
    words = ["--run", str(toy_run), "--to", "saved-model", "--out", str(tmp_path / "model")]
    assert export.main([*words, "--verify-on", str(text), "--beam-size", "1"]) == 0
    said = capsys.readouterr()
    assert f"verified    2 of 2 lines are translated as {toy_run} does" in said.out
    shown = subprocess.run(
        ["bash", "-c", re.search(r'python -c "import.*?\n\n', said.out, re.DOTALL)[0]],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": PATH},
    )  # fmt: skip
    assert "serving_default" in shown.stdout, shown.stderr
    code, stderr = end_without_a_reader(tmp_path / "model")
    assert (code, "BrokenPipe" in stderr) == (0, False), stderr


def test_a_run_to_send_translates_without_moments(toy_run, text, tmp_path, capsys):
    out = tmp_path / "a b"
    words = ["--run", str(toy_run), "--to", "run", "--out", str(out), "--license", "cc-by-4.0"]
    assert export.main([*words, "--verify-on", str(text)]) == 0
    said = capsys.readouterr().out
    assert f"verified    2 of 2 lines are translated as {toy_run} does" in said
    assert "python -m hvd_nmt.translate --run 'a b' <" in said
    n_bytes = [path.stat().st_size for run in (out, toy_run) for path in run.glob("*.data-*")]
    assert n_bytes[0] < 0.4 * n_bytes[-1]
    card = (out / "README.md").read_text()
    for words in (
        'license: "cc-by-4.0"', "# English to German", "step 40",
        sha256(file(find(toy_run, "best"), SUFFIXES[0]).read_bytes()).hexdigest(),
        r"nrefs:1\|case:mixed", "It reads letters of Latin", "| train | ",
    ):  # fmt: skip
        assert words in card
    assert "not named" in (card_of(toy_run, find(toy_run, "best")))


@pytest.mark.long
def test_every_kind_of_piece_goes_all_the_way(toy_commands, tmp_path, capsys):
    """A unigram vocabulary with bytes and symbols: train and two exports."""
    more = ("--vocabulary-type", "unigram", "--byte-fallback", "--vocabulary-size", "360",
            "--character-coverage", "0.98", "--user-defined-symbols", "<ph>", "street")  # fmt: skip
    data = toy.toy_data(tmp_path, more=more)
    done = toy_commands.train(
        *toy.train_options(data, tmp_path / "run", 30), cwd=tmp_path, eager=True
    )
    assert done.returncode == 0, done.stderr
    tokenizer, lines = Tokenizer(tmp_path / "run" / "spm.model"), corpus.load(data).text("dev")[1]
    ids = tokenizer.encode(lines)
    dev = corpus.load(data).dev.target
    assert [i.tolist() for i in ids] == [i.tolist() for i in dev], "as SentencePiece"
    assert any(tokenizer.pieces[i].startswith("<0x") for i in np.concatenate(ids))
    assert tokenizer.decode(ids) == lines
    (tmp_path / "text").write_text("the old <ph> man\n\na street\n\u65e5 \U0001f600 dog <0xE6>\n")
    for to in ("ctranslate2", "saved-model"):
        words = ["--run", tmp_path / "run", "--to", to, "--out", tmp_path / to]
        words += ["--verify-on", tmp_path / "text", "--beam-size", "1", "--length-penalty", "5"]
        assert export.main([*map(str, words)]) == 0
        assert "verified    3 of 3 lines are translated as" in capsys.readouterr().out


def test_mistakes_are_one_sentence_and_an_exit_code(toy_run, tmp_path, refused):
    words = ["--to", "ctranslate2", "--out", str(tmp_path / "x")]
    alone = shutil.copytree(GOLDEN / "run", tmp_path / "alone")
    for more, code, message in (
        (["--run", str(tmp_path / "none")], 4, f"{tmp_path / 'none'} does not exist: give"),
        (["--run", str(toy_run), "--verify-on", str(tmp_path / "t")], 3, "Cannot read"),
        (["--run", str(toy_run), "--verify-on", os.devnull], 3, "has no text: give"),
        (["--run", str(toy_run), "--languages", "en-de"], 2, "en-de needs --to argos"),
        (["--run", str(toy_run), "--to", "run", "--shortlist"], 2, "needs --to ctranslate2"),
        (["--run", str(alone), "--shortlist"], 3, "on this machine: copy them there, or run this"),
        (["--run", str(alone), "--out", f"{alone}/spm.model/x/y"], 2, "spm.model is no directory"),
    ):
        assert message in refused(code, export, *words, *more)
    assert not (tmp_path / "x").exists()

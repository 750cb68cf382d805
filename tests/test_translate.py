"""The command: N lines in, N lines out, whatever they hold.

A model that copies its source stands in for a trained one, so the right output of each line is the
text that the tokenizer makes of its own ids.
"""

import gzip
import io
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import tensorflow as tf

from hvd_nmt import translate
from hvd_nmt.config import EOS, PAD
from hvd_nmt.errors import ConfigError, RunError
from hvd_nmt.model.tokenizer import Tokenizer

MAX_LENGTH = 40

TRAIN_VOCABULARY = """
import random, sys
from hvd_nmt.data import subwords
words = "the a man woman dog runs sees in on with red blue house street".split()
text = [" ".join(random.Random(i).choices(words, k=9)) for i in range(300)]
open(sys.argv[1], "wb").write(subwords.train(text, 100))
"""

HOSTILE = [
    b"a man sees the dog",
    b"",
    b"   \t ",
    b"\xff\xfe a \xc3",
    b"zero\x00byte",
    b"a\rman\r",
    "a\u2028man\u2029in\x85the\x0bhouse".encode(),
    b"the red house " * 80_000,  # 1 MB
    b"x" * 1_000_000,
    "日本語 😀".encode(),
    b"\xed\xa0\x80 surrogate",
    b"</s> <pad> <s>",
    b"dog",
]


class CopyModel:
    """A stand-in for Transformer that translates every sentence into itself."""

    max_length = MAX_LENGTH

    def __init__(self, vocabulary_size):
        self.vocabulary_size = vocabulary_size

    def encode(self, source_BxS):
        return tf.pad(source_BxS, [[0, 0], [0, MAX_LENGTH]])  # room for every position

    def initial_cache(self, rows):
        return ()

    def decode_step(self, ids_N, position, memory, cache):
        token_B = memory[:, position]
        token_B = tf.where(token_B == PAD, EOS, token_B)
        token_N = tf.repeat(token_B, tf.size(ids_N) // tf.size(token_B))
        return tf.one_hot(token_N, self.vocabulary_size, on_value=20.0), cache


def load_copy_model(run_dir, which):
    if which != "best":
        raise RunError(f"There is no checkpoint {which}.")
    size = Tokenizer(run_dir / "spm.model").vocabulary_size
    return CopyModel(-(-size // 8) * 8), 100


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run directory with a vocabulary (the wheel must not share a process with TensorFlow)."""
    run = tmp_path_factory.mktemp("run")
    subprocess.run([sys.executable, "-c", TRAIN_VOCABULARY, run / "spm.model"], check=True)
    return run


@pytest.fixture
def run(trained, monkeypatch):
    weights = types.SimpleNamespace(load_model=load_copy_model)
    monkeypatch.setitem(sys.modules, "hvd_nmt.training.weights", weights)
    return trained


@pytest.fixture
def pipe(run, monkeypatch, capsysbinary):
    """Run the command on bytes from stdin: exit code, bytes on stdout, text on stderr."""

    def command(data, *options):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = translate.main(["--run", str(run), *options])
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return command


def expected(run, lines):
    """What a perfect copy of each line looks like."""
    tokenizer = Tokenizer(run / "spm.model")
    ids = tokenizer.encode(lines)
    return [text + "\n" for text in tokenizer.decode(line[: MAX_LENGTH - 1] for line in ids)]


def test_lines_keep_their_order(run, pipe, monkeypatch):
    chunks = translate.chunks
    monkeypatch.setattr(translate, "chunks", lambda lines: chunks(lines, 7))
    words = ["dog", "red", "house", "man", "blue", "street"]
    lines = [" ".join(words[i % 6 : i % 5 + i % 6 + 1]) for i in range(60)]
    code, out, err = pipe("\n".join(lines).encode(), "--batch-tokens", "30")
    assert (code, err) == (0, "")
    assert out.decode().splitlines(keepends=True) == expected(run, lines)
    assert [line.strip() for line in out.decode().splitlines()] == lines


def test_every_kind_of_line_gives_one_line(run, pipe):
    code, out, err = pipe(b"\n".join(HOSTILE) + b"\n")
    assert code == 0
    lines = out.decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(HOSTILE)
    assert lines == out.decode().splitlines()  # no other separator either
    assert (lines[0], lines[1], lines[2], lines[-1]) == ("a man sees the dog", "", "", "dog")
    assert "\0" not in out.decode()
    assert lines[7] == expected(run, [HOSTILE[7].decode()])[0].rstrip("\n")
    notes = err.splitlines()
    assert [note.split(":")[0] for note in notes] == ["stdin, line 8", "stdin, line 9"]
    assert notes[0].endswith(": 1,120,000 characters, cut to the model's 40 tokens.")


@pytest.mark.parametrize(("data", "lines"), [(b"", 0), (b"\n", 1), (b"\n\n\n", 3), (b"dog", 1)])
def test_small_inputs(pipe, data, lines):
    code, out, err = pipe(data)
    assert (code, err) == (0, "")
    assert out == (b"dog\n" if data == b"dog" else b"\n" * lines)


def test_files_plain_and_compressed(run, tmp_path):
    source, target = tmp_path / "in.gz", tmp_path / "out.gz"
    source.write_bytes(gzip.compress(b"\xef\xbb\xbfa man\r\nthe dog\r\n"))
    words = ["--run", str(run), "--beam-size", "1", "--input", str(source), "--output"]
    assert translate.main([*words, str(target)]) == 0
    assert gzip.decompress(target.read_bytes()) == b"a man\nthe dog\n"
    assert translate.main([*words, str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_bytes() == b"a man\nthe dog\n"


def test_mistakes_are_one_sentence_and_an_exit_code(run, pipe, tmp_path):
    text = tmp_path / "text"
    text.write_text("dog\n")
    for options, code, message in [
        (["--input", str(tmp_path / "none")], 3, f"There is no file {tmp_path / 'none'}."),
        (["--input", str(text), "--output", str(text)], 2, f"{text} is the input: give the outp"),
        (["--output", str(tmp_path / "a/b")], 2, f"{tmp_path / 'a/b'} cannot be written: No such"),
        (["--checkpoint", "latest"], 4, "There is no checkpoint latest."),
    ]:
        found, out, err = pipe(b"dog\n", *options)
        assert (found, out) == (code, b"")
        assert err.startswith(f"hvd_nmt.translate: {message}")
        assert err.count("\n") == 1
    assert text.read_text() == "dog\n"


@pytest.mark.parametrize("bad", [{"beam_size": 0}, {"batch_tokens": 0}, {"length_penalty": -1.0}])
def test_refuses_options_out_of_range(bad):
    with pytest.raises(ConfigError, match="--" + next(iter(bad)).replace("_", "-")):
        translate.Options(run=Path("run"), **bad)


def test_out_of_memory_names_the_option(pipe, monkeypatch):
    def fail(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    monkeypatch.setattr(CopyModel, "encode", fail)
    code, _, err = pipe(b"dog\n")
    assert code == 2
    assert "--batch-tokens 4096 with --beam-size 4 needs more memory" in err


def test_sentence_without_translation_is_an_empty_line(pipe, monkeypatch):
    nan = lambda self, ids_N, position, memory, cache: (
        tf.fill([tf.size(ids_N), self.vocabulary_size], float("nan")),
        cache,
    )
    monkeypatch.setattr(CopyModel, "decode_step", nan)
    code, out, err = pipe(b"\ndog\n")
    assert (code, out) == (0, b"\n\n")
    assert err.startswith("stdin, line 2: the model gave no translation")


def test_chunks_fit_into_memory():
    lines = ["a" * 10] * 25 + ["b" * 1000] * 3 + [""] * 5
    found = list(translate.chunks(lines, most_lines=10, most_characters=500))
    assert [line for chunk in found for line in chunk] == lines
    assert [len(chunk) for chunk in found] == [10, 10, 6, 1, 1, 5]
    assert list(translate.chunks([])) == []


def test_help_and_mistyped_options_do_not_wait_for_tensorflow():
    check = (
        "import sys; from hvd_nmt import translate\n"
        "try: translate.main(sys.argv[1:])\n"
        "finally: assert 'tensorflow' not in sys.modules"
    )
    for words, code in ((["--help"], 0), (["--run", "x", "--beem-size", "3"], 2)):
        done = subprocess.run([sys.executable, "-c", check, *words], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert "--beam-size" in done.stdout + done.stderr


def test_reader_that_has_enough_ends_the_command_quietly(trained):
    script = (
        "import sys, types; sys.path.insert(0, sys.argv.pop(1)); import test_translate as t\n"
        "weights = types.SimpleNamespace(load_model=t.load_copy_model)\n"
        "sys.modules['hvd_nmt.training.weights'] = weights\n"
        "t.translate.CHUNK_LINES = 1\n"
        "sys.exit(t.translate.main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, os.path.dirname(__file__), "--run", trained],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    process.stdout.close()
    process.stdin.write(b"dog\n" * 1000)
    process.stdin.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 0, err
    assert "Traceback" not in err
    assert "Broken pipe" not in err

"""The command: N lines in, N lines out, whatever they hold, whoever interrupts it.

Mostly with a model that copies its source (tests/copying.py), so the right output is known.
"""

import gzip
import lzma
import random
import signal
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import copying
from hvd_nmt import translate
from hvd_nmt.checkpoints import weights
from toy import python


@pytest.fixture
def run(copy_run, monkeypatch):
    monkeypatch.setattr(weights, "load_model", copying.load_model)
    return copy_run


@pytest.fixture
def copied(run):
    """Run the command with the copying model; its exit code."""

    def command(*options):
        return translate.main(["--run", str(run), "--checkpoint", "copy", *map(str, options)])

    return command


@pytest.fixture
def pipe(copied, monkeypatch, capsysbinary, tmp_path_factory):
    """Run the command on bytes from stdin: exit code, bytes on stdout, text on stderr."""

    def command(data, *options):
        given = tmp_path_factory.mktemp("stdin") / "stdin"
        given.write_bytes(data)
        with given.open() as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            code = copied(*options)
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return command


@pytest.fixture
def forked(run, toy_commands, tmp_path):
    """The same in a process of its own, in which something is changed before."""

    def command(change, *options, **more):
        words = (copying.__file__, "--run", str(run), "--checkpoint", "copy", *options)
        return toy_commands.run(WITH_COPIES.format(change=change), *words, cwd=tmp_path, **more)

    return command


def test_a_long_line_is_split_and_nothing_is_lost(pipe):
    line = "the red house on a man " * 30 + "dog"
    code, out, err = pipe(f"dog\n{line}\n".encode(), "--beam-size", "1")
    assert (code, out.decode()) == (0, f"dog\n{line}\n")
    assert err.startswith("stdin, line 2: 182 tokens, more than the 40 that the model reads: split")


def fuzzed(count, seed):
    """Lines of random bytes, text of many scripts, controls, and one of a megabyte."""
    chance = random.Random(seed)
    alphabets = [
        bytes(range(0x20)).replace(b"\n", b""), bytes(range(256)).replace(b"\n", b""),
        b"the red dog", "äß€漢字かなحروفשלום".encode(),
        "😀👩‍👩‍👧🇩🇪\u202e\u200f\u2028\ufeff".encode(),
        b"<s></s>\xc3\xed\xa0\x80\x00\r", b"   \t\xc2\xa0",
    ]  # fmt: skip
    lines = []
    for _ in range(count - 1):
        alphabet = chance.choice(alphabets)
        lines.append(bytes(chance.choices(alphabet, k=chance.choice((0, 1, 5, 30)))))
    lines.insert(count // 2, b"the red dog \xff\x00" * 70_000)
    return lines


@pytest.mark.parametrize("end", [b"", pytest.param(b"\n", marks=pytest.mark.long)])
def test_10_000_fuzzed_lines_in_are_10_000_lines_out(copied, tmp_path, capsys, end):
    source, target = tmp_path / "in", tmp_path / "out"
    lines = [*fuzzed(10_000 - 1, len(end)), b"dog"]
    source.write_bytes(b"\n".join(lines) + end)
    files = ("--input", source, "--output", target)
    assert copied("--beam-size", "1", "--batch-tokens", "60000", *files) == 0
    found = target.read_bytes().decode().split("\n")
    assert found.pop() == ""
    assert len(found) == len(lines) == 10_000
    assert found == "\n".join(found).splitlines()
    blank = [not line.strip(bytes(range(33))) for line in lines]
    assert all(not text for text, empty in zip(found, blank, strict=True) if empty)
    assert found[-1] == "dog"
    assert "line 5000: " in capsys.readouterr().err


@pytest.mark.parametrize(("data", "lines"), [(b"", 0), (b"\n", 1), (b"\n\n\n", 3), (b"dog", 1)])
def test_small_inputs(pipe, data, lines):
    code, out, err = pipe(data)
    assert (code, err) == (0, "")
    assert out == (b"dog\n" if data == b"dog" else b"\n" * lines)


def test_files_plain_and_compressed(copied, tmp_path):
    source, target = tmp_path / "in.gz", tmp_path / "out.gz"
    source.write_bytes(gzip.compress(b"\xef\xbb\xbfa man\r\nthe dog\r\n"))
    assert copied("--beam-size", "1", "--input", source, "--output", target) == 0
    assert gzip.decompress(target.read_bytes()) == b"a man\nthe dog\n"
    assert copied("--beam-size", "1", "--input", source, "--output", tmp_path / "out") == 0
    assert (tmp_path / "out").read_bytes() == b"a man\nthe dog\n"
    assert {path.name for path in tmp_path.iterdir()} == {"in.gz", "out.gz", "out"}


def test_mistakes_are_one_sentence_and_an_exit_code(run, pipe, tmp_path):
    text = tmp_path / "text"
    text.write_text("dog\n")
    inputs = ("--input", str(text))
    missing = f"Cannot write {tmp_path}/a/b (No such file or directory): make its directory, or"
    for options, code, message, *given in [
        ([], 3, "stdin is compressed: unpack it, or give a", b"\x1f\x8b\x08\x00 dog"),
        ([], 3, "stdin is UTF-16, not UTF-8: convert it with", "dog\n".encode("utf-16")),
        (["--input", str(tmp_path / "none")], 3, f"There is no file {tmp_path / 'none'}: check"),
        ([*inputs, "--output", str(text)], 2, f"{text} is the input: give the outp"),
        (["--output", str(tmp_path / "a/b")], 2, missing),
        (["--checkpoint", "latest"], 4, f"{run} has no checkpoint"),
        (["--n-best", "2"], 2, "--n-best gives several translations of a line: add --json."),
    ]:
        found, out, err = pipe(*given or [b"dog\n"], *options)
        assert found == code, err
        assert out == b""
        assert err.startswith(f"hvd_nmt.translate: {message}")
        assert err.count("\n") == 1
    assert text.read_text() == "dog\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    part = text.rename(tmp_path / "text.part")  # what an output of the name `text` would write over
    code, _, err = pipe(b"", "--input", str(part), "--output", str(text))
    assert (code, part.read_text()) == (2, "dog\n")
    assert err.startswith(f"hvd_nmt.translate: {part} is the input")


def test_out_of_memory_and_a_closed_stdout_are_said(pipe, monkeypatch):
    def fail(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    monkeypatch.setattr(copying.CopyModel, "encode", fail)
    code, _, err = pipe(b"dog\n")
    assert code == 2
    assert "--batch-tokens 4096 with --beam-size 4 needs too much memory" in err
    monkeypatch.setattr(sys, "__stdout__", None)
    code, _, err = pipe(b"dog\n")
    assert (code, err) == (2, "hvd_nmt.translate: The standard output is closed: give --output.\n")


def test_empty_translations_are_counted(pipe, monkeypatch):
    monkeypatch.setattr(copying, "TOKENS_OF_SHORT", 0)
    code, out, err = pipe(b"\ndog\n \nred man\n", "--checkpoint", "short")
    assert (code, out) == (0, b"\n" * 4)
    assert err == "stdin: empty translations of lines that are not empty: 2.\n"


def test_help_and_mistakes_do_not_wait_for_tensorflow():
    check = (
        "import sys, hvd_nmt.prepare\n"
        "from hvd_nmt import average, bench, convert, evaluate, export, train, translate\n"
        "commands = (translate, evaluate, bench, export, convert, average)\n"
        "for words in (['--help'], ['--run', 'x', '--beem-size', '3', '--lats', '3']):\n"
        "    for command in commands:\n"
        "        try: print(command.main(words), file=sys.stderr)\n"
        "        except SystemExit as end: print(end.code, file=sys.stderr)\n"
        "for command, words in (\n"
        "    (average, '--run x --last 3 --best 2'),\n"
        "    (translate, '--run x --backend ctranslate2 --sample'),\n"
        "    (train, '--data.corpus files --data.directory nowhere'),\n"
        "): print(command.main(words.split()), file=sys.stderr)\n"
        "for command in (translate, average, export):  # of what is no run\n"
        "    words = ['--to', 'ctranslate2', '--out', 'y'] if command is export else []\n"
        "    print(command.main(['--run', 'x', *words]), file=sys.stderr)\n"
        "assert 'tensorflow' not in sys.modules"
    )
    done = python("-c", check)
    assert "Traceback" not in done.stderr
    codes = [line for line in done.stderr.splitlines() if line in ("0", "2", "3", "4")]
    assert codes == ["0"] * 6 + ["2"] * 8 + ["3"] + ["4"] * 3
    for option in ("--beam-size", "--last"):
        assert option in done.stdout
        assert option in done.stderr


# What the tests below run in a process of its own, with the copying model in it.
WITH_COPIES = """
import os, signal, sys
sys.path.insert(0, os.path.dirname(sys.argv.pop(1)))
import copying
from hvd_nmt import translate
from hvd_nmt.checkpoints import weights
from hvd_nmt.translation import engine, file_job
weights.load_model = copying.load_model
{change}
sys.exit(translate.main(sys.argv[1:]))
"""
CLOSED_STDOUT = """
engine.CHUNK_LINES = 1
reads, writes = os.pipe()
os.close(reads)
os.dup2(writes, 1)
sys.stdout = open(1, "w")
"""
KILLED = """
write = file_job.Output.write
def killing(self, rows):
    if self.lines_done == 14:
        self.stream.write(b"half a li")
        self.stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, rows)
file_job.Output.write = killing
"""


def test_reader_that_has_enough_ends_the_command_quietly(forked):
    done = forked(CLOSED_STDOUT, input="dog\n" * 50)
    assert (done.returncode, done.stderr) == (0, "")


def test_kill_9_in_the_middle_loses_and_doubles_no_line(forked, tmp_path):
    path, part = tmp_path / "out.xz", tmp_path / "out.xz.part"
    lines = [f"{line} dog" for line in copying.LINES * 2]
    Path(tmp_path / "in").write_text("\n".join(lines))
    files = ("--beam-size", "1", "--input", "in", "--output", "out.xz")

    def start(change, *more):
        return forked("engine.CHUNK_LINES = 7\n" + change, *files, *more)

    path.write_text("older")
    assert start(KILLED).returncode == -signal.SIGKILL
    assert part.read_bytes().endswith(b"half a li")
    assert path.read_text() == "older"
    resumed = start("""
search = engine.Engine.search
def counted(self, lines, first, *more):
    print(first, len(lines))
    return search(self, lines, first, *more)
engine.Engine.search = counted
""")
    assert resumed.returncode == 0
    assert resumed.stderr == f"{part} has 14 lines: continuing after them.\n"
    done = [list(map(int, line.split())) for line in resumed.stdout.splitlines()]
    assert done[0][0] == 15  # two chunks were known to be whole
    assert sum(count for _, count in done) == len(lines) - 14
    assert lzma.decompress(path.read_bytes()).decode().splitlines() == lines
    assert not part.exists()

"""What commands say while they work, on a terminal and in a file: short lines, and no noise."""

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import toy

COLUMNS = 100
NOISE = re.compile(r"tensorflow/|absl|oneDNN|cuda|WARNING|INFO|Warning|Traceback|^[IWEF]\d{4} ")
MARKDOWN = re.compile(r"^\s*\|.*\|\s*$|\*\*|^#+ |--\|--")
CLEAR = "\r\x1b[K"


def said_by(command: list[str], cwd: Path, on_terminal: bool) -> str:
    """Its stdout and stderr, on a terminal of `COLUMNS` or in a file."""
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    if on_terminal:
        termios.tcsetwinsize(theirs, (40, COLUMNS))
    environment = toy.environment(cwd)
    del environment["TF_CPP_MIN_LOG_LEVEL"]
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError), open(ours, "rb", 0) as stream:  # EIO ends a terminal
        while data := stream.read(1 << 16):
            said += data
    assert process.wait(600) == 0, said.decode()
    return said.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module", params=[True, False], ids=["terminal", "file"])
def said(request, toy_commands, toy_data, toy_run, tmp_path_factory) -> dict[str, str]:
    """What commands say, by their names."""
    cwd = tmp_path_factory.mktemp("said")
    for name, folder in (("text", toy_data.parent), ("trained", toy_run)):
        (cwd / name).symlink_to(folder)
    (cwd / "in.en").write_bytes(b"the man sees a dog\n" * 50 + b"the \xff man\n")
    files = ["--train-source", "text/train.en", "--train-target", "text/train.de"]
    files += ["--dev-source", "text/dev.en", "--dev-target", "text/dev.de"]
    real, own = [sys.executable, "-m"], toy_commands.command
    train = toy.train_options(toy_data, "run", 30, "--evaluation.every-steps", "15")
    run = ["--run", "trained"]
    commands = {
        "prepare": [*real, "hvd_nmt.prepare", "--out", "data", *files],
        "train": [*real, "hvd_nmt.train", *train],
        "translate": [*own("hvd_nmt.translate"), *run, "--input", "in.en"],
        "evaluate": [*own("hvd_nmt.evaluate"), *run, "--checkpoint", "best", "latest"],
        "export": [*own("hvd_nmt.export"), *run, "--to", "saved-model", "--out", "exported"],
        "report": [*own("hvd_nmt.report"), "trained", "--output", "."],
    }
    found = {}
    if not request.param:
        del commands["train"]
        found["train"] = "".join(path.read_text() for path in toy_run.glob("std*.txt"))
    return found | {
        name: said_by(command, cwd, request.param) for name, command in commands.items()
    }


def test_lines_are_short_and_without_noise_and_markdown(said: dict[str, str]) -> None:
    _require_plain(said)


@pytest.mark.long
@pytest.mark.parametrize("on_terminal", [True, False], ids=["terminal", "file"])
def test_so_are_those_of_make_train(on_terminal: bool, tmp_path: Path) -> None:
    (tmp_path / "launch").mkdir()
    shutil.copy(toy.ROOT / "launch/demo.sh", tmp_path / "launch")
    command = ["env", f"VENV={sys.prefix}", "launch/demo.sh", "runs/demo"]
    text = said_by([*command, "--training.max-steps", "20"], tmp_path, on_terminal)
    assert "step 20/20" in text
    _require_plain({"make train": text})


def _require_plain(said: dict[str, str]) -> None:
    for name, text in said.items():
        for line in re.split("[\r\n]", text.replace("\x1b[K", "")):
            assert len(line) <= COLUMNS, (name, line)
            assert not MARKDOWN.search(line), (name, line)
            assert not NOISE.search(line), (name, line)


def test_a_line_moves_on_a_terminal_and_a_file_has_one_a_step(said: dict[str, str]) -> None:
    train = said["train"]
    if CLEAR in train:
        assert re.findall(r"\x1b\[Kstep \d+/30 +loss .* tokens/s .* left  epoch .*\r", train)
        assert not re.findall(r"step \d+/30 [^\r]* left [^\r]*\n", train)
        assert all("\r" in said[name] for name in ("prepare", "translate", "evaluate", "report"))
    else:
        steps = re.findall(r"^step (\d+)/40 +loss .* tokens/s .* left  epoch .*$", train, re.M)
        assert [int(step) for step in steps] == list(range(1, 41))
        assert not any("\r" in text or "\x1b" in text for text in said.values())
    stay = re.findall(r"^(?:.*\x1b\[K)?(checkpoint|evaluation)  step (\d+)  (\w+)", train, re.M)
    last = "30" if CLEAR in train else "40"
    assert stay[-2:] == [("checkpoint", last, "saved"), ("evaluation", last, "validation")]


def test_what_a_newcomer_would_miss_is_said(said: dict[str, str]) -> None:
    assert "8,000 were asked for: the text has no more" in said["prepare"]
    assert "1 line had characters that are not UTF-8, and lost them" in said["translate"]
    assert re.search(r"Trained to step \d+ in .*; this command\s+took ", said["train"])

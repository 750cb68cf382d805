"""One name for all commands."""

import configparser
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import hvd_nmt
from hvd_nmt import __main__ as front
from hvd_nmt import translate
from toy import python

ROOT = Path(__file__).resolve().parent.parent


def test_it_lists_the_commands_with_a_line_each(capsys, golden_page):
    for argv in ([], ["--help"], ["-h"]):
        assert front.main(argv) == 0
        golden_page("commands.txt", capsys.readouterr().out)
    assert front.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hvd_nmt {hvd_nmt.__version__}\n"


def test_every_module_with_a_main_is_a_command():
    modules = {
        path.stem
        for path in Path(hvd_nmt.__file__).parent.glob("[!_]*.py")
        if "\ndef main(" in path.read_text(encoding="utf-8")
    }
    assert set(front.COMMANDS) == modules


def test_an_unknown_name_is_one_sentence(capsys):
    assert front.main(["config", "--help"]) == 2  # a module that is no command
    said = "There is no command 'config'. The commands are prepare, train, "
    assert capsys.readouterr().err.startswith(f"hvd-nmt: {said}")


def test_the_command_gets_the_other_words_and_gives_the_exit_code(monkeypatch):
    calls = []
    monkeypatch.setattr(translate, "main", lambda argv: calls.append(argv) or 75)
    assert front.main(["translate", "--run", "x", "--help"]) == 75
    assert calls == [["--run", "x", "--help"]]


@pytest.mark.parametrize("name", front.COMMANDS)
def test_a_help_is_a_page_with_examples_and_a_line_for_each_option(name, help_of):
    """Its options are those of --help-all; what --help-all explains, it need not."""
    said = help_of(name, "--help")
    lines = said.splitlines()
    assert len(lines) <= 60
    assert [line for line in lines if len(line) > 100] == []
    assert lines[2].startswith(f"    python -m hvd_nmt.{name}")
    assert "Exit codes: 0 done" in lines[-2]
    shown = re.findall(r"^  (--[a-z][\w.-]*)(.*(?:\n {35}.*)?)$", said, re.MULTILINE)
    rows = [row for row in shown if row[0] not in ("--preset", "--config")]
    assert rows
    assert ("saved-model, ctranslate2, argos or run (required)" in said) == (name == "export")
    for option, rest in rows:
        assert re.search(rf"{re.escape(option)}\b", help_of(name)), option
        assert re.search(r" {2,}\S", rest), f"{option} has no meaning"
        choices = re.search(rf"{re.escape(option)} \{{([^}}]+)\}}[ \n]", help_of(name))
        for choice in re.split(r"[,│\s]+|None", choices[1]) if choices else ():
            assert choice in rest, f"{option} does not show {choice}"


def test_a_python_without_the_packages_gets_a_sentence():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-S", "-m", "hvd_nmt.prepare", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "source .venv/bin/activate" in done.stderr


def test_python_dash_m_and_listing_without_heavy_modules():
    code = """
import sys, runpy, hvd_nmt.config
sys.argv = ["hvd_nmt"]
try:
    runpy.run_module("hvd_nmt", run_name="__main__")
except SystemExit as stopped:
    print("code", stopped.code)
print("heavy", {"tensorflow", "numpy", "sentencepiece", "horovod"} & set(sys.modules))
"""
    assert "code 0\nheavy set()\n" in python("-c", code, cwd=ROOT).stdout
    done = python("-m", "hvd_nmt", "train", "--help", cwd=ROOT)
    assert "--training.max-steps" in done.stdout


def test_the_package_is_found_in_a_folder_that_holds_one_of_its_name(tmp_path):
    (tmp_path / "hvd_nmt").mkdir()  # such as the checkout
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python("-c", "import hvd_nmt; hvd_nmt.open_run", cwd=tmp_path, env=environment)


def test_the_console_script_is_this_function():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    name, _, target = setup["options.entry_points"]["console_scripts"].strip().partition(" = ")
    module, _, function = target.partition(":")
    assert (name, getattr(import_module(module), function)) == ("hvd-nmt", front.main)

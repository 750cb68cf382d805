"""The command on the dev set of a tiny trained run."""

import pytest

from hvd_nmt import translate

LONG = ("--min-length", "6")
"""a model that has hardly learnt finds nothing more probable than an empty translation"""


@pytest.fixture(scope="module")
def dev(toy_data):
    return (toy_data / "dev.en").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def translated(toy_run, toy_data, tmp_path):
    """Run the command on the dev set: lines of output, without their ends."""

    def command(*options):
        target = tmp_path / "out"
        files = ("--input", str(toy_data / "dev.en"), "--output", str(target))
        words = ("--run", str(toy_run), *LONG, *files, *options)
        assert translate.main(words) == 0
        return target.read_text(encoding="utf-8").splitlines()

    return command

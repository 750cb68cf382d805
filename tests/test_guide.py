"""The guide's examples on corpora run as they stand there, on files of their names, but small."""

import gzip
import random
import re
import shlex
from pathlib import Path

import pytest

import toy
from forks import Forks
from hvd_nmt.data import corpus

pytestmark = pytest.mark.long

GUIDE = (toy.ROOT / "docs/guide.md").read_text(encoding="utf-8")
SMALLER = {
    "32000": "400", "16000": "400", "8000": "400", "80000": "8", "50000": "4", "--dev-size 1000":
    "--dev-size 20", "--input half.en": "--min-length 2 --input half.en",
}  # fmt: skip
SETTINGS = """
data: {corpus: files, directory: data/mixed}
model: {encoder_layers: 1, decoder_layers: 1, width: 16, heads: 2, feed_forward_width: 32}
training: {tokens_per_step: 256, warmup_steps: 4, max_steps: 8, precision: float32, log_every: 2}
evaluation: {every_steps: 4, sentences: 5}
checkpoints: {every_steps: 4}
telemetry: {interval_s: 0, report: false}
"""
_SYLLABLES = [first + second for first in "bdfgklmnprst" for second in "aeiou"]


@pytest.fixture(scope="module")
def folder(toy_commands: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the text files that the examples name, and data/mixed made."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "hvd_nmt.yaml").write_text(SETTINGS, encoding="utf-8")
    sizes = {
        "europarl .en.gz .de.gz": 200, "newstest2015 .en .de": 12, "newstest2016 .en .de": 12,
        "crawl.1 .en.gz .de.gz": 150, "crawl.2 .en.gz .de.gz": 150, "news .en.gz .fr.gz": 150,
        "dev .en .fr": 12, "train .en.gz .de.gz .ja.gz": 200, "half .en .de": 150,
        "val .en .de": 12,
        "mono .de": 40, "in .en": 5,
    }  # fmt: skip
    for seed, (names, lines) in enumerate(sizes.items()):
        stem, *endings = names.split()
        _write_sides(folder, stem, endings, lines, seed)
    run(toy_commands, folder, "**Several corpora** are named")
    return folder


def test_separate_vocabularies(folder: Path, toy_commands: Forks) -> None:
    run(toy_commands, folder, "**Separate vocabularies.**", but="--train-source ...")
    assert (folder / "runs/news/spm.source.model").exists()


def test_several_corpora_and_a_language_to_translate_to(folder: Path, toy_commands: Forks) -> None:
    said = run(toy_commands, folder, "**Several corpora** are mixed")
    assert len(re.findall(r"^stage [12] ", said, re.MULTILINE)) == 2
    run(toy_commands, folder, "**Tags**")
    assert len((folder / "out.fr").read_text(encoding="utf-8").splitlines()) == 5


def test_noise(folder: Path, toy_commands: Forks) -> None:
    run(toy_commands, folder, "**Noise**")


def test_schedules(folder: Path, toy_commands: Forks) -> None:
    said = run(toy_commands, folder, "The learning rate rises over")
    assert "half a cosine" in said


def test_back_translation_and_distillation(folder: Path, toy_commands: Forks) -> None:
    run(toy_commands, folder, "An example on Multi30k")
    run(toy_commands, folder, "**Back-translation.**")
    sizes = corpus.load(folder / "data/back").manifest.by_corpus("train")
    assert len(sizes["real"]) == 150
    assert 30 < len(sizes["back"]) <= 40  # without those translated by nothing
    run(toy_commands, folder, "**Distillation.**")
    assert 100 < len(corpus.load(folder / "data/taught").train) <= 150


def run(commands: Forks, folder: Path, beginning: str, but: str | None = None) -> str:
    """Writes the YAML files and runs the commands of a part of the guide, and gives what they say.

    Args:
        commands: where they run.
        folder: in which.
        beginning: of the part; it ends where the next one in bold, or the next heading, begins.
        but: leaves out the commands that have this in them.
    """
    start = GUIDE.index(f"\n{beginning}") + 1
    text = re.split(r"\n(?:\*\*|## )", GUIDE[start + 2 :])[0]
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    assert blocks
    said = ""
    for block in (re.sub(r"^    ", "", each, flags=re.MULTILINE) for each in blocks):
        for old, new in SMALLER.items():
            block = re.sub(rf"(?<!\w){old}\b", new, block)
        if name := re.match(r"# (\S+\.yaml)\n", block):
            (folder / name[1]).write_text(block, encoding="utf-8")
            continue
        for command in re.split(r"^python -m ", block, flags=re.MULTILINE)[1:]:
            if but is None or but not in command:
                module, *words = shlex.split(command.replace("\\\n", " "))
                done = commands.run(module, *words, cwd=folder)
                assert done.returncode == 0, f"{command}{done.stderr}"
                said += done.stdout
    return said


def _write_sides(folder: Path, stem: str, endings: list[str], lines: int, seed: int) -> None:
    """Sentences of made-up words, and for the other sides the same with the words reversed."""
    chance = random.Random(0)
    words = ["".join(chance.choices(_SYLLABLES, k=chance.randint(1, 3))) for _ in range(300)]
    chance = random.Random(seed)
    sentences = [chance.choices(words, k=chance.randint(3, 9)) for _ in range(lines)]
    for ending in endings:
        is_source = ending.startswith(".en")
        text = "".join(
            " ".join(word if is_source else word[::-1] for word in sentence) + "\n"
            for sentence in sentences
        )
        opened = gzip.open if ending.endswith(".gz") else open
        with opened(folder / f"{stem}{ending}", "wt", encoding="utf-8") as file:
            file.write(text)

"""Every command of the guide runs as it stands there, on files of the names there, but small."""

import gzip
import itertools
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from backports import zstd

import toy
from forks import EAGER, Forks
from hvd_nmt.data import corpus

pytestmark = pytest.mark.long

FOLDER, PAGES = toy.ROOT / "docs/guide", toy.ROOT / "tests/golden/pages"
SMALLER = {
    r"(vocabulary.size.)\d+000": r"\g<1>400", r"(dev.size.)1000": r"\g<1>20",
    "3000": "12", "80000": "8", "50000": "4", "--input half.en":
    "--min-length 2 --input half.en",
}  # fmt: skip
"""expressions of numbers that would take hours -> what a test takes instead"""
ONLY_PARSED = {
    "v100": "two hosts: tests/rig trains on them",
    "--dataset": "a download: tests/test_prepare.py has one from a server of its own",
    "mlflow": "a server: tests/telemetry/test_tracker.py",
    "--test-set": "a download: tests/test_evaluate.py",
    "mtdata:": "a download: tests/preparation/test_mtdata.py",
    "hvd_nmt.convert": "models of other programs: tests/formats",
}
"""words of commands of ours that cannot run here -> why, and what tests them"""
STAND_INS = {
    "make": f'PATH=${{PATH#*:}} exec make -n -C {toy.ROOT} "$@"',  # tests/launch/test_setup.py
    "sudo": f'{toy.ROOT}/"$1" --help | grep -q " $2 "',  # needs root; tests/rig
    "sbatch": f'bash -n {toy.ROOT}/"$1"',  # no cluster; tests/launch/test_cluster_samples.py
    "kubectl": f"test -f {toy.ROOT}/$3",
    "horovodrun": 'HOSTS=v100 exec "${@:5}"',  # two hosts; tests/rig/test_two_host_training.py
    "tensorboard": 'test -d "$2/"',  # servers, which only a signal ends; tests/test_notebooks.py
    "jupyter": 'test -d "$HVD_NMT_RUN"',
    "comet-compare": "true",  # another environment
    "pip": "true",
    "libretranslate": "test -f site/argos-translate/packages/*/metadata.json",  # tests/formats
}
"""programs that cannot run here -> the commands of a shell that run instead"""
SETTINGS = """
data: {corpus: files}
model: {encoder_layers: 1, decoder_layers: 1, width: 16, heads: 2, feed_forward_width: 32}
training: {tokens_per_step: 256, warmup_steps: 4, max_steps: 8, precision: float32, log_every: 2,
  cooldown_steps: 0}
evaluation: {every_steps: 4, sentences: 5}
checkpoints: {every_steps: 4}
telemetry: {interval_s: 0, report: false}
"""
PARSE = """
import importlib, sys
from hvd_nmt.config import command_line

def parse(kind, name, *rest):
    made = options(kind, name, *rest)
    if name != "hvd_nmt.launch":  # whose options are followed by those of a run
        sys.exit()
    return made

options, command_line.options = command_line.options, parse
sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
"""
WAIT = "for job in $(jobs -p); do wait $job; done"
_WORDS = ["".join(letters) for letters in itertools.product("bdfgk", "aeiou", "lmn", "aeo")]


@pytest.fixture(scope="module")
def folder(toy_commands: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text files that commands name, and what those of the page `train` make."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "hvd_nmt.yaml").write_text(SETTINGS, encoding="utf-8")
    sizes = {
        "europarl .en.gz .de.gz": 200, "newstest2015 .en .de": 12, "newstest2016 .en .de": 12,
        "crawl.1 .en.gz .de.gz": 150, "crawl.2 .en.gz .de.gz": 150, "news .en.gz .fr.gz": 150,
        "dev .en .fr": 12, "train .en.gz .de.gz .yue.gz": 200, "half .en .de": 150,
        "val .en .de": 12, "mono .de": 40, "in .en": 5,
    }  # fmt: skip
    for seed, (names, lines) in enumerate(sizes.items()):
        stem, *endings = names.split()
        _write_sides(folder, stem, endings, lines, seed)
    _write_both_sides(folder)
    (folder / "hostfiles").symlink_to(toy.ROOT / "hostfiles")
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/activate").touch()
    fork = shlex.join(toy_commands.command("")[:-1])
    patterns = "|".join(f"*{words}*" for words in ONLY_PARSED)
    python = f"""
    [ "$1" = -m ] || exec {sys.executable} "$@"
    shift
    case "$HOSTS $*" in ({patterns}) exec {fork} {shlex.quote(PARSE)} "$@" ;; esac
    case $1 in (hvd_nmt.train) export {EAGER}=1 ;; esac
    exec {fork} "$@"
    """
    (folder / "bin").mkdir()
    for name, script in (STAND_INS | {"python": python}).items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    _run_page("train", folder)
    # In place of what `make train` makes.
    shutil.copytree(folder / "data/mine", folder / "data/embedded-en-de")
    _write_sides(folder / "data/embedded-en-de", "test", [".en", ".de"], 12, 99)
    shutil.copytree(folder / "runs/mine", folder / "runs/demo")
    return folder


@pytest.mark.parametrize(
    "page", [path.stem for path in FOLDER.glob("*.md") if path.stem != "train"]
)
def test_each_command_runs_and_prints_what_the_page_shows(page: str, folder: Path) -> None:
    _run_page(page, folder)
    if page == "corpora":  # all pairs but those that were translated by nothing
        sizes = corpus.load(folder / "data/back").manifest.by_corpus("train")
        assert (len(sizes["real"]), 30 < len(sizes["back"]) <= 40) == (150, True)


def _run_page(page: str, folder: Path) -> None:
    """Runs its commands; each line of output that it shows must be one that they print.

    What needs two hosts is compared with the golden pages. `...` stands for what is cut.
    """
    printed = _said("".join(path.read_text(encoding="utf-8") for path in PAGES.glob("*.txt")))
    for is_output, block in _blocks((FOLDER / f"{page}.md").read_text(encoding="utf-8")):
        if not is_output:
            printed |= _said(_run(block, folder))
            continue
        for line in block.splitlines():
            words = _said(line).pop()
            cut = len(words) if line.endswith("...") else None
            assert any(each[:cut] == words for each in printed), f"{page}.md: {line}: {printed}"


def _blocks(text: str) -> Iterator[tuple[bool, str]]:
    """Whether it is output, and the text, of each indented block and of each fenced one."""
    pattern = r"^```text\n(.*?)^```$|(?:^    [^\n]*\n|^\n(?=    ))+"
    for found in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        if found[1] is not None:
            yield True, found[1]
        elif found[0].strip():
            yield False, re.sub(r"^    ", "", found[0], flags=re.MULTILINE).lstrip("\n")


def _run(block: str, folder: Path) -> str:
    """What a block prints; a block of YAML is written to the file that its first line names."""
    for old, new in SMALLER.items():
        block = re.sub(rf"(?<!\w){old}\b", new, block)
    if name := re.match(r"# (\S+\.yaml)\n", block):
        (folder / name[1]).write_text(block, encoding="utf-8")
        return ""
    if block.startswith("import "):
        block = f"python -m {shlex.quote(block)}"
    environment = toy.environment(folder)
    environment["PATH"] = f"{folder}/bin:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{block}\n{WAIT}"], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, f"{block}{done.stdout}"
    return done.stdout


def _said(text: str) -> set[tuple[str, ...]]:
    """Of each line the words that depend neither on data and model nor on the machine."""
    text = re.sub(r"'.*?'", "", text.replace(socket.gethostname(), "vm")).lower()
    pattern = r"\b(?!min\b)[a-z]{3,}\b"
    return {tuple(re.findall(pattern, line)) for line in text.split("\n")}


def _write_sides(folder: Path, stem: str, endings: list[str], lines: int, seed: int) -> None:
    """Sentences of made-up words, and for the other sides the same from their end."""
    chance = random.Random(seed)
    source = [" ".join(chance.choices(_WORDS, k=chance.randint(3, 9))) for _ in range(lines)]
    for ending in endings:
        side = source if ending.startswith(".en") else [line[::-1] for line in source]
        text = "".join(f"{line}\n" for line in side).encode()
        (folder / f"{stem}{ending}").write_bytes(gzip.compress(text) if "gz" in ending else text)


def _write_both_sides(folder: Path) -> None:
    """The same text in one file, with scores from 0 to 1 in the TSV."""
    _write_sides(folder, "both", [".en", ".de"], 150, 98)
    sides = [(folder / f"both.{code}").read_text(encoding="utf-8") for code in ("en", "de")]
    pairs = list(zip(*(side.splitlines() for side in sides), strict=True))
    rows = "".join(f"{i / 150}\t{a}\t{b}\n" for i, (a, b) in enumerate(pairs))
    (folder / "crawled.tsv.zst").write_bytes(zstd.compress(rows.encode()))
    form = (
        '<tu><tuv xml:lang="en-US"><seg>{}</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv></tu>'
    )
    units = "".join(form.format(*pair) for pair in pairs)
    (folder / "memory.tmx").write_text(f"<tmx><body>{units}</body></tmx>", encoding="utf-8")
    with zipfile.ZipFile(folder / "de-en.txt.zip", "w") as archive:
        archive.writestr("README", "of OPUS")
        for code, side in zip(("en", "de"), sides, strict=True):
            archive.writestr(f"News.de-en.{code}", side)

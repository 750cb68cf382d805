"""Tiny data and real launches of the training command, for tests.

A launch costs tens of seconds, nearly all of it TensorFlow's import and the tracing of the graph:
share runs between tests (module or session scope), and ask for few steps of a small model.
"""

import contextlib
import io
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from hvd_nmt.common import jsonl
from hvd_nmt.common.rank_environment import START_ID
from hvd_nmt.config.exchange import Exchange

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parent.parent
HOROVODRUN = (sys.executable, os.fspath(ROOT / "tests" / "horovodrun.py"))
"""Horovod's own, which starts sooner"""
DEV_PAIRS = 24
SMALL = (
    "--model.encoder-layers", "1", "--model.decoder-layers", "1", "--model.width", "16",
    "--model.heads", "2", "--model.feed-forward-width", "32", "--model.max-length", "32",
    "--training.tokens-per-step", "128", "--training.warmup-steps", "20",
    "--training.learning-rate", "1", "--training.optimizer", "adam",
    "--training.decay", "transformer_policy", "--training.weight-decay", "0",
    "--model.positions", "sinusoidal", "--model.dropout", "0.1", "--training.precision", "float32",
    "--training.log-every", "1", "--evaluation.every-steps", "100",
    "--telemetry.interval-s", "0.2", "--telemetry.no-report",
)  # fmt: skip
"""options of a model of a few thousand parameters that logs every step"""

EXCHANGES = {"plain": Exchange(), "float16": Exchange("float16")}
"""ways to sum gradients over hosts"""
_WORDS = {
    "the": "der", "man": "Mann", "dog": "Hund", "sees": "sieht", "eats": "isst", "red": "rot",
    "house": "Haus", "big": "groß", "a": "ein", "tree": "Baum", "street": "Straße", "and": "und",
    "bird": "Vogel", "sings": "singt", "small": "klein", "old": "alt",
}  # fmt: skip
_OWN_VOCABULARY = ["--vocabulary-size", "120"]
_RUN_ID = "HVD_NMT_TOY_RUN"


def toy_data(
    folder: Path, *, pairs: int = 400, seed: int = 1, vocabulary: Path | None = None,
    more: tuple[str, ...] = (),
) -> Path:  # fmt: skip
    """Makes a tiny prepared data directory, word by word translations, with 24 dev pairs.

    Args:
        folder: the data directory is made in it.
        pairs: training pairs; about 9 target tokens each.
        seed: of the text, and so of the vocabulary.
        vocabulary: a SentencePiece model to take instead.
        more: options of `prepare`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_text(folder, ("train.en", "train.de", "dev.en", "dev.de"), pairs, seed)
    options = ["--vocabulary", os.fspath(vocabulary)] if vocabulary else [*_OWN_VOCABULARY]
    for part in ("train", "dev"):
        options += [f"--{part}-source", f"{folder / part}.en"]
        options += [f"--{part}-target", f"{folder / part}.de"]
    return _prepared(folder, *options, *more)


def mixed_data(folder: Path, *more: str) -> Path:
    """Makes a tiny data directory of three corpora with tags, two of them with dev pairs.

    Args:
        folder: an existing folder; the data directory is made in it.
        more: options of `prepare`.
    """
    lines, ends = ["corpora:"], ("train.source", "train.target", "dev.source", "dev.target")
    for name, pairs, seed, tags in (
        ("clean", 200, 7, "<2de>"), ("crawled", 320, 8, "<2de>"), ("back", 90, 9, "<2de>, <bt>")
    ):  # fmt: skip
        files = [f"{name}.{end}" for end in ends]
        _write_text(folder, files, pairs, seed)
        source, target, *dev = files
        scored = "" if name == "back" else f", dev: {{source: {dev[0]}, target: {dev[1]}}}"
        lines.append(
            f"  - {{name: {name}, source: {source}, target: {target}, tags: [{tags}]{scored}}}"
        )
    corpora = folder / "corpora.yaml"
    corpora.write_text("\n".join(lines), encoding="utf-8")
    return _prepared(folder, "--corpora", os.fspath(corpora), *_OWN_VOCABULARY, *more)


def _write_text(folder: Path, names: Sequence[str], pairs: int, seed: int) -> None:
    """Source and target of the training pairs, and of 24 dev pairs, into files of these names."""
    source = sentences(pairs + DEV_PAIRS, seed)
    target = [" ".join(_WORDS[word] for word in line.split()) for line in source]
    parts = (source[DEV_PAIRS:], target[DEV_PAIRS:], source[:DEV_PAIRS], target[:DEV_PAIRS])
    for name, lines in zip(names, parts, strict=True):
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def _prepared(folder: Path, *options: str) -> Path:
    """The data directory that `prepare` makes with these options."""
    out = folder / "data"
    words = "-m", "hvd_nmt.prepare", "--out", out, "--max-length", "32", *options
    python(*words, env=environment(folder))
    return out


def train_options(data: Path, run_dir: Path | str, steps: int, *more: str) -> tuple[str, ...]:
    """Command line of a small run; `more` may repeat an option, the last one counts."""
    return (
        "--data.corpus", "files", "--data.directory", os.fspath(data),
        "--run-dir", os.fspath(run_dir), *SMALL, "--training.max-steps", str(steps), *more,
    )  # fmt: skip


def run_options(data: Path, run_dir: Path | str, *more: str) -> tuple[str, ...]:
    """The same of the run of 40 steps that tests share, as the fixture `toy_run`."""
    own = (
        "--evaluation.every-steps", "20", "--checkpoints.every-steps", "10", "--telemetry.report",
    )  # fmt: skip
    return train_options(data, run_dir, 40, *own, *more)


def run_train(
    *options: str, ranks: int = 1, cwd: Path, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m hvd_nmt.train OPTIONS` to its end, under horovodrun if ranks > 1."""
    return start_train(*options, ranks=ranks, cwd=cwd, python=python).finished()


def start_train(*options: str, ranks: int = 1, cwd: Path, python: str = sys.executable) -> "Run":
    """Starts the same and returns at once."""
    command = [python, "-m", "hvd_nmt.train", *options]
    if ranks > 1:
        command = [*horovodrun(ranks), *command]
    return Run(command, cwd, environment(cwd))


def horovodrun(ranks: int) -> list[str]:
    """The words that start a command on some ranks of this machine."""
    return [
        *HOROVODRUN, "-np", str(ranks), "-H", f"localhost:{ranks}", "--network-interface", "lo",
        "--disable-cache",
    ]  # fmt: skip


def python(
    *words: str | Path, program: str = sys.executable, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Runs `python WORDS` to its end, which must be with 0; `how`: as for `subprocess.run`."""
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=600, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def environment(home: Path) -> dict[str, str]:
    """A clean environment: nothing of the launcher, GPU or home of who runs the tests."""
    return {
        "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
        "HOME": os.fspath(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


class Run:
    """A started command, and everything it starts.

    Args:
        command: words of the command line.
        cwd: its working directory; its output goes there too, under a name of its own.
        env: its whole environment.
    """

    def __init__(self, command: list[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._id = uuid.uuid4().hex
        cwd.mkdir(parents=True, exist_ok=True)
        self._out, self._err = (cwd / f"{self._id[:8]}.{name}" for name in ("out", "err"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=cwd, env={**env, _RUN_ID: self._id}, stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    @property
    def stdout(self) -> str:
        """What it has written to standard output so far."""
        return self._out.read_text(encoding="utf-8", errors="backslashreplace")

    @property
    def stderr(self) -> str:
        """What it has written to standard error so far."""
        return self._err.read_text(encoding="utf-8", errors="backslashreplace")

    def finished(self, timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Waits for its end; after `timeout` seconds kills all of it and fails with its output."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(
                f"over {timeout} s: {self.process.args}\n{self.stdout}\n{self.stderr}"
            ) from None
        return subprocess.CompletedProcess(
            self.process.args, self.process.returncode, self.stdout, self.stderr
        )

    def wait_for(self, what: Callable[[], Any], every_s: float = 0.02) -> Any:
        """Waits until `what()` is true and returns it; fails when the command ends before."""
        deadline = time.monotonic() + 600
        while not (found := what()):
            ended = self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                if found := what():
                    break
                self.kill()
                raise TimeoutError(f"{'ended' if ended else 'late'}:\n{self.stdout}\n{self.stderr}")
            time.sleep(every_s)
        return found

    def processes(self) -> list[psutil.Process]:
        """What is alive of it: found by a mark in the environment, so orphans count too."""
        attributes = ["environ", "status"]
        return [
            process for process in psutil.process_iter(attributes)
            if (process.info["environ"] or {}).get(_RUN_ID) == self._id
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ]  # fmt: skip

    def left_behind(self, timeout: float = 30.0) -> list[psutil.Process]:
        """What is still alive a while after the end: a killed process needs a moment to go."""
        deadline = time.monotonic() + timeout
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return alive

    def ranks(self, start_id: str = "") -> list[psutil.Process]:
        """The training processes, in the order of their ranks; of one start, where spares are."""
        ranks = {}
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                environment = process.environ()
                if environment.get(START_ID, "") != start_id and start_id:
                    continue
                if any(word.endswith("hvd_nmt.train") for word in process.cmdline()[1:3]):
                    ranks[int(environment.get("HOROVOD_RANK", 0))] = process
        return [ranks[rank] for rank in sorted(ranks)]

    def kill(self) -> None:
        """SIGKILL to all of it at once, and waits until it is gone."""
        for _ in range(50):
            if not (alive := self.processes()):
                break
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(alive, 5)
        self.process.wait(600)


@contextlib.contextmanager
def printing_to(out: io.StringIO, err: io.StringIO) -> Iterator[None]:
    """In the block, what a command prints goes there; it may reconfigure its streams."""
    with contextlib.redirect_stdout(_Stream(out)), contextlib.redirect_stderr(_Stream(err)):
        yield


class _Stream(io.TextIOWrapper):
    def __init__(self, text: io.StringIO) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self._text = text

    def write(self, text: str) -> int:
        return self._text.write(text)


def metrics(run_dir: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines of one kind in metrics.jsonl, in the order of writing."""
    return [line for line in jsonl.read(run_dir / "metrics.jsonl") if line["kind"] == kind]


def steps_done(run_dir: Path) -> int:
    """The last step in metrics.jsonl, 0 before there is one; safe while the run writes."""
    if not (run_dir / "metrics.jsonl").exists():
        return 0
    return max((line["step"] for line in metrics(run_dir)), default=0)


def sentences(count: int, seed: int) -> list[str]:
    """Random lines of the source's words."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(list(_WORDS), k=chance.randint(3, 9))) for _ in range(count)]

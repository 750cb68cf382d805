"""Fixtures that more than one folder of tests needs."""

import contextlib
import fcntl
import functools
import importlib
import io
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import fake_nvml
import forks
import toy

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "tests" / "golden" / "pages"
MOST_TRAININGS = 60
START = b'"process_started_s"'


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --rewrite-golden`."""
    parser.addoption(
        "--rewrite-golden", action="store_true",
        help="write the pages of tests/golden/pages anew; read their difference before you commit",
    )  # fmt: skip


def pytest_configure() -> None:
    """Let Ctrl-C reach what the tests start: shells let what runs in the background ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes give no name: archives hold the time, and workers of xdist compare their names."""
    return argname if isinstance(val, bytes) else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say how many trainings were started, which the time is spent on; fail where too many were."""
    if hasattr(session.config, "workerinput"):
        return
    started = _trainings(session.config)
    line = f"\n{started} trainings, {MOST_TRAININGS} allowed"
    session.config.get_terminal_writer().line(line)
    if started > MOST_TRAININGS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _trainings(config: pytest.Config) -> int:
    """Starts of runs, as their records in the folders of this session tell; copies count once."""
    folder = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    starts = set()
    for path in folder.rglob("metrics.jsonl"):
        if path.with_name("config.yaml").exists():  # it is a run, and not made for a reader's test
            starts |= {line for line in path.read_bytes().splitlines() if START in line}
    return len(starts)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start trainings come first: the longest last would leave other workers idle."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = sorted(files.values(), key=lambda file: -max(map(_starts, file)))
    items[:] = [item for file in order for item in file]


def _starts(item: pytest.Item) -> bool:
    return getattr(getattr(item, "module", None), "toy", None) is toy


Share = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def share(tmp_path_factory: pytest.TempPathFactory) -> Share:
    """A function that gives the folder of a name, made once for all workers: read only."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def shared(name: str, make: Callable[[Path], object]) -> Path:
        made = folder / name
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                draft = folder / f"{name}.{os.getpid()}"
                draft.mkdir()
                make(draft)
                draft.rename(made)
        return made

    return shared


@pytest.fixture(scope="session")
def copy_run(share: Share) -> Path:
    """A run directory of it: read only. `copying.load_model` must stand in for the real one."""
    import copying  # which imports TensorFlow

    return share("copy_run", copying.run_directory)


@pytest.fixture(scope="session")
def toy_data(share: Share) -> Path:
    """A tiny prepared data directory, shared by all tests: read only."""
    return share("toy_data", toy.toy_data) / "data"


@pytest.fixture(scope="session")
def mixed_data(share: Share) -> Path:
    """A tiny data directory of several corpora, shared by all tests: read only."""
    return share("mixed_data", toy.mixed_data) / "data"


@pytest.fixture(scope="session")
def toy_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[forks.Forks]:
    """Commands and ranks that start in milliseconds."""
    with forks.Forks(tmp_path_factory.mktemp("f")) as started:
        yield started


@pytest.fixture(scope="session")
def toy_run(toy_data: Path, share: Share) -> Path:
    """A finished run of 40 steps on one rank, evaluated at 20 and 40: read only, copy to change."""

    def make(cwd: Path) -> None:
        done = toy.run_train(*toy.run_options(toy_data, "run"), cwd=cwd)
        assert done.returncode == 0, done.stderr
        (cwd / "run" / "stdout.txt").write_text(done.stdout, encoding="utf-8")
        (cwd / "run" / "stderr.txt").write_text(done.stderr, encoding="utf-8")

    return share("toy_run", make) / "run"


@pytest.fixture(params=["cpu", "gpu"])
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph for the one or the other device, run on this one."""
    monkeypatch.setattr("hvd_nmt.model.device.is_gpu", lambda: request.param == "gpu")


@pytest.fixture
def nvml_library(monkeypatch: pytest.MonkeyPatch) -> fake_nvml.FakeNvml:
    """The NVML of this host: no GPU, until a test says otherwise."""
    return fake_nvml.FakeNvml(monkeypatch)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that gives the one sentence with which a command must end, with this code."""

    def sentence(code: int, command: ModuleType, *words: object) -> str:
        assert command.main([*map(str, words)]) == code
        out, said = capsys.readouterr()
        assert (out, said.count("\n")) == ("", 1), out + said
        assert said.startswith(f"{command.__name__}: ")
        return said

    return sentence


@pytest.fixture(scope="session")
def help_of() -> Callable[..., str]:
    """What a command prints at --help-all, or with another word, on 100 columns."""

    def printed(name: str, *words: str) -> str:
        shown = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown):
            patch.setenv("COLUMNS", "100")
            with pytest.raises(SystemExit, match=r"^0$"):
                importlib.import_module(f"hvd_nmt.{name}").main(list(words or ["--help-all"]))
        return shown.getvalue()

    return functools.cache(printed)


@pytest.fixture
def golden_page(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A function that compares a text with the page of a name; `--rewrite-golden` writes it."""

    def compare(name: str, text: str) -> None:
        path = PAGES / name
        if request.config.getoption("--rewrite-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path}: see pytest --rewrite-golden"

    return compare

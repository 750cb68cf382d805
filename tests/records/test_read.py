"""Run directories: finished, going on, killed, resumed, and with files missing."""

import fcntl
import json
import math
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common import jsonl
from hvd_nmt.config import Config, DataConfig, TrainingConfig
from hvd_nmt.data import corpus
from hvd_nmt.explain import durations
from hvd_nmt.records import event_store, read
from hvd_nmt.records.event_store import EventStore
from hvd_nmt.records.read import read_run
from hvd_nmt.records.record import End, Evaluation, Interval, Launch, Run, Samples, Start, Stop

HOSTS = ["a", "a", "b", "b"]
PARAMETERS = 1000


def config_of(tmp_path: Path) -> Config:
    return Config(
        run_dir=tmp_path / "run",
        data=DataConfig(directory=tmp_path / "data", corpus="files"),
        training=TrainingConfig(max_steps=100, warmup_steps=30),
    )


def start(store: EventStore, first_step: int, **more: Any) -> None:
    facts = {"hosts": tuple(HOSTS), "parameters": PARAMETERS, "gradient_bytes": 4 * PARAMETERS}
    store.write(Start(first_step=first_step, **facts | more))


def log(store: EventStore, step: int, loss: float, steps: int = 0) -> None:
    """As earlier versions did, where `steps` is 0."""
    store.write(Interval(
        step, steps, loss=loss, learning_rate=1e-5 * step, epoch=step / 50, gradient_norm=0.5,
        tokens_per_s=9000.0, model_flop_per_s=2e12, step_s=1.0, input_wait_s=0.1, compute_s=0.4,
        straggler_wait_s=0.2, communication_s=0.3, rank_ready_s=(0.4, 0.5, 0.6, 0.7),
        rank_input_wait_s=(0.1,) * 4, time_s=1000.0 + step,
    ))  # fmt: skip


SCORES = {"pseudo_bleu": 0.25, "bleu": 20.0, "bleu_margin": 1.5, "chrf": 45.0, "seconds": 7.0}


def evaluate(store: EventStore, step: int, loss: float) -> None:
    store.write(Evaluation(step, loss, time_s=1000.5 + step, **SCORES))
    store.write(Samples(step, "| source |"))


def sample_host(run_dir: Path, host: str) -> None:
    file = jsonl.JsonlFile(run_dir / "telemetry" / f"{host}.jsonl")
    file.append({"kind": "host", "time_s": 1000.0, "host": host, "interval_s": 1.0})
    for second in (1, 2):
        file.append({"kind": "sample", "time_s": 1000.0 + second, "host": host, "nics": {}})
    file.close()


@pytest.fixture(autouse=True)
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """All starts are at one moment: to who counts the trainings of a session they are one."""
    clock = SimpleNamespace(time=lambda: 900.0, monotonic=lambda: 0.0)
    monkeypatch.setattr(event_store, "time", clock)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished run of four ranks on two hosts, without its data."""
    config = config_of(tmp_path)
    with EventStore(RunDirectory(config.run_dir), []) as store:
        start(store, 1)
        for step in (25, 50, 75, 100):
            log(store, step, 100 / step)
            if step % 50 == 0:
                evaluate(store, step, 50 / step)
        store.write(End(100))
    configuration.save(config, config.run_dir / "config.yaml")
    (config.run_dir / "environment.json").write_text(json.dumps({"precision": "float32"}))
    for host in ("a", "b"):
        sample_host(config.run_dir, host)
    return config.run_dir


def steps_of(run: Run) -> list[tuple[int, int, float | None]]:
    """(step, steps, loss) of each interval."""
    return [(each.step, each.steps, each.loss) for each in run.intervals]


def test_a_finished_run(run_dir):
    run = read_run(run_dir)
    assert (run.name, run.source, run.path) == ("run", "hvd_nmt", run_dir)
    assert run.hosts == ("a", "a", "b", "b")
    assert (run.ranks, run.parameters, run.gradient_bytes) == (4, 1000, 4000)
    assert (run.max_steps, run.finished, run.steps_done) == (100, True, 100)
    assert run.config["training"]["warmup_steps"] == 30
    assert run.environment == {"precision": "float32"}
    assert run.intervals[1] == Interval(
        step=50, steps=25, time_s=1050.0, step_s=1.0, input_wait_s=0.1, compute_s=0.4,
        straggler_wait_s=0.2, communication_s=0.3, rank_ready_s=(0.4, 0.5, 0.6, 0.7),
        rank_input_wait_s=(0.1,) * 4, loss=2.0, learning_rate=5e-4, gradient_norm=0.5,
        tokens_per_s=9000.0, model_flop_per_s=2e12, epoch=1.0,
    )  # fmt: skip
    assert run.evaluations[0] == Evaluation(50, 1.0, time_s=1050.5, **SCORES)
    assert [host.host for host in run.telemetry] == ["a", "b"]
    assert run.telemetry[1].header["interval_s"] == 1.0
    assert [sample["time_s"] for sample in run.telemetry[1].samples] == [1001.0, 1002.0]
    assert len(run.problems) == 1  # its data are elsewhere


def test_a_run_in_progress_and_one_killed_with_9(run_dir):
    path = run_dir / "metrics.jsonl"
    content = path.read_bytes()
    for cut in range(0, len(content), 97):
        path.write_bytes(content[:cut])
        run = read_run(run_dir)
        lines = content[:cut].count(b'"kind":"train"')
        assert len(run.intervals) in (lines, lines - 1)
        assert not run.finished


def edited(pattern: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """What replaces the first match of a regular expression in a file."""
    return lambda text: re.sub(pattern, new, text, count=1)


DAMAGED = edited(rb"\n", b"\n{damaged\n")


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("config.yaml", None, "config.yaml: No such file"),
        ("config.yaml", edited(rb"(?<=max_steps: )\d+", b"many"), "max_steps must be a whole"),
        ("telemetry/b.jsonl", None, "GPUs and network of b are unknown: each host writes its own"),
        ("environment.json", None, "environment.json is missing or damaged"),
        ("environment.json", lambda _: b"{", "environment.json is missing or damaged"),
        ("metrics.jsonl", None, "metrics.jsonl has no steps, or is missing"),
        ("metrics.jsonl", DAMAGED, "metrics.jsonl: 1 line skipped, not JSON"),
        ("telemetry/a.jsonl", DAMAGED, "a.jsonl: 1 line skipped, not JSON"),
    ],
)
def test_what_is_missing_or_damaged_is_said_and_the_rest_is_read(run_dir, file, change, said):
    content = (run_dir / file).read_bytes()
    (run_dir / file).unlink()
    if change is not None:
        (run_dir / file).write_bytes(change(content))
    run = read_run(run_dir)
    assert said in " ".join(run.problems)
    assert len(run.intervals) == (0 if (file, change) == ("metrics.jsonl", None) else 4)
    assert run.max_steps == (None if file == "config.yaml" else 100)
    assert len(run.telemetry) == (1 if (file, change) == ("telemetry/b.jsonl", None) else 2)


def test_telemetry_that_was_switched_off_is_not_missed(run_dir):
    shutil.rmtree(run_dir / "telemetry")
    config = (run_dir / "config.yaml").read_bytes()
    (run_dir / "config.yaml").write_bytes(edited(rb"(?<=interval_s: )\S+", b"0.0")(config))
    assert "so GPUs and network were not sampled" in read_run(run_dir).problems[0]


def test_without_its_metrics_a_run_is_known_by_its_newest_checkpoint(run_dir, monkeypatch):
    monkeypatch.setattr(read, "newest_step", lambda _: 300)
    assert read_run(run_dir).steps_done == 100  # where metrics are, it does not outdo them
    (run_dir / "metrics.jsonl").unlink()
    assert read_run(run_dir).steps_done == 300


def test_a_resumed_run_has_the_steps_of_all_its_starts(run_dir):
    run = RunDirectory(run_dir)
    with EventStore(run, run.read_metrics(), after_step=60) as store:
        start(store, 61, hosts=("a", "a"), clock_ahead_s=store.clock_ahead_s)
        log(store, 75, math.nan, steps=14)
        evaluate(store, 75, 9.0)
        assert not read_run(run_dir).stopped
        store.write(Stop())
    run = read_run(run_dir)
    assert run.stopped
    assert steps_of(run)[:2] == [(25, 25, 4.0), (50, 25, 2.0)]
    last = run.intervals[-1]
    assert (last.step, last.steps, last.start) == (75, 14, 1)
    assert math.isnan(last.loss)
    assert [(each.step, each.loss) for each in run.evaluations] == [(50, 1.0), (75, 9.0)]
    assert run.hosts == run.hosts_of(last) == ("a", "a")
    assert run.hosts_of(run.intervals[0]) == ("a", "a", "b", "b")
    assert not run.finished  # the last start has not come to its end
    assert "The clock was set back before a start: its times here are 3 min" in run.problems[0]


def test_the_manifest_is_that_of_the_run_s_data(run_dir, tmp_path, toy_data):
    """Relative data are found from where the run was started."""
    shutil.copytree(toy_data, tmp_path / "data")
    for name in ("spm.model", "spm.source.model"):
        shutil.copyfile(toy_data / name, run_dir / name)
    manifest = corpus.read_manifest(toy_data)
    relative = DataConfig(directory=Path("data"), corpus="files")
    for config in (config_of(tmp_path), Config(run_dir=Path("run"), data=relative)):
        configuration.save(config, run_dir / "config.yaml")
        run = read_run(run_dir)
        assert run.problems == ()
        assert run.manifest["parts"]["train"]["pairs"] == manifest.parts["train"].pairs
        assert run.manifest["hash"] == manifest.hash
        assert run.manifest["directory"] == str(tmp_path / "data")
    (run_dir / "spm.model").write_bytes(b"another")
    run = read_run(run_dir)
    assert run.manifest == {}
    assert "another vocabulary" in run.problems[0]


def test_whether_a_run_goes_on_is_told_by_its_lock(tmp_path):
    """Not by how long it has been silent: kill -9 leaves a lock file that nobody holds."""
    run = RunDirectory(tmp_path)
    lock = run.lock
    assert run.is_held() is None
    lock.write_text(f"process 1 on {socket.gethostname()}, since 2026-11-21 12:00:00\n")
    assert run.is_held() is False
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run.is_held() is True
    assert run.is_held() is False
    lock.write_text("process 1 on another-host, since 2026-11-21 12:00:00\n")
    assert run.is_held() is None


LAUNCHES = Path(__file__).with_name("launch.jsonl").read_text(encoding="utf-8").splitlines(True)


def launches_of(run_dir: Path, *lines: str) -> tuple[Launch, ...]:
    (run_dir / "launch.jsonl").write_text("".join(lines), encoding="utf-8")
    return read_run(run_dir).launches


def test_starts_of_the_launcher_are_read(run_dir):
    """The lines are of a real run; a start that came to no step lost none."""
    first, second = launches_of(run_dir, *LAUNCHES)
    assert (first.ranks_by_host, first.exit_code, first.last_step) == ({"localhost": 2}, 137, 120)
    assert "is gone" in first.sentence
    assert (second.exit_code, second.resumed_step, second.last_step) == (0, 100, 400)
    assert durations.lost_steps((first, second)) == 20
    no_step = json.dumps({"time_s": 1.0, "kind": "end", "exit_code": 5, "sentence": ""}) + "\n"
    starts = launches_of(run_dir, *LAUNCHES[:3], LAUNCHES[3], no_step, *LAUNCHES[3:], '{"torn')
    assert (len(starts), durations.lost_steps(starts)) == (3, 20)


def test_a_start_without_an_end_is_known_from_its_own_records(run_dir):
    """When the run writes its report its launcher knows of no end; or the launcher was killed."""
    run = RunDirectory(run_dir)
    with EventStore(run, run.read_metrics(), after_step=100) as store:
        start(store, 101, start_id=json.loads(LAUNCHES[3])["start_id"])
        log(store, 110, 3.0)
    _, second = launches_of(run_dir, *LAUNCHES[:4])
    assert (second.exit_code, second.resumed_step, second.last_step) == (None, 100, 110)
    first, second = launches_of(run_dir, LAUNCHES[0], *LAUNCHES[3:])
    assert (first.exit_code, first.resumed_step, second.exit_code) == (None, None, 0)

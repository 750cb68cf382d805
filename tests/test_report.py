"""The command: run directories and logs in, two files out, and what a person did wrong."""

import shutil
import subprocess
import sys

import pytest

from hvd_nmt import config, report
from hvd_nmt.telemetry.events import EventStore

LOG = "*** Global step 1: ***     Train loss: 8.3090\ntime per step = 0:00:0.148\n"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run directory after 30 of 40 steps, without an end: read only."""
    path = tmp_path_factory.mktemp("recorded") / "run"
    path.mkdir()
    values = config.Config(run_dir=path, training=config.TrainingConfig(max_steps=40))
    config.save(values, path / "config.yaml")
    with EventStore(path) as store:
        store.record("start", {"first_step": 1, "hosts": ["a"], "sent_bytes_per_step": 0.0})
        for step in (10, 20, 30):
            store.scalars(step, {
                "train_loss": 5.0 - step / 10, "learning_rate": step * 1e-5,
                "tokens_per_s": 1000.0, "step_time/total_s": 0.5, "step_time/input_wait_s": 0.0,
                "step_time/compute_s": 0.5, "step_time/communication_s": 0.0,
            })  # fmt: skip
    return path


@pytest.fixture
def run_dir(recorded, tmp_path):
    """A copy of it."""
    return shutil.copytree(recorded, tmp_path / "run")


def page_of(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


def test_a_run_directory_gets_its_report_inside(run_dir, capsys):
    assert report.main([str(run_dir)]) == 0
    written = [str(run_dir / name) for name in ("report.html", "report.md")]
    assert capsys.readouterr().out.split() == written
    assert "to step 30 of 40" in page_of(run_dir)


def test_a_log_gets_it_beside_itself_or_where_it_is_told(tmp_path):
    log = tmp_path / "nohup.out"
    log.write_text(LOG, encoding="utf-8")
    assert report.main([str(log)]) == 0
    assert report.main([str(log), "--output", str(tmp_path / "there")]) == 0
    for folder in (tmp_path, tmp_path / "there"):
        assert page_of(folder).count("<h3>") == 12


def test_a_mistake_is_one_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert report.main(["nowhere"]) == 4
    error = capsys.readouterr().err
    assert "nowhere does not exist" in error
    assert error.count("\n") == 1


def test_a_report_needs_no_tensorflow(run_dir, tmp_path):
    code = (
        "import sys; from hvd_nmt import report; assert report.main(sys.argv[1:]) == 0;"
        "print('tensorflow' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, run_dir],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == ["False False"], done.stderr

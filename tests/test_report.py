"""The command: run directories and logs in, two files out, and what a person did wrong."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_nmt import config, report
from hvd_nmt.telemetry.events import EventStore

RECIPE_LOG = Path(__file__).resolve().parents[2] / "shared" / "data" / "openseq2seq" / "nohup.out"
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
    assert report.main([str(run_dir), "--price-per-hour", "2.50EUR"]) == 0
    written = [str(run_dir / name) for name in ("report.html", "report.md")]
    assert capsys.readouterr().out.split() == written
    text = page_of(run_dir)
    assert "at step 30 of 40" in text
    assert "at 2.50 EUR per host and hour" in text


def test_a_run_that_was_killed_in_mid_line_is_reported(run_dir, tmp_path):
    with (run_dir / "metrics.jsonl").open("ab") as stream:
        stream.write(b'{"step":40,"time_s":17')
    out = tmp_path / "out"
    assert report.main([str(run_dir), "--output", str(out)]) == 0
    assert "at step 30 of 40" in page_of(out)


@pytest.mark.parametrize("damage", ['{"kind":"start","hosts":5,"time_s":[],"first_step":{}}', "x"])
def test_a_start_that_cannot_be_believed_costs_itself_and_no_traceback(run_dir, damage, capsys):
    path = run_dir / "metrics.jsonl"
    _, *rest = path.read_text().splitlines(keepends=True)
    path.write_text(damage + "\n" + "".join(rest))
    assert report.main([str(run_dir)]) == 0
    assert capsys.readouterr().err == ""
    text = page_of(run_dir)
    assert "at step 30 of 40" in text
    assert "left out" in text


def test_several_go_side_by_side_into_the_working_directory(run_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nohup.out").write_text(LOG, encoding="utf-8")
    assert report.main(["nohup.out"]) == 0
    assert page_of(tmp_path).count("<h3>") == 13
    assert report.main([str(run_dir), "nohup.out"]) == 0
    assert "2 runs side by side" in page_of(tmp_path)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nowhere"], 4, "nowhere does not exist"),
        ([], 2, "Which run?"),
        (["nowhere", "--price-per-hour", "cheap"], 2, "--price-per-hour is 'cheap'"),
        (["nowhere", "--power-price", "-1"], 2, "--power-price is '-1'"),
    ],
)
def test_a_mistake_is_one_sentence(words, code, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert report.main(words) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_report_needs_no_tensorflow(run_dir, tmp_path):
    (tmp_path / "nohup.out").write_text(LOG, encoding="utf-8")
    code = (
        "import sys; from hvd_nmt import report; assert report.main(sys.argv[1:]) == 0;"
        "print('tensorflow' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, run_dir, "nohup.out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == ["False False"], done.stderr


@pytest.mark.skipif(not RECIPE_LOG.exists(), reason="needs ../shared: a log of the recipe itself")
def test_the_recipe_s_own_log_is_answered_as_far_as_it_goes(tmp_path):
    assert report.main([str(RECIPE_LOG), "--output", str(tmp_path)]) == 0
    text = page_of(tmp_path)
    for words in ("23,365,648 bytes", "equal to the byte", "for 1,600 steps",
                  "no measure of translation quality"):  # fmt: skip
        assert words in text

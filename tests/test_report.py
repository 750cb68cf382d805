"""The command: run directories and logs in, two files out, and what a person did wrong."""

import subprocess
import sys

from hvd_nmt import report

LOG = "*** Global step 1: ***     Train loss: 8.3090\ntime per step = 0:00:0.148\n"
METRICS = (
    '{"kind":"start","time_s":1.0,"hosts":["a"]}\n'
    '{"kind":"train","time_s":2.0,"step":5,"step_time/total_s":0.2,"train_loss":4.0}\n'
)


def test_a_run_directory_gets_its_report_inside_without_tensorflow(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(METRICS)
    code = (
        "import sys; from hvd_nmt import report; code = report.main(sys.argv[1:]);"
        "print(code, 'tensorflow' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    command = [sys.executable, "-W", "error", "-c", code, tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    written = [str(tmp_path / name) for name in ("report.html", "report.md")]
    assert done.stdout.splitlines() == [*written, "0 False False"], done.stderr
    assert "to step 5" in page_of(tmp_path)


def page_of(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


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

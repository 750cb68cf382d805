"""The command: run directories and logs in, two files out, and what a person did wrong."""

import re

from hvd_nmt import report
from toy import python

LOG = "*** Global step 1: ***     Train loss: 8.3090\ntime per step = 0:00:0.148\n"
METRICS = (
    '{"kind":"start","time_s":1.0,"hosts":["a"]}\n'
    '{"kind":"train","time_s":2.0,"step":5,"step_time/total_s":0.2,"train_loss":4.0}\n'
    '{"kind":"eval","time_s":3.0,"step":5,"sacrebleu":20.0}\n'
)
CODE = """
import sys, hvd_nmt
loaded = set(sys.modules)
run = hvd_nmt.open_run(sys.argv[1])
print([(one.step, one.loss) for one in run.intervals], run.evaluations[0].bleu)
print([prefix.name for prefix in run.checkpoints], run.verdict.kind, run.state)
print(len(run.answers), any('Cannot read' in one for one in run.problems))
from hvd_nmt import report
code = report.main(sys.argv[1:])
print(code, 'numpy' in loaded, {'tensorflow', 'matplotlib.pyplot'} & set(sys.modules))
"""


def test_a_run_directory_is_read_and_gets_its_report_inside_without_tensorflow(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(METRICS)
    for name in ("model.ckpt-20.index", "model.ckpt-100.index"):
        (tmp_path / name).write_bytes(b"")
    done = python("-W", "error", "-c", CODE, tmp_path, cwd=tmp_path)
    written = [str(tmp_path / name) for name in ("report.html", "report.md")]
    lines = done.stdout.splitlines()
    asked = r"How did it end\? Killed.* Fully trained\? The.* Best checkpoint\? The.* What took .*"
    assert re.fullmatch(asked, " ".join(lines[3:-3])), done.stderr
    assert [*lines[:3], *lines[-3:]] == [
        "[(5, 4.0)] 20.0", "['model.ckpt-20', 'model.ckpt-100'] unknown silent", "11 True",
        *written, "0 False set()",
    ]  # fmt: skip
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


def test_a_mistake_is_one_sentence(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, said in (
        ("nowhere", "nowhere does not exist"),
        (".", ". has no config.yaml and no "),
    ):
        assert said in refused(4, report, name)

"""`hvd_nmt.open_run`: the public way to a run's record."""

import subprocess
import sys

import hvd_nmt
from hvd_nmt.explain import bottleneck
from hvd_nmt.reporting import questions


def test_a_run_directory_tells_its_metrics_and_checkpoints(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"kind":"start","time_s":1.0,"hosts":["a"]}\n'
        '{"kind":"train","time_s":2.0,"step":5,"step_time/total_s":0.2,"train_loss":4.0}\n'
        '{"kind":"eval","time_s":3.0,"step":5,"sacrebleu":20.0}\n'
    )
    for name in ("model.ckpt-20.index", "model.ckpt-100.index"):
        (tmp_path / name).write_bytes(b"")
    run = hvd_nmt.open_run(str(tmp_path))
    assert [(interval.step, interval.loss) for interval in run.intervals] == [(5, 4.0)]
    assert [(scores.step, scores.bleu) for scores in run.evaluations] == [(5, 20.0)]
    assert [prefix.name for prefix in run.checkpoints] == ["model.ckpt-20", "model.ckpt-100"]
    assert run.verdict.kind == bottleneck.UNKNOWN
    assert any("config.yaml is missing" in problem for problem in run.problems)


def test_what_follows_is_that_of_the_report(two_host_run):
    run = questions.RunSummary(two_host_run())
    assert run.verdict == bottleneck.verdict(two_host_run())
    assert run.answers == questions.answers(run.facts)
    assert run.state == "finished"


def test_opening_a_run_imports_no_tensorflow(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    code = (
        "import sys, hvd_nmt; loaded = set(sys.modules);"
        "run = hvd_nmt.open_run(sys.argv[1]); run.verdict, run.answers;"
        "print('numpy' in loaded, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, tmp_path], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("False False\n", "")

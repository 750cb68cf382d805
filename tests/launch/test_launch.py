"""python -m hvd_nmt.launch on one host: two ranks that end, are stopped, killed, stuck, or fail."""

import signal
import sys
from pathlib import Path

import pytest

import launched
import toy
from hvd_nmt.checkpoints.manifest import newest_step
from hvd_nmt.launch import config_of, main, split

STEPS, STUCK_STEP, KILLED_STEP = 40, 12, 25
FAULTY_TRAIN = f"""#!{sys.executable}
import os, signal, sys, time
from pathlib import Path
import hvd_nmt
from hvd_nmt import train
from hvd_nmt.training import step_log

def first_time(name):
    there = Path(name).exists()
    Path(name).touch()
    return not there

def after_step(self, result, real=step_log.StepLog.after_step):
    real(self, result)
    if os.environ["HOROVOD_RANK"] == "1":
        if result.step == {STUCK_STEP} and first_time("stuck"):
            time.sleep(600)
        if result.step == {KILLED_STEP} and first_time("killed"):
            os.kill(os.getpid(), signal.SIGKILL)

step_log.StepLog.after_step = after_step
sys.exit(train.main(sys.argv[3:]))
"""
"""in place of `python`: rank 1 of hvd_nmt.train is stuck once, and kills itself once"""
# Deaf to the first signal, as a rank that saves a large model.
DEAF = """
import pathlib, signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: pathlib.Path("asked").touch())
pathlib.Path("ready").touch()
while True:
    time.sleep(600)
"""


def launch(*words: str, cwd: Path, **variables: str) -> toy.Run:
    command = [sys.executable, "-m", "hvd_nmt.launch", "-np", "2", *words]
    return toy.Run(command, cwd, toy.environment(cwd) | variables)


@pytest.fixture(scope="module")
def stopped(toy_data, tmp_path_factory):
    """A run that SIGTERM stops and the same command finishes, with secrets in the environment."""
    cwd = tmp_path_factory.mktemp("stopped")
    run_dir = cwd / "run"

    def ended(steps, when=None):
        """What a start said, its newest checkpoint, its last step, and what is left of it."""
        options = toy.train_options(toy_data, "run", steps, "--evaluation.sentences", "2")
        run = launch("train", *options, cwd=cwd, **launched.SECRETS)
        try:
            if when is not None:
                run.wait_for(when)
                run.process.send_signal(signal.SIGTERM)
            done, left = run.finished(), run.left_behind(600)
        finally:
            run.kill()
        return done, newest_step(run_dir), toy.steps_done(run_dir), left

    with launched.command_lines_read() as seen:
        first = ended(100_000, when=lambda: toy.steps_done(run_dir) >= 5)
        second = ended(newest_step(run_dir) + 3)
    return {"run_dir": run_dir, "ends": (first, second), "seen": seen}


def test_sigterm_saves_and_ends_with_75(stopped):
    done, saved, reached, left = stopped["ends"][0]
    assert done.returncode == 75, done.stderr
    assert saved == reached
    assert f"the newest checkpoint is of step {saved:,}: " in done.stderr.splitlines()[-1]
    assert left == []


def test_the_same_command_goes_on_to_the_end(stopped):
    (_, saved, *_), (done, last, reached, left) = stopped["ends"]
    assert done.returncode == 0, done.stderr
    assert last == reached == saved + 3
    assert launched.checksum(done.stdout)
    assert left == []


def test_what_happened_is_recorded(stopped):
    found = launched.events(stopped["run_dir"])
    kinds = ["start", "end", "stopped", "start", "end", "finished"]
    assert [event["kind"] for event in found] == kinds
    first, first_end, end_of_first, second, last, finished = found
    assert first["hosts"] == second["hosts"] == {"localhost": 2}
    assert (first["nic"], first["command"][:3]) == ("lo", ["python", "-m", "hvd_nmt.train"])
    assert first["start_id"] != second["start_id"]
    (_, saved, *_), (_, steps, *_) = stopped["ends"]
    assert (first_end["saved_step"], first_end["step"]) == (saved, saved)
    codes = [event["exit_code"] for event in (first_end, end_of_first, last, finished)]
    assert codes == [75, 75, 0, 0]
    assert (last["resumed_step"], last["step"], last["saved_step"]) == (saved, steps, steps)


def test_a_secret_of_the_environment_is_nowhere(stopped):
    assert stopped["seen"] == set()
    for done, *_ in stopped["ends"]:
        launched.require_no_secret(done.stdout + done.stderr, stopped["run_dir"])


def test_what_would_fail_again_is_not_started_again(tmp_path):
    (tmp_path / "fails.py").write_text(
        "import sys; print('hvd_nmt.train: It is wrong.', file=sys.stderr); sys.exit(3)"
    )
    run = launch("--", "python", "fails.py", cwd=tmp_path)
    done = run.finished()
    assert done.returncode == 3, done.stderr
    assert "hvd_nmt.train: It is wrong." in done.stderr.splitlines()
    assert done.stderr.count("starting 2 ranks") == 1
    assert run.left_behind(600) == []


TRAIN = ["python", "-m", "hvd_nmt.train", "--run-dir", "runs/x"]


@pytest.mark.parametrize(
    ("words", "own", "wanted"),
    [
        (["-H", "a:2", "--", *TRAIN], ["-H", "a:2"], TRAIN),
        (["-np", "2", "train", "--run-dir", "runs/x"], ["-np", "2"], TRAIN),
        (["--", "/x/hvd-nmt", "train", *TRAIN[3:]], [], ["/x/hvd-nmt", "train", *TRAIN[3:]]),
        (["--", "echo", "train"], [], ["echo", "train"]),
        (["--help"], ["--help"], []),
    ],
)
def test_the_command_begins_after_two_dashes_or_with_train(
    tmp_path, monkeypatch, words, own, wanted
):
    monkeypatch.chdir(tmp_path)
    assert split(words) == (own, wanted)
    if "runs/x" in words:
        assert config_of(wanted).run_dir == Path("runs/x")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-H", "a:2", "--hostfile", "x", "train"], "not with both"),
        (["-H", "a:2", "-np", "3", "train"], "-np 3 is above the 2 slots of the hosts"),
        (["-H", "a:2", "--min-ranks", "3", "train"], "--min-ranks is 3: give at most 2"),
        (["-H", "a:2", "--min-ranks", "1", "train", "--ranks", "2"], "fixes the number of ranks"),
        (["-H", "a:2", "--restarts-per-hour", "-1", "train"], "-1: it must be at least 0"),
        (["-H", "a:2"], "No command is given: write it after --, or train, as in python -m"),
        (["-H", "a:2", "trian"], "is given; 'trian' is none (did you mean 'train'?): write it"),
        (["train", "--preset", "bsae"], "Unknown preset 'bsae"),
    ],
)
def test_what_cannot_work_together(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_a_host_that_does_not_answer_ends_the_launcher_at_once(capsys):
    assert main(["-H", "nowhere.invalid:2", "--timeout-s", "600", "--", "true"]) == 5
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hvd_nmt.launch: nowhere.invalid: ssh: ")


@pytest.mark.long
def test_the_second_ctrl_c_ends_all_at_once(tmp_path):
    (tmp_path / "deaf.py").write_text(DEAF)
    run = launch("--", "python", "deaf.py", cwd=tmp_path)
    try:
        for ready in ("ready", "asked"):
            run.wait_for((tmp_path / ready).exists)
            run.process.send_signal(signal.SIGINT)
        done = run.finished()
        assert run.left_behind(600) == []
    finally:
        run.kill()
    assert done.returncode == 130, done.stderr


@pytest.mark.long
def test_the_ranks_of_a_launcher_that_was_killed_save_and_end(toy_data, tmp_path):
    run_dir = tmp_path / "run"
    run = launch("train", *toy.train_options(toy_data, "run", 100_000), cwd=tmp_path)
    try:
        run.wait_for(lambda: toy.steps_done(run_dir) >= 12)
        run.process.kill()
        assert run.left_behind(600) == []
    finally:
        run.kill()
    assert newest_step(run_dir) == toy.steps_done(run_dir)


@pytest.fixture(scope="module")
def faulty(toy_data, tmp_path_factory):
    """A run of which one rank was stuck, and later killed."""
    cwd = tmp_path_factory.mktemp("faulty")
    python = launched.program(cwd / "python-with-faults", FAULTY_TRAIN)
    options = toy.train_options(
        toy_data, "run", STEPS, "--checkpoints.every-steps", "10", "--telemetry.report",
        "--training.stuck-after-s", "15",
    )  # fmt: skip
    run = launch("--", python, "-m", "hvd_nmt.train", *options, cwd=cwd)
    try:
        done = run.finished()
        assert run.left_behind(600) == []
    finally:
        run.kill()
    assert done.returncode == 0, done.stderr
    return cwd / "run", done


@pytest.mark.long
def test_a_stuck_rank_is_named_and_killed_and_the_run_goes_on(faulty):
    """The others wait for it, in a collective that has no limit."""
    run_dir, done = faulty
    stuck = "hvd_nmt.launch: rank 1 on localhost hangs in the section 'callbacks after a step' for "
    assert stuck in done.stderr
    assert "in after_step" in done.stderr  # its stack
    assert "rank 0 on" not in done.stderr
    (end, *_) = (event for event in launched.events(run_dir) if event["kind"] == "end")
    assert end["step"] == STUCK_STEP


@pytest.mark.long
def test_a_killed_rank_is_named_and_the_run_is_explained(faulty):
    run_dir, done = faulty
    _, end, last = (event for event in launched.events(run_dir) if event["kind"] == "end")
    assert end["sentence"].startswith("rank 1 on localhost was killed by SIGKILL"), done.stderr
    step, saved = end["step"], end["saved_step"]
    assert last["resumed_step"] == saved
    assert KILLED_STEP - 1 <= step <= KILLED_STEP
    assert saved in (10, 20)  # the newest may have been being written
    assert end["exit_code"] == 137
    assert "stopping" not in done.stderr + done.stdout  # nothing is saved any more
    assert "Traceback" not in done.stderr
    assert (last["exit_code"], last["step"], last["saved_step"]) == (0, STEPS, STEPS)


@pytest.mark.long
def test_the_report_tells_of_restarts(faulty):
    run_dir, _ = faulty
    kinds = [event["kind"] for event in launched.events(run_dir)]
    assert kinds == [*["start", "end", "restart"] * 2, "start", "end", "finished"]
    *ends, _ = (event for event in launched.events(run_dir) if event["kind"] == "end")
    report = (run_dir / "report.md").read_text(encoding="utf-8")
    assert "launch started the ranks 3 times" in report
    assert f"{sum(end['step'] - end['saved_step'] for end in ends):,} steps" in report
    assert "rank 1 on " in report

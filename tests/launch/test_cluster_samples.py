"""The samples for Slurm and Kubernetes: a job that is told to end lets its ranks save first."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

import toy

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
LAUNCHER = """#!/bin/bash
trap 'sleep 0.5; echo saved >>log; exit 75' TERM
echo "$@" >log
for _ in {1..300}; do sleep 0.1; done
"""


def wait_for(path, text, process, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not (path.exists() and text in path.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def program(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)


def test_a_slurm_job_saves_and_queues_again_before_its_time_is_over(tmp_path):
    """Slurm's part is played: its signal to the script, and its command scontrol."""
    program(tmp_path / ".venv" / "bin" / "python", LAUNCHER)
    program(tmp_path / "bin" / "scontrol", '#!/bin/sh\necho "$*" >>called; echo a; echo b\n')
    variables = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7",
                 "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_NODELIST": "[a-b]",
                 "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}  # fmt: skip
    text = (LAUNCH / "slurm.sbatch").read_text()
    assert "\n#SBATCH --signal=B:TERM@120\n" in text
    with subprocess.Popen(
        ["bash", LAUNCH / "slurm.sbatch", "--preset", "base"], env=variables, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as job:  # fmt: skip
        wait_for(tmp_path / "log", "hvd_nmt.train --preset base", job)
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=60)
    assert job.returncode == 75
    first, *_, last = (tmp_path / "log").read_text().splitlines()
    assert re.fullmatch(r"-m hvd_nmt.launch --hostfile \S+ -- python -m hvd_nmt.train .*", first)
    assert last == "saved"
    assert (tmp_path / "called").read_text().splitlines()[-1] == "requeue 7"


def dry_run(words, cwd):
    """What the real launcher makes of the words of a sample, without starting it."""
    done = subprocess.run(
        [sys.executable, "-m", "hvd_nmt.launch", "--dry-run", *words], cwd=cwd,
        env=toy.environment(cwd), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())


def test_the_words_of_the_slurm_job_start_a_run(tmp_path):
    """The sample itself calls the launcher here, on a job of one node, which is this machine."""
    launcher = f'#!/bin/sh\nexec {sys.executable} "$1" "$2" --dry-run "$@" >>log\n'
    launcher = launcher.replace('"$@"', '"${@:3}"').replace("/bin/sh", "/bin/bash")
    program(tmp_path / ".venv" / "bin" / "python", launcher)
    program(tmp_path / "bin" / "scontrol", "#!/bin/sh\necho localhost\n")
    variables = toy.environment(tmp_path) | {
        "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2",
        "SLURM_JOB_NODELIST": "x",
    }  # fmt: skip
    variables["PATH"] = f"{tmp_path}/bin:{variables['PATH']}"
    done = subprocess.run(
        ["bash", LAUNCH / "slurm.sbatch", "--run-dir", "runs/x"], env=variables, cwd=tmp_path,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = dict(line.split(maxsplit=1) for line in (tmp_path / "log").read_text().splitlines())
    assert (found["hosts"], found["ranks"], found["run"]) == ("localhost:2", "2", "runs/x")


def test_the_words_of_the_kubernetes_job_start_a_run(tmp_path):
    job = yaml.safe_load((LAUNCH / "mpijob.yaml").read_text())
    replicas = job["spec"]["mpiReplicaSpecs"]
    (container,) = replicas["Launcher"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "hvd_nmt.launch"]
    hostfile = tmp_path / "hosts"
    hostfile.write_text("localhost slots=2\n")
    words = [str(hostfile) if word == "/etc/mpi/hostfile" else word for word in container["args"]]
    assert str(hostfile) in words
    found = dry_run(words, tmp_path)
    assert (found["hosts"], found["run"]) == ("localhost:2", "runs/demo")
    assert found["command"].startswith("python -m hvd_nmt.train ")
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert f"{container['workingDir']}/runs" in mounted  # launch.jsonl is kept there

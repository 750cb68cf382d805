"""The samples for Slurm and Kubernetes: a job that is told to end lets its ranks save first."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

import toy
from launched import program

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
LAUNCHER = """#!/bin/bash
trap 'sleep 0.2; echo saved >>log; exit 75' TERM
echo "$@" >log
while true; do sleep 0.1; done
"""


def dry_run(words, cwd):
    """What the real launcher makes of the words of a sample, with a host file of this machine."""
    (cwd / "hosts").write_text("localhost slots=2\n")
    words = [*words]
    words[words.index("--hostfile") + 1] = "hosts"
    words = "-m", "hvd_nmt.launch", "--dry-run", *words
    done = toy.python(*words, cwd=cwd, env=toy.environment(cwd))
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())


@pytest.mark.parametrize(("number", "again"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_a_slurm_job_saves_and_queues_again_before_its_time_is_over(tmp_path, number, again):
    """Slurm is played: its signal to the script, TERM for scancel, and its program scontrol."""
    program(tmp_path / ".venv" / "bin" / "python", LAUNCHER)
    program(tmp_path / "bin" / "scontrol", '#!/bin/sh\necho "$*" >>called; echo a; echo b\n')
    variables = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7",
                 "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_NODELIST": "[a-b]",
                 "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}  # fmt: skip
    job = toy.Run(["bash", f"{LAUNCH}/slurm.sbatch", "--run-dir", "runs/x"], tmp_path, variables)
    log = tmp_path / "log"
    job.wait_for(lambda: log.exists() and "hvd_nmt.train --run-dir runs/x" in log.read_text())
    script = psutil.Process(job.process.pid)
    job.wait_for(lambda: script.status() == psutil.STATUS_SLEEPING)  # it waits, and has its trap
    script.send_signal(number)
    assert job.finished().returncode == 75
    first, *_, last = log.read_text().splitlines()
    assert last == "saved"
    assert ((tmp_path / "called").read_text().splitlines()[-1] == "requeue 7") is again
    assert re.fullmatch(r"-m hvd_nmt.launch --hostfile \S+ -- python -m hvd_nmt.train .*", first)
    found = dry_run(first.split()[2:], tmp_path)
    assert (found["hosts"], found["ranks"], found["run"]) == ("localhost:2", "2", "runs/x")


def test_the_words_of_the_kubernetes_job_start_a_run(tmp_path):
    replicas = yaml.safe_load((LAUNCH / "mpijob.yaml").read_text())["spec"]["mpiReplicaSpecs"]
    (container,) = replicas["Launcher"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "hvd_nmt.launch"]
    assert "/etc/mpi/hostfile" in container["args"]
    found = dry_run(container["args"], tmp_path)
    assert (found["hosts"], found["run"]) == ("localhost:2", "runs/demo")
    assert found["command"].startswith("python -m hvd_nmt.train ")
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert f"{container['workingDir']}/runs" in mounted  # launch.jsonl is kept there


def test_mpirun_keeps_the_variables_of_open_mpi(tmp_path):
    """As a cluster's module sets them; as root it does not start without its own two."""
    program(
        tmp_path / "venv/bin/python", f'#!/bin/sh\n[ "$1" = -c ] || exec {sys.executable} "$@"\n'
    )
    program(tmp_path / "bin" / "mpirun", '#!/bin/sh\nenv\necho "$@"\n')
    own = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "UCX_TLS": "tcp", "PMIX_MCA_x": "a b", "SECRET": "s"}
    own |= {"VENV": f"{tmp_path}/venv", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    words = [LAUNCH / "mpirun.sh", "-n", "2", "--", "python", "-m", "hvd_nmt.train"]
    done = subprocess.run(words, env=own, capture_output=True, text=True, check=True)
    assert {"OMPI_ALLOW_RUN_AS_ROOT=1", "UCX_TLS=tcp", "PMIX_MCA_x=a b"} < {
        *done.stdout.split("\n")
    }
    assert "-x UCX_TLS " in done.stdout
    assert "SECRET" not in done.stdout

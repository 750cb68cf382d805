"""launch/slurm.sbatch under a real Slurm: its controller, and a node on each of the two hosts."""

import os
import shutil
import subprocess
import sys

import pytest

import toy
from faults import events_of, of_start
from hvd_nmt.checkpoints.manifest import newest_step
from hvd_nmt.config.command_line import LOCAL_FILE

CONF = """
ClusterName=rig
SlurmctldHost=v100a
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
StateSaveLocation={0}
SlurmdSpoolDir={0}/%n
SlurmctldPidFile={0}/slurmctld.pid
SlurmdPidFile={0}/%n.pid
GresTypes=gpu
NodeName=v100a,v100b CPUs=16 Gres=gpu:2
PartitionName=low Nodes=ALL Default=YES GraceTime=30
PartitionName=high Nodes=ALL PriorityTier=2
"""


@pytest.fixture
def slurm(two_hosts, tmp_path):
    """A function that runs one of its commands on the first host, and one that waits."""
    if shutil.which("slurmctld") is None:
        pytest.skip("needs Slurm (apt-get install slurm-wlm)")
    (tmp_path / "slurm.conf").write_text(CONF.format(tmp_path))
    (tmp_path / "gres.conf").write_text("Name=gpu File=/dev/tty[0-1]\n")
    # A network namespace has no cgroups that would tell their version.
    (tmp_path / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    own = {"PATH": os.environ["PATH"], "SLURM_CONF": f"{tmp_path}/slurm.conf", "VENV": sys.prefix}
    environment = toy.environment(tmp_path) | own

    def do(*words):
        words = [*two_hosts.on("v100a"), *words]
        return subprocess.check_output(words, cwd=tmp_path, env=environment, text=True).strip()

    daemons = [
        toy.Run([*two_hosts.on(host), program, "-D"], tmp_path, environment)
        for host, program in (("v100a", "slurmctld"), ("v100a", "slurmd"), ("v100b", "slurmd"))
    ]
    yield do, daemons[0].wait_for
    do("scancel", "--user=root")
    daemons[0].wait_for(lambda: do("squeue", "--noheader") == "")
    for daemon in daemons:
        daemon.kill()


def test_a_job_saves_and_is_queued_again_once_but_not_after_scancel(slurm, toy_data, tmp_path):
    do, wait_for = slurm
    run_dir, defaults = tmp_path / "run", tmp_path / LOCAL_FILE
    defaults.write_text("training: {max_steps: 1000000}\n")
    *options, _, _ = toy.train_options(toy_data, "run", 0)  # without the number of steps
    submit = ("sbatch", "--parsable")
    script = (*submit, f"{toy.ROOT}/launch/slurm.sbatch", *options, "--evaluation.sentences", "4")

    def has_become(job, state):
        return do("squeue", "--noheader", "--states=all", "--format=%T", "--jobs", job) == state

    def end(job, state, *words):
        """Have it train, do that, and see how it ends."""
        before = toy.steps_done(run_dir)
        wait_for(lambda: toy.steps_done(run_dir) > before + 10)
        do(*words)
        wait_for(lambda: has_become(job, state))
        assert newest_step(run_dir) == toy.steps_done(run_dir)
        assert list(of_start(events_of(run_dir, "start")[-1]["start_id"])) == []

    job = do(*script)
    end(job, "CANCELLED", "scancel", job)
    job = do(*script)
    end(job, "PENDING", *submit, "-phigh", "-N2", "--gpus-per-node=2", "--wrap=sleep 1")
    end(job, "PENDING", "scontrol", "update", f"JobId={job}", "TimeLimit=2")  # as --signal
    defaults.write_text(f"training: {{max_steps: {newest_step(run_dir) + 20}}}\n")
    do("scontrol", "update", f"JobId={job}", "TimeLimit=60")
    wait_for(lambda: has_become(job, "COMPLETED"))
    assert " Restarts=2 " in do("scontrol", "show", "job", job)
    assert [start["lost_steps"] for start in toy.metrics(run_dir, "start")] == [0, 0, 0, 0]

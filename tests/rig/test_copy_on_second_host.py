"""Two hosts with real ssh and no shared disk: the first loses its own, and the run goes on."""

import shutil

import toy
from forks import EAGER
from hvd_nmt.checkpoints import find
from hvd_nmt.checkpoints.find import newest_first
from hvd_nmt.checkpoints.names import SUFFIXES

HOSTS = ("v100a", "v100b")
DISKS_OF_THEIR_OWN = """
import os, socket, sys
from hvd_nmt import train
os.chdir(socket.gethostname())
sys.exit(train.main())
"""
"""both hosts are one machine, so each works in the folder of its name"""


def train(two_hosts, host_commands, folder, data, steps):
    script = folder / "train_here.py"
    script.write_text(DISKS_OF_THEIR_OWN, encoding="utf-8")
    for host in HOSTS:
        (folder / host).mkdir(exist_ok=True)
    options = toy.train_options(
        data, "run", steps, "--checkpoints.every-steps", "2", "--evaluation.every-steps", "20"
    )
    launcher = ("env", f"{EAGER}=1", *two_hosts.horovodrun("v100a:1,v100b:1"))
    done = two_hosts.run((*launcher, *host_commands.command(str(script)), *options), cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_host_loses_its_disk(two_hosts, host_commands, toy_data, tmp_path):
    """And with it all its records."""
    said = train(two_hosts, host_commands, tmp_path, toy_data, 5)
    assert "directories each of v100a, v100b has its own" in said
    first, second = (newest_first(tmp_path / host / "run") for host in HOSTS)
    assert [c.step for c in first] == [c.step for c in second] == [5, 4, 2]
    for ours, theirs in zip(first, second, strict=True):
        find.verify(theirs)
        assert theirs.manifest.files[SUFFIXES[0]] == ours.manifest.files[SUFFIXES[0]]

    shutil.rmtree(tmp_path / "v100a" / "run")
    said = train(two_hosts, host_commands, tmp_path, toy_data, 8)
    assert "newest      the checkpoint of step 5 on v100b" in said
    assert [line["step"] for line in toy.metrics(tmp_path / "v100a" / "run")] == [*range(1, 9)]

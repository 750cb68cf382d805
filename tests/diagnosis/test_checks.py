"""Every check of the doctor, passing on two good hosts and failing on one that is made bad."""

import dataclasses
from pathlib import Path

import pytest

from hvd_nmt.config import CheckpointConfig, Config, DataConfig, TrainingConfig, presets
from hvd_nmt.diagnosis import checks
from hvd_nmt.diagnosis.checks import FAIL, OK, PlannedRun, examine, table
from hvd_nmt.hosts.facts import PACKAGES, HostFacts
from hvd_nmt.hosts.host_list import Host

GB = 1_000_000_000
FILES = dataclasses.replace(
    presets()["base"][1],
    data=DataConfig(Path("data/wmt"), corpus="files", vocabulary_size=32768),
    training=TrainingConfig(tokens_per_step=16_000),
)


def nics(**speeds):
    return {name: {"is_up": True, "link_mbit_per_s": speed} for name, speed in speeds.items()}


def card(index, error=None):
    return {"index": index, "uuid": f"GPU-{index}", "name": "Tesla V100", "error": error}


def gpu(number, **changes):
    gpus = [card(index) for index in range(number)]
    return {"gpus": gpus, "unavailable": None, "visible_devices": None} | changes


def good_facts(name, other):
    return {
        "host": name,
        "packages": dict.fromkeys(PACKAGES, "1.0") | {"Python": "3.11.7"},
        "code": "c0de" * 16,
        "horovod": {"tensorflow": True, "nccl": True, "gloo": True, "mpi": False},
        "gpu": gpu(2),
        "cores": 8,
        "nics": nics(eth0=10_000, lo=None),
        "names": {name: ["10.0.0.1"], other: ["10.0.0.2"]},
        "routes": {name: "lo", other: "eth0"},
        "run_dir": {
            "path": "runs/base", "free_bytes": 100 * GB, "error": None, "held_by": None,
            "held_bytes": 0,
        },
        "data": {
            "error": None, "exists": True, "hash": "da7a" * 16, "vocabulary_size": 32768,
            "pairs": 4_500_000,
        },
    }  # fmt: skip


def answers(**changes):
    """Two good hosts; `changes` are put into the facts of v100b. A dictionary is merged."""
    first = HostFacts(Host("v100a", 2), good_facts("v100a", "v100b"), clock_differs_s=0.001)
    facts = good_facts("v100b", "v100a")
    for name, value in changes.items():
        facts[name] = facts[name] | value if isinstance(value, dict) else value
    return [first, dataclasses.replace(first, host=Host("v100b", 2), facts=facts)]


def planned(config=FILES, **changes):
    """A run on two hosts of which v100b has other facts."""
    return PlannedRun(config, answers(**changes))


def on_both(config=FILES, **facts):
    """A run on two hosts that have the same other facts."""
    return PlannedRun(config, [dataclasses.replace(a, facts=a.facts | facts) for a in answers()])


def unreached(error):
    """A run of which one host did not answer."""
    return PlannedRun(FILES, [answers()[0], HostFacts(Host("v100b", 2), error=error)])


def with_checkpoints(**options):
    return dataclasses.replace(FILES, checkpoints=CheckpointConfig(**options))


NO_HOROVOD = dict.fromkeys(("tensorflow", "nccl", "gloo", "mpi"), False)
EMBEDDED = dataclasses.replace(FILES, data=DataConfig())
MISSING = {"error": "data/wmt does not exist: make one", "exists": False}
ROOM = {"free_bytes": 3 * GB}
RUNS = {
    "ssh: the key is unknown": unreached("root@v100b: Permission denied (publickey)."),
    "ssh: no answer": unreached("no answer within 20 s"),
    "no checkout there": unreached("sh: 1: cd: can't cd to /home/me/nmt"),
    "a file system that hangs": unreached("run_dir: no answer within 14 s"),
    "another Python": planned(packages={"Python": "3.11.2"}),
    "another TensorFlow": planned(packages={"tensorflow": "2.17.0"}),
    "no Horovod package": planned(packages={"horovod": None}),
    "another code": planned(code="beef" * 16),
    "no Horovod": planned(horovod=NO_HOROVOD),
    "NCCL on one host": planned(horovod={"nccl": False}),
    "NCCL on no host": on_both(horovod=NO_HOROVOD | {"tensorflow": True}),
    # 2 x 3/4 x 243.5 MB at 12.5 MB/s: what people measured at such a port.
    "a slow link": planned(nics=nics(eth0=100)),
    "a link of 1,000 Mbit/s": planned(nics=nics(eth0=1000)),
    "a link that does not tell": planned(nics=nics(eth0=None)),
    "a faster card": planned(nics=nics(eth0=10_000, eth1=100_000, docker0=400_000)),
    "cards of different names":
        planned(routes={"v100a": "ens3"}, nics=nics(ens3=10_000)),
    "no route": planned(routes={"v100a": None}),
    "the other name is unknown": planned(names={"v100a": []}),
    "the own name is unknown": planned(names={"v100b": []}),
    "the other name leads here": planned(names={"v100a": ["::1"]}),
    "another clock":
        PlannedRun(FILES, [answers()[0], dataclasses.replace(answers()[1], clock_differs_s=3.2)]),
    "a read-only run directory": planned(run_dir={"error": "/mnt: Read-only file system"}),
    "another run holds the directory":
        planned(run_dir={"held_by": "process 77 on v100a"}),
    "no room for checkpoints": planned(with_checkpoints(keep=3, keep_best=5), run_dir=ROOM),
    "no room, but it holds most of them":
        planned(with_checkpoints(keep=3, keep_best=5),
                run_dir=ROOM | {"held_bytes": 8 * 730 * 10**6}),
    "no data": planned(data=MISSING),
    "no data, which the embedded corpus makes": planned(EMBEDDED, data=MISSING),
    "damaged embedded data":
        planned(EMBEDDED, data=MISSING | {"exists": True, "error": "manifest.json is damaged"}),
    "other data": planned(data={"hash": "0123" * 16}),
    "8 ranks asked for": planned(dataclasses.replace(FILES, ranks=8)),
    "one GPU": planned(gpu=gpu(1)),
    "one GPU visible": planned(gpu=gpu(2, visible_devices="1")),
    "no GPU visible": planned(gpu=gpu(2, visible_devices="")),
    "GPUs by name": planned(gpu=gpu(2, visible_devices="GPU-1,GPU-0")),
    "MIG instances": planned(gpu=gpu(2, visible_devices="MIG-a,MIG-b")),
    "four GPUs": planned(gpu=gpu(4)),
    "no driver": planned(gpu=gpu(0, unavailable="no NVIDIA driver: Driver Not Loaded")),
    "a lost GPU": planned(gpu=gpu(2, gpus=[card(0), card(1, "GPU is lost")])),
    "a lost GPU that nobody sees":
        on_both(gpu=gpu(3, gpus=[card(0), card(1), card(2, "GPU is lost")],
                        visible_devices="0,1")),
    "no GPU, one core": on_both(gpu=gpu(0), cores=1),
}  # fmt: skip
"""what is the matter -> the run that is judged"""


def test_each_check_finds_what_is_the_matter_and_nothing_else(golden_page):
    """All of two good hosts, and of others what is not as it should be."""
    good = examine(planned())
    assert {check.status for check in good} == {OK}
    parts = [table(good)]
    for matter, run in RUNS.items():
        found = [check for check in examine(run) if check.status != OK]
        parts.append(f"# {matter}\n{table(found) or 'all is well'}")
    golden_page("doctor-checks.txt", "\n\n".join(parts) + "\n")


def test_most_hosts_are_right():
    """Not the first one."""
    second, first = answers(code="beef" * 16)
    third = dataclasses.replace(second, host=Host("v100c", 2))
    found = checks._compare("code of hvd_nmt", [first, second, third])
    assert [check.host for check in found if check.status == FAIL] == ["v100b"]


def test_a_run_that_freezes_or_averages_is_asked_for_as_such():
    asked = [
        PlannedRun(dataclasses.replace(FILES, training=TrainingConfig(**options)), answers())
        for options in ({}, {"freeze": "encoder,embedding"}, {"ema_decay": 0.999})
    ]
    usual, frozen, averaged = (each.checkpoint.n_bytes for each in asked)
    assert [each.gradient_bytes for each in asked[::2]] == [4 * 60_880_896] * 2
    without = asked[0].checkpoint.trained - asked[1].checkpoint.trained
    assert without > 32768 * 512
    assert usual - frozen == pytest.approx(8 * without, rel=0.001)
    assert averaged - usual == pytest.approx(4 * 60_880_896, rel=0.001)


def test_one_host_alone_is_not_asked_for_a_network():
    names = {check.name for check in examine(PlannedRun(Config(), answers()[:1]))}
    assert not names & {"names", "network"}

"""Every check of the doctor, passing on two good hosts and failing on one that is made bad."""

import dataclasses
from pathlib import Path

import pytest

from hvd_nmt.config import CheckpointConfig, Config, DataConfig, TrainingConfig, presets
from hvd_nmt.diagnosis import equality, network_checks
from hvd_nmt.diagnosis.checks import examine
from hvd_nmt.diagnosis.hosts import Answer, Host
from hvd_nmt.diagnosis.planned_run import PlannedRun
from hvd_nmt.diagnosis.table import FAIL, OK, WARN, Check, table

GB = 1_000_000_000
V100 = {"name": "Tesla V100-SXM2-16GB", "capability": [7, 0], "error": None,
        "memory_total_bytes": 16 * GB, "memory_used_bytes": 0}  # fmt: skip
FILES = dataclasses.replace(
    presets()["base"][1],
    data=DataConfig(Path("data/wmt"), corpus="files", vocabulary_size=32768),
    training=TrainingConfig(tokens_per_step=16_000),
)


def with_tokens(tokens, micro_batches=1):
    training = TrainingConfig(tokens_per_step=tokens, micro_batches=micro_batches)
    return dataclasses.replace(FILES, training=training)


def nics(**speeds):
    return {name: {"is_up": True, "is_loopback": False, "link_mbit_per_s": speed}
            for name, speed in speeds.items()}  # fmt: skip


def gpu(number, **changes):
    gpus = [{**V100, "index": i, "uuid": f"GPU-{i}"} for i in range(number)]
    return {"gpus": gpus, "driver": "535.1", "unavailable": None, "problems": [],
            "visible_devices": None} | changes  # fmt: skip


def good_facts(name, other):
    return {
        "host": name,
        "python": "3.11.7",
        "packages": dict.fromkeys(equality.NEEDED, "1.0")
        | {"numpy": "2.0.2", "nvidia-cudnn-cu12": "9.3.0.75"},
        "cuda_architectures": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
        "code": "c0de" * 16,
        "horovod": {"tensorflow": True, "nccl": True, "gloo": True, "mpi": False},
        "gpu": gpu(2),
        "cpu": {"cores": 8, "bfloat16": False},
        "memory": {"total_bytes": 64 * GB, "available_bytes": 60 * GB},
        "nics": nics(eth0=10_000)
        | {"lo": {"is_up": True, "is_loopback": True, "link_mbit_per_s": None}},
        "names": {name: ["10.0.0.1"], other: ["10.0.0.2"]},
        "routes": {
            name: {"source": "10.0.0.1", "nic": "lo"},
            other: {"source": "10.0.0.1", "nic": "eth0"},
        },
        "disk": {"free_bytes": 100 * GB, "path": "/home"},
        "run_dir": {"path": "runs/base", "error": None, "held_by": None, "held_bytes": 0},
        "data": {
            "error": None, "exists": True, "hash": "da7a" * 16, "vocabulary_hash": "50ca" * 16,
            "vocabulary_size": 32768, "verified": True, "pairs": 4_500_000,
            "source_tokens": 120 * 10**6, "target_tokens": 125 * 10**6,
            "worst_batch": {"error": None, "rows": 80, "source_length": 56, "target_length": 56},
        },
        "problems": {},
    }  # fmt: skip


def answers(**changes):
    """Two good hosts; `changes` are put into the facts of v100b. A dictionary is merged."""
    first = Answer(Host("v100a", 2), good_facts("v100a", "v100b"), None, True, 0.4, 0.001, 0.0005)
    facts = good_facts("v100b", "v100a")
    for name, value in changes.items():
        merge = isinstance(value, dict) and isinstance(facts[name], dict)
        facts[name] = facts[name] | value if merge else value
    return [first, dataclasses.replace(first, host=Host("v100b", 2), facts=facts)]


def both_with(**facts):
    """Two hosts that are good but for the same facts."""
    return [dataclasses.replace(each, facts=each.facts | facts) for each in answers()]


def judged(name, found, host="v100b", config=FILES):
    """The check of that name of that host."""
    (check,) = [c for c in examine(PlannedRun(config, found)) if (c.name, c.host) == (name, host)]
    return check


def test_two_good_hosts_pass_every_check():
    found = examine(PlannedRun(FILES, answers()))
    assert {check.status for check in found} == {OK}, [c for c in found if c.status != OK]
    assert {check.remedy for check in found} == {""}
    assert {check.name for check in found} == {
        "ssh", "Python", "packages", "code of hvd_nmt", "Horovod build", "precision",
        "NVIDIA driver", "data", "data hash", "vocabulary hash", "names", "clock", "GPUs",
        "compute capability", "memory", "network", "disk", "run directory",
    }  # fmt: skip
    assert all({"v100a", "v100b"} == {c.host for c in found if c.name == name}
               for name in {check.name for check in found})  # fmt: skip


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("root@v100b: Permission denied (publickey).", "ssh-copy-id v100b"),
        ("Host key verification failed.", "once, by hand: ssh v100b"),
        ("ssh: Could not resolve hostname v100b: Name or service not known", "/etc/hosts"),
        ("ssh: connect to host v100b port 22: Connection refused", "start sshd on v100b"),
        ("no answer within 20 s", "firewall"),
    ],
)
def test_a_host_that_ssh_does_not_reach(error, remedy):
    hosts = answers()
    hosts[1] = Answer(Host("v100b", 2), error=error, reached=False)
    check = judged("ssh", hosts)
    assert (check.status, check.found) == (FAIL, error)
    assert remedy in check.remedy
    # Nothing is said about the rest of it, and the other host is still looked at.
    named = {check.name for check in examine(PlannedRun(FILES, hosts)) if check.host == "v100b"}
    assert named == {"ssh"}
    assert judged("GPUs", hosts, "v100a").status == OK


def test_a_host_without_the_checkout():
    hosts = answers()
    hosts[1] = Answer(Host("v100b", 2), error="sh: 1: cd: can't cd to /home/me/nmt", reached=True)
    check = judged("ssh", hosts)
    assert check.status == FAIL
    assert "can't cd to /home/me/nmt" in check.found
    assert "same path" in check.remedy


NO_HOROVOD = dict.fromkeys(("tensorflow", "nccl", "gloo", "mpi"), False)


@pytest.mark.parametrize(
    ("name", "changes", "status", "found"),
    [
        ("Python", {"python": "3.11.2"}, FAIL, "3.11.2, but 3.11.7 on v100a"),
        ("packages", {"packages": {"tensorflow": "2.17.0"}}, FAIL,
         "tensorflow 2.17.0 instead of 1.0"),
        ("packages", {"packages": {"horovod": None}}, FAIL, "no horovod"),
        ("packages", {"packages": {"numpy": "2.0.1"}}, WARN, "numpy 2.0.1 instead of 2.0.2"),
        ("code of hvd_nmt", {"code": "beef" * 16}, FAIL, "beefbeefbeef, but c0dec0dec0de on v100a"),
        ("precision", {"gpu": gpu(1, gpus=[{**V100, "index": 0, "uuid": "GPU-0",
                                             "capability": [8, 0]}])},
         FAIL, "bfloat16, but float16 on v100a"),
        ("NVIDIA driver", {"gpu": {"driver": "470.2"}}, WARN, "470.2, but 535.1 on v100a"),
        ("Horovod", {"horovod": NO_HOROVOD}, FAIL,
         "Horovod is missing or was built without TensorFlow"),
        # Without NCCL on one host of two the ranks could not talk to each other.
        ("Horovod build", {"horovod": {"nccl": False}}, FAIL,
         "built with Gloo, but built with NCCL, Gloo on v100a"),
        # 2 x 3/4 x 243.5 MB at 12.5 MB/s: what people measured at such a port.
        ("network", {"nics": nics(eth0=100)}, WARN,
         "eth0 to the others, 100 Mbit/s: 365.3 MB a step take 29.22 s or more"),
        ("network", {"routes": {"v100a": {"source": None, "nic": None}}}, FAIL,
         "no route to v100a"),
        ("run directory", {"run_dir": {"error": "/mnt: Read-only file system"}}, FAIL,
         "cannot write /mnt: Read-only file system"),
        ("data", {"data": {"worst_batch": {"error": "tokens_per_step is 40, the longest has 96"}}},
         FAIL, "tokens_per_step is 40, the longest has 96"),
        ("data hash", {"data": {"hash": "0123" * 16}}, FAIL,
         "012301230123, but da7ada7ada7a on v100a"),
        ("vocabulary hash", {"data": {"vocabulary_hash": "0123" * 16}}, FAIL,
         "012301230123, but 50ca50ca50ca on v100a"),
    ],
)  # fmt: skip
def test_what_is_wrong_on_one_host(name, changes, status, found):
    hosts = answers(**changes)
    check = judged(name, hosts)
    assert (check.status, check.found) == (status, found)
    assert check.remedy
    others = [each for each in examine(PlannedRun(FILES, hosts)) if each.host == "v100a"]
    assert {each.status for each in others} == {OK}


def test_most_hosts_are_right():
    first, second = answers()
    third = dataclasses.replace(second, host=Host("v100c", 2))
    first = dataclasses.replace(first, facts=first.facts | {"python": "3.11.2"})
    found = list(equality.compare([first, second, third], FILES))
    bad = [check.host for check in found if check.name == "Python" and check.status == FAIL]
    assert bad == ["v100a"]


def test_horovod_without_nccl():
    hosts = both_with(horovod=NO_HOROVOD | {"tensorflow": True})
    found = [c for c in examine(PlannedRun(FILES, hosts)) if c.status == WARN]
    assert {(c.name, c.host) for c in found} == {("Horovod", "v100a"), ("Horovod", "v100b")}
    assert all("without NCCL" in c.found and "GPU=1" in c.remedy for c in found)
    assert judged("Horovod", answers(horovod=NO_HOROVOD)).remedy == "make install there"


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        (gpu(1), FAIL, "2 slots, 1 GPU visible of 1: Tesla V100"),
        (gpu(2, visible_devices="1"), FAIL, "2 slots, 1 GPU visible of 2"),
        (gpu(2, visible_devices=""), FAIL, "2 slots, 0 GPUs visible of 2"),
        (gpu(2, visible_devices="GPU-1,GPU-0"), OK, "2 slots, 2 GPUs visible of 2"),
        (gpu(2, visible_devices="MIG-a,MIG-b"), OK, "2 slots, 2 GPUs visible of 2"),
        (gpu(4), WARN, "2 slots, 4 GPUs visible of 4"),
        (gpu(0, unavailable="no NVML: Driver Not Loaded"), FAIL, "no GPU (no NVML: Driver Not"),
        (gpu(2, problems=["GPU 1 does not answer: GPU is lost"]), FAIL, "GPU is lost"),
        (gpu(2, gpus=[{**V100, "index": 0, "uuid": "GPU-0", "error": "ECC"}]), FAIL, "GPU 0: ECC"),
    ],
)
def test_gpus_against_slots(changes, status, words):
    check = judged("GPUs", answers(gpu=changes))
    assert check.status == status
    assert words in check.found
    assert bool(check.remedy) == (status != OK)


def of(index, name, capability):
    return {**V100, "index": index, "uuid": f"GPU-{index}", "name": name, "capability": capability}


K80, H100, SILENT = ("Tesla K80", [3, 7]), ("H100", [9, 0]), ("V100", None)


@pytest.mark.parametrize(
    ("cards", "status", "found"),
    [
        ([K80, K80], FAIL, "TensorFlow 1.0 has no code for Tesla K80 (3.7)"),
        ([H100, K80], FAIL, "TensorFlow 1.0 has no code for Tesla K80 (3.7)"),
        # Two GPUs are left for the two slots.
        ([H100, H100, K80], WARN, "TensorFlow 1.0 has no code for Tesla K80 (3.7)"),
        ([H100, SILENT], OK, "TensorFlow 1.0 and cuDNN 9.3.0.75 have code for H100 (9.0)"),
    ],
)
def test_gpus_that_tensorflow_was_not_compiled_for(cards, status, found):
    gpus = [of(index, *card) for index, card in enumerate(cards)]
    check = judged("compute capability", answers(gpu={"gpus": gpus}))
    assert (check.status, check.found) == (status, found)
    assert ("CUDA_VISIBLE_DEVICES" in check.remedy) == (status != OK)


def test_gpus_that_are_hidden_or_do_not_tell_their_capability_are_not_judged():
    hidden = {"gpus": [of(0, *H100), of(1, *K80)], "visible_devices": "0"}
    assert judged("compute capability", answers(gpu=hidden)).status == OK
    silent = examine(PlannedRun(FILES, both_with(gpu=gpu(2, gpus=[of(0, *SILENT)]))))
    assert "compute capability" not in {check.name for check in silent}


def test_tensorflow_without_cuda_beside_gpus():
    check = judged("compute capability", answers(cuda_architectures=[]))
    assert (check.status, check.remedy) == (FAIL, "GPU=1 make install there")
    assert check.found == "there are GPUs, but TensorFlow 1.0 was built without CUDA"
    without_gpus = examine(PlannedRun(FILES, both_with(gpu=gpu(0), cuda_architectures=[])))
    assert "compute capability" not in {check.name for check in without_gpus}


def test_cudnn_of_unknown_version_is_not_judged():
    check = judged("compute capability", answers(packages={"nvidia-cudnn-cu12": None}))
    assert (check.status, check.found) == (OK, f"TensorFlow 1.0 has code for {V100['name']} (7.0)")


def test_more_slots_than_cores_without_gpus():
    hosts = both_with(gpu=gpu(0), cpu={"cores": 1, "bfloat16": True})
    check = judged("GPUs", hosts)
    assert (check.status, check.found) == (WARN, "no GPU: 2 slots on 1 core")
    assert judged("precision", hosts).found == "bfloat16"


def hosts_with_a_worst_batch():
    """Two hosts with the data, and the batch of 100,000 tokens that both tell."""
    worst = {"error": None, "rows": 450, "source_length": 56, "target_length": 56}
    hosts = answers(data={"worst_batch": worst})
    hosts[0].facts["data"]["worst_batch"] = worst
    return hosts, worst


def test_a_batch_that_will_not_fit_is_known_before_with_the_tokens_that_would():
    hosts, worst = hosts_with_a_worst_batch()
    check = judged("memory", hosts, config=with_tokens(100_000))
    assert check.status == FAIL
    assert "of 16.0 GB free on each GPU (450 x 56+56 tokens)" in check.found
    fits = tokens_in(check.remedy)
    assert 20_000 < fits < 100_000
    worst["rows"] = -(-450 * fits // 100_000)
    assert judged("memory", hosts, config=with_tokens(100_000)).status == OK


def test_slices_are_what_auto_takes_and_what_is_advised():
    hosts, _ = hosts_with_a_worst_batch()
    check = judged("memory", hosts, config=with_tokens(100_000))
    slices = int(check.remedy.partition("micro-batches ")[2].partition(",")[0])
    assert slices in (2, 4, 8)
    for taken in ("auto", slices):
        check = judged("memory", hosts, config=with_tokens(100_000, taken))
        assert check.status == OK
        assert f"(450 x 56+56 tokens in {slices} slices)" in check.found
    assert judged("memory", hosts, config=with_tokens(100_000, slices // 2)).status != OK


def test_auto_takes_on_all_hosts_what_the_fullest_needs():
    hosts, _ = hosts_with_a_worst_batch()
    full = [{**V100, "index": i, "uuid": f"GPU-{i}", "memory_used_bytes": 9 * GB} for i in (0, 1)]
    hosts[1].facts["gpu"]["gpus"] = full
    found = examine(PlannedRun(with_tokens(100_000, "auto"), hosts, lambda tokens: None))
    slices = {check.found.partition(" tokens in ")[2] for check in found if check.name == "memory"}
    assert len(slices) == 1
    assert int(slices.pop().split()[0]) >= 4


def test_the_tokens_that_would_fit_are_asked_of_the_data_again():
    """In smaller steps other sentences meet: here the longest ones alone, twice as long."""

    def worst_step(tokens):
        asked.append(tokens)
        rows = -(-tokens // 448)
        return {"error": None, "rows": rows, "source_length": 112, "target_length": 112}

    asked = []
    hosts, worst = hosts_with_a_worst_batch()
    found = examine(PlannedRun(with_tokens(100_000), hosts, worst_step))
    (remedy,) = {check.remedy for check in found if check.name == "memory"}
    fits = tokens_in(remedy)
    assert fits == asked[-1] < asked[0]
    worst |= worst_step(fits)
    assert judged("memory", hosts, config=with_tokens(fits)).status == OK


def tokens_in(remedy):
    """The number of tokens per step that is advised."""
    return int(remedy.partition("tokens-per-step to ")[2].split(", ")[0].replace(",", ""))


def test_without_the_data_a_bound_of_the_memory_only_warns():
    hosts = both_with(data={"error": "data/wmt does not exist", "exists": False})
    check = judged("memory", hosts, config=with_tokens(100_000))
    assert check.status == WARN
    assert "needs at most" in check.found
    assert "x 256+256 tokens" in check.found
    fits = tokens_in(check.remedy)
    assert judged("memory", hosts, config=with_tokens(fits)).status == OK


def test_a_gpu_that_another_program_fills():
    used = [{**V100, "index": i, "uuid": f"GPU-{i}", "memory_used_bytes": n * GB}
            for i, n in enumerate((0, 14))]  # fmt: skip
    check = judged("memory", answers(gpu={"gpus": used}))
    assert check.status == FAIL
    assert "of 2.0 GB free" in check.found
    assert "not even a small step of this model fits" in check.remedy


def test_memory_of_a_host_without_gpus_is_shared_by_its_ranks():
    memory = {"total_bytes": 16 * GB, "available_bytes": 6 * GB}
    check = judged("memory", both_with(gpu=gpu(0), memory=memory))
    assert check.status == FAIL
    assert "of 3.0 GB free for each rank" in check.found


@pytest.mark.parametrize(
    ("names", "status", "words"),
    [
        ({"v100a": []}, FAIL, "cannot resolve v100a"),
        ({"v100b": []}, FAIL, "cannot resolve v100b"),
        ({"v100a": ["127.0.0.1"]}, FAIL, "takes v100a for itself"),
        ({"v100b": ["127.0.1.1"]}, WARN, "its own name v100b leads to 127.0.1.1"),
        ({"v100b": ["::1"]}, WARN, "::1"),
    ],
)
def test_names_must_lead_to_their_hosts(names, status, words):
    check = judged("names", answers(names=names))
    assert check.status == status
    assert words in check.found
    assert "/etc/hosts" in check.remedy


def test_a_clock_that_is_wrong():
    first, second = answers()
    late = dataclasses.replace(second, clock_offset_s=-3.2)
    check = judged("clock", [first, late])
    assert (check.status, check.found) == (WARN, "-3200 ms from ours, to 1 ms")
    # A slow connection that explains the difference is no reason to warn.
    vague = dataclasses.replace(second, clock_offset_s=-3.2, clock_error_s=2.5)
    assert judged("clock", [first, vague]).status == OK


def test_a_link_that_is_fast_enough_or_does_not_tell():
    assert judged("network", answers(nics=nics(eth0=1000))).status == OK
    unknown = judged("network", answers(nics=nics(eth0=None)))
    assert (unknown.status, "does not tell" in unknown.found) == (OK, True)


def test_a_faster_card_that_is_not_used():
    check = judged("network", answers(nics=nics(eth0=10_000, eth1=100_000, docker0=400_000)))
    assert check.status == WARN
    assert check.found.endswith("eth1 has 100,000 Mbit/s")
    assert "addresses of eth1" in check.remedy


def test_cards_of_different_names():
    other = answers(routes={"v100a": {"source": "10.0.0.2", "nic": "ens3"}}, nics=nics(ens3=10_000))
    check = judged("network", other)
    assert check.status == FAIL
    assert "of another name" in check.found
    assert network_checks.used_nic(other) is None
    assert network_checks.used_nic(answers()) == "eth0"


def test_hosts_need_room_for_the_checkpoints_that_they_keep():
    config = dataclasses.replace(FILES, checkpoints=CheckpointConfig(keep=3, keep_best=5))
    alone = dataclasses.replace(FILES, checkpoints=CheckpointConfig(copies=1))
    hosts = answers(disk={"free_bytes": 3 * GB, "path": "/"})
    assert judged("disk", hosts, config=alone).status == OK  # it keeps none
    check = judged("disk", hosts, config=config)
    assert (check.status, check.found) == (FAIL, "3.0 GB free, 4 checkpoints need 3.1 GB")
    assert "--checkpoints.copies" in check.remedy
    hosts[0].facts["disk"] = {"free_bytes": 3 * GB, "path": "/"}
    check = judged("disk", hosts, "v100a", config)
    assert (check.status, check.found) == (FAIL, "3.0 GB free, 9 checkpoints need 6.8 GB")
    # A run that goes on already holds most of them.
    hosts[0].facts["run_dir"]["held_bytes"] = 8 * 730 * 10**6
    assert judged("disk", hosts, "v100a", config).status == OK
    full = answers(disk={"free_bytes": 10**6, "path": "/"})
    assert judged("disk", full).status == FAIL


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


def test_a_run_directory_that_another_run_holds():
    hosts = answers()
    hosts[0].facts["run_dir"]["held_by"] = "process 77 on v100a"
    assert judged("run directory", hosts, "v100a").status == FAIL


def test_data_that_cannot_be_used():
    missing = {"error": "data/wmt does not exist: make one", "exists": False}
    assert judged("data", answers(data=None)).status == WARN
    hosts = answers()
    hosts[1].facts["data"] = missing
    check = judged("data", hosts)
    assert (check.status, check.found) == (FAIL, missing["error"])
    embedded = dataclasses.replace(FILES, data=DataConfig())
    assert judged("data", hosts, config=embedded).status == OK
    hosts[1].facts["data"] = missing | {"exists": True, "error": "manifest.json is damaged"}
    assert judged("data", hosts, config=embedded).status == FAIL


def test_ranks_that_the_configuration_wants():
    config = dataclasses.replace(FILES, ranks=8)
    check = judged("ranks", answers(), "", config)
    assert check.status == FAIL
    assert "4 slots" in check.found
    assert "8 ranks" in check.found


def test_on_the_processor_gpus_do_not_matter():
    """More ranks than GPUs, and a TensorFlow without CUDA: what device cpu is for."""
    config = dataclasses.replace(FILES, training=TrainingConfig(device="cpu"))
    hosts = answers()
    for answer in hosts:
        answer.facts["gpu"]["gpus"] = answer.facts["gpu"]["gpus"][:1]
        answer.facts["cuda_architectures"] = []
    failed = [check for check in examine(PlannedRun(FILES, hosts)) if check.status == FAIL]
    assert {"GPUs", "compute capability"} <= {check.name for check in failed}
    found = examine(PlannedRun(config, hosts))
    assert [check for check in found if check.status == FAIL] == []
    said = {check.found for check in found if check.name == "GPUs"}
    assert said == {"no GPU: 2 slots on 8 cores"}


@pytest.mark.parametrize(
    "fact",
    ["gpu", "nics", "names", "disk", "packages", "cpu", "horovod", "cuda_architectures"],
)
def test_a_fact_that_was_not_found_out_is_a_warning_and_no_crash(fact):
    hosts = answers()
    hosts[1].facts[fact] = None
    hosts[1].facts["problems"] = {fact: "it hangs"}
    found = [c for c in examine(PlannedRun(FILES, hosts)) if c.host == "v100b" and c.status == WARN]
    assert any("not found out" in check.found for check in found)


def test_one_host_alone_is_not_asked_for_a_network():
    names = {check.name for check in examine(PlannedRun(Config(), answers()[:1]))}
    assert not names & {"names", "network"}


def test_the_table_is_aligned_and_says_each_remedy_once():
    text = table([
        Check("ssh", "v100a", OK, "answered"),
        Check("ssh", "v100b", OK, "answered"),
        Check("run directory", "v100a", FAIL, "cannot write", "mend it"),
        Check("disk", "v100b", FAIL, "full", "mend it"),
        Check("ranks", "", WARN, "few", "more"),
    ])  # fmt: skip
    assert text == (
        "OK    ssh            v100a, v100b  answered\n"
        "FAIL  run directory  v100a         cannot write  [1]\n"
        "FAIL  disk           v100b         full  [1]\n"
        "WARN  ranks                        few  [2]\n"
        "\n"
        "[1] mend it\n"
        "[2] more"
    )

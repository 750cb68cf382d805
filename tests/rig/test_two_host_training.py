"""The user's exact command, between two hosts with real ssh: it trains, agrees, and obeys the ring.

    horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.train

A fresh directory, nothing prepared; `hvd_nmt.yaml` there only makes the run short.
"""

import json
import os
import re
import time

import pytest

import toy
from hvd_nmt.telemetry import jsonl

COMMAND = ("horovodrun", "-np", "4", "-H", "v100a:2,v100b:2", "python", "-m", "hvd_nmt.train")
STEPS = 40
SHORT = f"""\
training: {{max_steps: {STEPS}, tokens_per_step: 512, log_every: 10, precision: float32,
  wire: float32, hierarchical: "off", islands: "off"}}
evaluation: {{sentences: 4}}
telemetry: {{interval_s: 0.5, timeline_steps: 5}}
"""


@pytest.fixture(scope="module")
def trained(two_hosts, tmp_path_factory):
    """The command once, to its end, and the same again: what both printed, and eth0's bytes."""
    cwd = tmp_path_factory.mktemp("fresh")
    (cwd / "hvd_nmt.yaml").write_text(SHORT, encoding="utf-8")
    before, began_s = counters(two_hosts), time.monotonic()
    first = two_hosts.run(COMMAND, timeout_s=480, cwd=cwd)
    after, took_s = counters(two_hosts), time.monotonic() - began_s
    assert first.returncode == 0, first.stdout + first.stderr
    again = two_hosts.run(COMMAND, timeout_s=240, cwd=cwd)
    moved = {host: [b - a for a, b in zip(before[host], after[host], strict=True)]
             for host in two_hosts.names} | {"seconds": took_s}  # fmt: skip
    return cwd / "runs" / "demo", first, again, moved


def counters(two_hosts):
    """eth0's sent and received bytes of each host, since it was made."""
    read = "cat /sys/class/net/eth0/statistics/tx_bytes /sys/class/net/eth0/statistics/rx_bytes"
    here = two_hosts.run(["sh", "-c", read]).stdout.split()
    there = two_hosts.run(["ssh", "v100b", read]).stdout.split()
    return {"v100a": [int(n) for n in here], "v100b": [int(n) for n in there]}


def test_four_ranks_on_two_hosts_end_with_equal_weights(trained):
    _, first, _, _ = trained
    assert "4 on v100a:2, v100b:2" in first.stdout
    assert re.search(r"weights +checksum 0x[0-9a-f]+ equal on 4 rank", first.stdout)
    assert f"Trained to step {STEPS}" in first.stdout


def test_horovods_own_timeline_of_five_steps_was_recorded(trained):
    text = (trained[0] / "horovod-timeline.json").read_text(encoding="utf-8")
    names = [event.get("name") for event in json.loads(text)]
    assert names.count("ALLREDUCE") >= 5 * 2  # the gradients, fused or not, and the step's own sums


def test_the_report_names_what_bound_the_steps_and_both_hosts(trained):
    text = (trained[0] / "report.md").read_text(encoding="utf-8")
    assert re.search(r"(compute|network|input|straggler)-bound", text, re.I)
    assert "v100a:2, v100b:2" in text
    assert "eth0" in text


def test_the_file_of_the_working_directory_is_named(trained):
    assert "hvd_nmt.yaml" in trained[1].stdout


def test_the_same_command_again_says_that_the_run_is_complete(trained):
    run_dir, _, again, _ = trained
    assert again.returncode == 0, again.stderr
    assert f"has done all {STEPS} steps" in again.stdout
    # It trained nothing, so it is no part of how the run came to be.
    assert len((run_dir / "command.txt").read_text().splitlines()) == 1


def test_the_checkpoint_can_be_read(trained):
    tf = pytest.importorskip("tensorflow")
    reader = tf.train.load_checkpoint(os.fspath(trained[0] / f"model.ckpt-{STEPS}"))
    types = reader.get_variable_to_dtype_map()
    floats = [reader.get_tensor(name) for name, dtype in types.items() if dtype == tf.float32]
    # Weights and Adam's two moments.
    assert sum(values.nbytes for values in floats) == 3 * gradient_bytes(trained)
    assert reader.get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == STEPS


def gradient_bytes(trained):
    found = re.search(r"([\d,]+) parameters", trained[1].stdout)
    assert found is not None
    return 4 * int(found[1].replace(",", ""))


@pytest.mark.parametrize("host", ["v100a", "v100b"])
def test_the_network_card_carried_what_the_plan_predicts(trained, host):
    """Over the whole command: each step, the two all-reduces of the self-test, and the broadcast
    of weights and both moments, which crosses the link at least once. ssh and output are small;
    what Horovod's coordinator asks every millisecond is up to 1 MB/s, so it counts by the second.
    """
    *_, moved = trained
    ring_bytes = 2 * 3 / 4 * gradient_bytes(trained)
    wanted = (STEPS + 2) * ring_bytes
    for bytes_one_way in moved[host]:
        most = 1.15 * wanted + 3 * gradient_bytes(trained) + 1e6 * moved["seconds"]
        assert 0.97 * wanted < bytes_one_way < most


@pytest.mark.parametrize("host", ["v100a", "v100b"])
def test_telemetry_of_each_host_saw_the_steps_on_its_eth0(trained, host):
    """Sampled while `fit` runs: the steps alone, to 15 %."""
    run_dir = trained[0]
    header, *lines = jsonl.read(run_dir / "telemetry" / f"{host}.jsonl")
    assert (header["kind"], header["host"]) == ("host", host)
    samples = [line["nics"]["eth0"] for line in lines if line["kind"] == "sample"]
    assert len(samples) > 10
    wanted = STEPS * 2 * 3 / 4 * gradient_bytes(trained)
    assert samples[-1]["sent_bytes_total"] == pytest.approx(wanted, rel=0.15)
    assert samples[-1]["received_bytes_total"] == pytest.approx(wanted, rel=0.15)
    assert max(sample["sent_MB_per_s"] or 0 for sample in samples) > 1


def test_the_plan_s_prediction_is_the_ring_law(trained):
    start, *_ = toy.metrics(trained[0], "start")
    assert start["sent_bytes_per_step"] == 2 * 3 / 4 * gradient_bytes(trained)
    assert start["hosts"] == ["v100a", "v100a", "v100b", "v100b"]

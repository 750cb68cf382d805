"""The user's exact command, between two hosts with real ssh: it trains, agrees, and obeys the ring.

    horovodrun -np 4 -H v100a:2,v100b:2 python -m hvd_nmt.train

A fresh directory, nothing prepared; `hvd_nmt.yaml` there only makes the run short.
"""

import json
import re

import pytest

import toy
from hvd_nmt.common import jsonl

COMMAND = ("horovodrun", "-np", "4", "-H", "v100a:2,v100b:2", "python", "-m", "hvd_nmt.train")
ON_A_SLOW_MACHINE = ("env", "HOROVOD_START_TIMEOUT=600", "HOROVOD_CYCLE_TIME=50")
"""s and ms; what Horovod's coordinator asks in each cycle are bytes, too"""
STEPS = 20
SHORT = f"""\
model: {{encoder_layers: 1, decoder_layers: 1}}
training: {{max_steps: {STEPS}, tokens_per_step: 512, log_every: 10, precision: float32}}
evaluation: {{sentences: 4}}
telemetry: {{interval_s: 0.2}}
"""
TRANSFERS = STEPS + 2
"""of the gradient: those of the self-test, too"""


@pytest.fixture(scope="module")
def trained(two_hosts, tmp_path_factory):
    """The run directory, what the command printed, and eth0's bytes of each host meanwhile."""
    cwd = tmp_path_factory.mktemp("fresh")
    (cwd / "hvd_nmt.yaml").write_text(SHORT, encoding="utf-8")
    before = counters(two_hosts, cwd)
    timeline = f"HOROVOD_TIMELINE={cwd / 'timeline.json'}"
    done = two_hosts.run((*ON_A_SLOW_MACHINE, timeline, *COMMAND), cwd=cwd)
    after = counters(two_hosts, cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    moved = {host: [b - a for a, b in zip(before[host], after[host], strict=True)]
             for host in two_hosts.names}  # fmt: skip
    return cwd / "runs" / "demo", done.stdout, moved


def counters(two_hosts, cwd):
    """eth0's sent and received bytes of each host, since it was made."""
    read = "cat /sys/class/net/eth0/statistics/tx_bytes /sys/class/net/eth0/statistics/rx_bytes"
    return {
        "v100a": [int(n) for n in two_hosts.run(["sh", "-c", read], cwd).stdout.split()],
        "v100b": [int(n) for n in two_hosts.run(["ssh", "v100b", read], cwd).stdout.split()],
    }


def test_four_ranks_on_two_hosts_end_with_equal_weights(trained):
    _, stdout, _ = trained
    assert "4 on v100a:2, v100b:2" in stdout
    assert re.search(r"weights +checksum 0x[0-9a-f]+ equal on 4 rank", stdout)
    assert f"Trained to step {STEPS}" in stdout
    assert "hvd_nmt.yaml" in stdout


def test_horovods_own_timeline_is_recorded_where_its_variable_says(trained):
    text = (trained[0].parents[1] / "timeline.json").read_text(encoding="utf-8")
    names = [event.get("name") for event in json.loads(text)]
    # The gradients, fused or not, and the step's own sums.
    assert names.count("ALLREDUCE") >= STEPS * 2


def test_the_report_names_what_bound_the_steps_and_both_hosts(trained):
    text = (trained[0] / "report.md").read_text(encoding="utf-8")
    assert re.search(r"\d % of each step", text)
    assert "v100a:2, v100b:2" in text
    assert "eth0" in text


def test_the_hosts_of_a_start_are_recorded(trained):
    start, *_ = toy.metrics(trained[0], "start")
    assert start["hosts"] == ["v100a", "v100a", "v100b", "v100b"]


@pytest.mark.parametrize("host", ["v100a", "v100b"])
def test_the_network_card_carried_what_the_plan_predicts(trained, host):
    """While it trains, as telemetry sees it, and over the whole command, as the kernel does: there
    the self-test sums two gradients, the link is measured, weights and both moments are broadcast.
    """
    run_dir, _, moved = trained
    wanted = STEPS * ring_bytes(trained)
    header, *lines = jsonl.read(run_dir / "telemetry" / f"{host}.jsonl")
    assert (header["kind"], header["host"]) == ("host", host)
    samples = [line["nics"]["eth0"] for line in lines if line["kind"] == "sample"]
    for name in ("sent_bytes_total", "received_bytes_total"):
        assert samples[-1][name] == pytest.approx(wanted, rel=0.15)
    for bytes_one_way in moved[host]:
        assert 0.97 * TRANSFERS * ring_bytes(trained) < bytes_one_way < 2 * wanted


def ring_bytes(trained):
    """In a ring of N ranks each link carries 2(N-1)/N of the gradient; a host has one link out."""
    return 2 * 3 / 4 * gradient_bytes(trained)


def gradient_bytes(trained):
    found = re.search(r"([\d,]+) parameters", trained[1])
    assert found is not None
    return 4 * int(found[1].replace(",", ""))

"""Runs side by side: the scaling table and what it must not hide."""

import dataclasses

import pytest

from hvd_nmt.config.exchange import Exchange
from hvd_nmt.records.record import ExchangeInEffect, HostSamples
from hvd_nmt.reporting import questions, scaling


def on_cpus(made, hosts, cores):
    """The run on hosts without GPUs."""
    header = {"cores_usable": cores}
    telemetry = tuple(HostSamples(host, header, []) for host in dict.fromkeys(hosts))
    return made(name="cpus", hosts=hosts, telemetry=telemetry)


def notes(*runs):
    return scaling.notes([questions.gather(run) for run in runs])


@pytest.mark.parametrize(
    ("ranks", "cores", "words"),
    [(4, 2, "4 ranks share 2 cores of vm, so they wait"), (2, 2, "2 ranks share 2 cores of vm, of"),
     (3, 1, "3 ranks share 1 core of vm")],
)  # fmt: skip
def test_ranks_that_take_the_cores_from_each_other_are_named(two_host_run, ranks, cores, words):
    found = notes(two_host_run(), on_cpus(two_host_run, ("vm",) * ranks, cores))
    assert len(found) == 2
    assert found[1].startswith(f"cpus: {words}")
    assert ("more ranks than cores" in found[1]) == (ranks > cores)


def test_one_rank_a_host_and_ranks_with_gpus_share_nothing(two_host_run):
    gpus = two_host_run()
    with_cores = tuple(
        dataclasses.replace(of, header=of.header | {"cores_usable": 1}) for of in gpus.telemetry
    )
    assert len(notes(two_host_run(telemetry=with_cores))) == 1
    assert len(notes(on_cpus(two_host_run, ("a", "b"), 1))) == 1


def test_the_cores_of_all_hosts_are_in_the_table(two_host_run):
    runs = [two_host_run(), on_cpus(two_host_run, ("a", "a", "b"), 8)]
    table = scaling.table([questions.gather(run) for run in runs], ["21.0", "20.0"])
    column = table.head.index("cores")
    assert [row[column] for row in table.rows] == ["unknown", "16"]
    assert [row[-2] for row in table.rows] == ["21.0", "20.0"]


def test_runs_with_other_exchanges_say_which_and_what_it_gained(two_host_run):
    exchange = Exchange(wire="float16", islands=True, sync_every=8, streaming=True)
    fast = {"communication_s": 0.06, "exchange_s": 0.05, "step_s": 0.47}
    cured = two_host_run(
        lambda i: fast, exchanges=(ExchangeInEffect(0, exchange, 1.6, 0.39, chosen=True),)
    )
    gathered = [questions.gather(run) for run in (two_host_run(), cured)]
    table = scaling.table(gathered, ["21.0", "20.0"])
    assert table.head[-2:] == ("between hosts", "against plain (predicted)")
    assert [row[-2:] for row in table.rows] == [
        ("float32 gradients in each step", "1.0 x"),
        ("islands, sync every 8, streamed, float16", "4.1 x"),
    ]
    assert any(note.startswith("Against plain") for note in notes(two_host_run(), cured))
    assert "between hosts" not in scaling.table(gathered[:1], ["21.0"]).head

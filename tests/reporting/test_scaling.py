"""Runs side by side: the scaling table and what it must not hide."""

import dataclasses

from hvd_nmt.config.exchange import Exchange
from hvd_nmt.records.record import ExchangeInEffect, HostSamples
from hvd_nmt.reporting import questions, scaling


def on_cpus(made, hosts, cores):
    """The run on hosts without GPUs."""
    header = {"cores_usable": cores}
    telemetry = tuple(HostSamples(host, header, []) for host in dict.fromkeys(hosts))
    return made(name=f"{len(hosts)} ranks on cpus", hosts=hosts, telemetry=telemetry)


def made_runs(made):
    """Runs of which each makes the comparison say something else."""
    exchange = Exchange(wire="float16", islands=True, sync_every=8, streaming=True)
    fast = {"communication_s": 0.06, "exchange_s": 0.05, "step_s": 0.47}
    cores = tuple(
        dataclasses.replace(of, header=of.header | {"cores_usable": 1}) for of in made().telemetry
    )
    return [
        made(lambda i: {"tokens_per_s": 2 * i.tokens_per_s}, name="four"),
        made(name="one", hosts=("v100a",)),
        made(name="GPUs share no cores", telemetry=cores),
        on_cpus(made, ("vm",) * 4, 2),
        on_cpus(made, ("vm",) * 3, 1),
        on_cpus(made, ("vm",) * 2, 2),
        on_cpus(made, ("a", "b"), 1),
        on_cpus(made, ("a", "a", "b"), 8),
        made(lambda i: fast, name="cured", parameters=9,
             exchanges=(ExchangeInEffect(0, exchange, 1.6, 0.39, chosen=True),)),
    ]  # fmt: skip


def test_what_the_comparison_shows_and_warns_of(two_host_run, golden_page):
    gathered = [questions.gather(run) for run in made_runs(two_host_run)]
    table = scaling.table(gathered, [f"{20 + number}.0" for number in range(len(gathered))])
    rows = [" | ".join(row) for row in (table.head, *table.rows)]
    golden_page("side-by-side.txt", "\n".join([*rows, "", *scaling.notes(gathered), ""]))


def test_without_another_exchange_none_is_shown(two_host_run):
    gathered = [questions.gather(run) for run in made_runs(two_host_run)[:2]]
    assert "between hosts" not in scaling.table(gathered, ["21.0", "20.0"]).head
    assert len(scaling.notes(gathered)) == 1


def test_efficiency_is_that_of_a_rank(two_host_run):
    """Twice the tokens with four times the ranks."""
    four, one, *_ = (questions.gather(run) for run in made_runs(two_host_run))
    table = scaling.table([four, one], ["", ""])
    column = table.head.index("efficiency")
    assert [row[column] for row in table.rows] == ["50 %", "100 %"]


def test_ranks_share_cores_only_on_one_host_without_gpus(two_host_run):
    noted = [scaling.notes([questions.gather(run)]) for run in made_runs(two_host_run)[2:7]]
    assert [len(notes) for notes in noted] == [1, 2, 2, 2, 1]
    crowded = ["more ranks than cores" in notes[-1] for notes in noted]
    assert crowded == [False, True, True, False, False]

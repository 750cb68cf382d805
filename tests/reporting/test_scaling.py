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

"""Several runs side by side: how fast they are for their ranks, and what hinders the comparison."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_nmt.common.units import count, step_duration
from hvd_nmt.explain import machines
from hvd_nmt.explain.exchange_cost import name_of
from hvd_nmt.records.record import Run
from hvd_nmt.reporting.answer import Facts, Table

_HEAD = (
    "run", "ranks", "hosts", "cores", "tokens/s", "s/step", "efficiency", "best BLEU", "verdict"
)  # fmt: skip
_EXCHANGE_HEAD = ("between hosts", "against plain (predicted)")


def table(gathered: Sequence[Facts], bleu: Sequence[str]) -> Table:
    """One row per run.

    Args:
        gathered: what is known of each run.
        bleu: the best BLEU of each run, in words.
    """
    speeds = [machines.tokens_per_s(facts.run) for facts in gathered]
    ranks_of = [facts.run.ranks for facts in gathered]
    timed = [(n, -speed / n) for n, speed in zip(ranks_of, speeds, strict=True) if speed]
    base = -min(timed, default=(1, 0.0))[1]  # tokens/s of a rank
    rows = []
    for facts, speed, score in zip(gathered, speeds, bleu, strict=True):
        run, times = facts.run, machines.step_times(facts.run)
        cores = cores_of(run)
        known = all(host in cores for host in run.hosts) and bool(cores)
        rows.append((
            run.name, f"{run.ranks:,}", f"{len(set(run.hosts)) or 1:,}",
            f"{sum(cores.values()):,}" if known else "unknown",
            f"{speed:,.0f}" if speed else "unknown",
            step_duration(times.mean_s) if times else "unknown",
            f"{100 * speed / run.ranks / base:.0f} %" if speed and base else "unknown",
            score, facts.verdict.kind,
        ))  # fmt: skip
    if not any(facts.run.exchanges for facts in gathered):
        return Table("Scaling", _HEAD, tuple(rows))
    return Table("Scaling", (*_HEAD, *_EXCHANGE_HEAD), tuple(
        (*row, *_exchange_cells(facts)) for row, facts in zip(rows, gathered, strict=True)
    ))  # fmt: skip


def _exchange_cells(facts: Facts) -> tuple[str, ...]:
    run, found = facts.run, facts.verdict.against_plain
    exchange = run.exchange_at(run.steps_done).exchange
    if len(set(run.hosts)) < 2:
        return "one host", "1.0 x"
    if found is None:
        return name_of(exchange), "1.0 x" if exchange.is_plain else "unknown"
    return name_of(exchange), f"{found.times_as_fast:.1f} x"


def notes(gathered: Sequence[Facts]) -> list[str]:
    """What the table means, and what in it does not compare; one sentence each."""
    runs = [facts.run for facts in gathered]
    found = [
        "Efficiency: tokens/s of a rank, relative to the run with the fewest ranks, and "
        "of several such to the fastest."
    ]
    if any(run.exchanges for run in runs):
        found.append(
            "Against plain: the step as it was, beside one with a plain all-reduce, predicted from "
            "the all-reduce that was measured."
        )
    if len({run.parameters for run in runs if run.parameters}) > 1:
        found.append("The runs trained models of different sizes, so their speeds do not compare.")
    return found + [note for run in runs if (note := _shared_cores(run))]


def cores_of(run: Run) -> dict[str, int]:
    """Cores that the ranks of each host may use, where telemetry tells them."""
    usable = {host.host: host.header.get("cores_usable") for host in run.telemetry}
    return {host: cores for host, cores in usable.items() if isinstance(cores, int) and cores > 0}


def _shared_cores(run: Run) -> str | None:
    """A sentence on the fullest host without GPUs on which ranks take the cores from each other."""
    with_gpus = {host.host for host in run.telemetry if host.header.get("gpus")}
    shared = [
        (ranks / cores, ranks, cores, host)
        for host, cores in cores_of(run).items()
        if host not in with_gpus and (ranks := run.hosts.count(host)) > 1
    ]
    if not shared:
        return None
    _, ranks, cores, host = max(shared)
    follows = (
        "so they wait for each other's computing, and efficiency says nothing about the exchange "
        "between them: give no host more ranks than cores"
        if ranks > cores
        else "of which a single rank uses all it can, so an efficiency near 100 % cannot be "
        "expected"
    )
    return f"{run.name}: {count(ranks, 'rank')} share {count(cores, 'core')} of {host}, {follows}."

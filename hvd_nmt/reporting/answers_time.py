"""The questions about time and processors: duration, step time, GPUs."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING

from hvd_nmt.common.units import count, duration, flop_rate, percent, step_duration
from hvd_nmt.explain import machines
from hvd_nmt.explain.intervals import EXCHANGING, PARTS
from hvd_nmt.records.record import Launch, Run, Save
from hvd_nmt.reporting.answer import Answer, State, Table

if TYPE_CHECKING:
    from hvd_nmt.reporting.questions import RunSummary

FULLY_COMPUTING = 0.85
"""share of a step's time from which on we call the processors fully used"""
_LITTLE_POWER = 0.6  # of the limit: less is no sign of full kernels
_ENOUGH_FOR_TENTHS = 10  # intervals below which nine tenths of them mean nothing
_MOST_STARTS = 20  # in the table of starts, the newest
_GET_CLOCK = (
    "Missing are times of day: hvd_nmt writes one with every line, OpenSeq2Seq only into its "
    "TensorBoard events (`wall_time`), which were not found beside the log."
)


def how_long(summary: RunSummary) -> Answer:
    """Question 1."""
    run = summary.record
    training_s, wall_s = machines.training_s(run), machines.wall_s(run)
    if wall_s is None or run.started_s is None:
        if training_s is None:
            return Answer(f"The record has no step times. {_GET_CLOCK}", known=False)
        return Answer(
            f"About {duration(training_s)} of training steps; how long start-up, evaluations and "
            "checkpoints took on top is not in the log.",
            (f"{count(run.steps_done, 'step')} with logged step times.", _GET_CLOCK),
        )
    if summary.state == State.FINISHED:
        answer = f"{duration(wall_s)} for {count(machines.steps_done(run), 'step')}."
    else:
        planned = f" of {run.max_steps:,}" if run.max_steps else ""
        answer = f"{duration(wall_s)} to step {run.steps_done:,}{planned}"
        times, left = machines.step_times(run), (run.max_steps or 0) - run.steps_done
        if summary.state == State.RUNNING and times and left > 0:
            to_go = duration(left * times.mean_s)
            answer += f", and about {to_go} of steps to go (evaluations not counted)"
        answer += f". {state_sentence(summary)}"
    began, ended = (
        datetime.datetime.fromtimestamp(time_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        for time_s in (run.started_s, run.started_s + wall_s)
    )
    evidence = [f"From {began} to {ended}.", *_saves(run.saves), *_restarts(run.launches)]
    tables = [] if training_s is None else [_where_it_went(run, wall_s, training_s)]
    if run.launches:
        rows = tuple(map(_start, run.launches[-_MOST_STARTS:]))
        head = ("ranks", "last step", "exit code", "what was said last")
        tables.append(Table("Starts by hvd_nmt.launch, the newest", head, rows))
    return Answer(answer, tuple(evidence), tuple(tables))


def _where_it_went(run: Run, wall_s: float, training_s: float) -> Table:
    times = [e.seconds for e in run.evaluations if e.seconds is not None]
    rest_s = max(0.0, wall_s - training_s - sum(times) - (run.startup_s or 0.0))
    startup = "unknown" if run.startup_s is None else duration(run.startup_s)
    rows = (
        ("start-up: imports, data, comparing the hosts", startup),
        ("logged steps", duration(training_s)),
        (count(len(times), "evaluation"), duration(sum(times))),
        ("the rest: checkpoints, pauses, what no record holds", duration(rest_s)),
    )
    return Table("Where the time went", ("part", "time"), rows)


def _saves(saves: Sequence[Save]) -> Iterable[str]:
    """What the checkpoints cost."""
    if saves:
        wait, hosts = median(save.wait_s for save in saves), max(save.copies for save in saves)
        yield (
            f"Training stood still for {step_duration(wait)} (median) for each of "
            f"{count(len(saves), 'checkpoint')} on {count(hosts, 'host')}."
        )


def _restarts(launches: Sequence[Launch]) -> Iterable[str]:
    """How often `hvd_nmt.launch` started the ranks, and what that cost."""
    if launches:
        lost = count(machines.lost_steps(launches), "step")
        starts = count(len(launches), "time")
        yield f"hvd_nmt.launch started the ranks {starts}; {lost} had to be trained again."


def _start(launch: Launch) -> tuple[str, ...]:
    ranks = ", ".join(f"{host}:{ranks}" for host, ranks in launch.ranks_by_host.items())
    last_step = "none" if launch.last_step is None else f"{launch.last_step:,}"
    code = "none" if launch.exit_code is None else str(launch.exit_code)
    return ranks, last_step, code, launch.sentence.rpartition("hvd_nmt.train: ")[2]


def average_step(summary: RunSummary) -> Answer:
    """Question 10."""
    run = summary.record
    times, tokens = machines.step_times(run), machines.tokens_per_s(run)
    if times is None:
        return Answer(
            "No step time was recorded: wait for the first logged interval (training.log_every)."
            if run.source == "hvd_nmt"
            else "The log has no time of a step. OpenSeq2Seq prints a line `time per step = ...` "
            "after each loss (print_loss_steps) but the first of a start: keep the whole log, and "
            "let it reach a second one.",
            known=False,
        )
    margin = ""
    if times.margin_s is not None:
        scale, unit = (1, "s") if times.mean_s >= 0.1 else (1000, "ms")
        margin = f" ± {scale * times.margin_s:.2g} {unit}"
    middle = f"The median of {count(times.intervals, 'interval')} is "
    middle += step_duration(times.median_s)
    if times.intervals >= _ENOUGH_FOR_TENTHS:
        low, high = step_duration(times.low_s), step_duration(times.high_s)
        middle += f"; nine tenths of them lie between {low} and {high}"
    evidence = [f"{middle}."]
    if times.first_s:
        each = ", ".join(map(step_duration, times.first_s))
        evidence.append(f"The first interval of each start, left out: {each} a step.")
    if tokens:
        evidence.append(f"{tokens:,.0f} source and target tokens a second, all ranks together.")
    return Answer(
        f"{step_duration(times.mean_s)}{margin} (mean of {times.steps:,} steps).",
        tuple(evidence), _parts_of_a_step(summary),
    )  # fmt: skip


def _parts_of_a_step(summary: RunSummary) -> tuple[Table, ...]:
    verdict, step_s = summary.verdict, summary.verdict.step_s
    if not verdict.shares or not step_s:
        return ()
    shares = list(verdict.shares.items())
    if verdict.exchange_s is not None:
        shares.append((f"of the communication: {EXCHANGING}", verdict.exchange_s / step_s))
    rows = tuple((name, step_duration(share * step_s), percent(share)) for name, share in shares)
    title = f"A mean step of {step_duration(step_s)}: where the time of all steps went"
    return (Table(title, ("part", "time", "share"), rows),)


def gpus_used(summary: RunSummary) -> Answer:
    """Question 4."""
    run, computing = summary.record, summary.verdict.shares.get(PARTS["compute_s"])
    uses = machines.gpu_use(run)
    if not uses or run.config.get("training", {}).get("device") == "cpu":
        return _no_gpu(run, computing)
    evidence = list(_model_flops(run))
    if drawn_j := sum(use.energy_j or 0.0 for use in uses):
        per_step = f", {drawn_j / run.steps_done:,.1f} J a step" if run.steps_done else ""
        evidence.append(f"They took {drawn_j / 3.6e6:.3g} kWh over the whole run{per_step}.")
    tables = (*_parts_of_a_step(summary), _while_steps_ran(uses))
    if computing is None:
        answer = (
            "The record does not say how much of a step was computing, so power and memory "
            "activity below must do; train with hvd_nmt to have the steps taken apart."
        )
        return Answer(answer, tuple(evidence), tables, known=False)
    answer = f"No: they computed {percent(computing)} of the time of a step and waited the rest."
    if computing >= FULLY_COMPUTING:
        answer = f"Yes, as far as time goes: {percent(computing)} of a step was computing."
        limits = _of_limit(uses)
        if limits and fmean(limits) < _LITTLE_POWER:
            answer += (
                " But they drew far less than their power limit, so the kernels are too small to "
                "fill the GPUs: try more tokens per step or float16."
            )
    return Answer(answer, tuple(evidence), tables)


def _while_steps_ran(uses: Sequence[machines.GpuUse]) -> Table:
    """Of each GPU, and in the mean of several, what its samples say."""

    def row(name: str, of: Sequence[machines.GpuUse], held: str = "") -> tuple[str, ...]:
        return (
            name, _mean(use.power_w for use in of), _mean(100 * share for share in _of_limit(of)),
            _mean(use.memory_activity_percent for use in of),
            _mean(use.utilisation_percent for use in of),
            _mean(100 * use.spinning for use in of if use.spinning is not None), held,
        )  # fmt: skip

    rows = [
        row(f"{use.host}:{use.index} {use.name}", [use],
            ", ".join(f"{why} {percent(share)}" for why, share in use.throttled))
        for use in uses
    ]  # fmt: skip
    if len(uses) > 1:
        rows.append(row("mean", uses))
    head = ("GPU", "power, W", "of its limit, %", "memory active, %", "utilisation, %",
            "busy, but hardly working, %", "clocks held down by")  # fmt: skip
    return Table("While training steps ran", head, tuple(rows))


def _mean(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.0f}" if known else "unknown"


def _of_limit(uses: Iterable[machines.GpuUse]) -> list[float]:
    """Power over its limit, of those that tell both."""
    return [use.power_w / use.power_limit_w for use in uses if use.power_w and use.power_limit_w]


def _no_gpu(run: Run, computing: float | None) -> Answer:
    if not run.telemetry:
        return Answer(
            "The record holds no samples of the GPUs: hvd_nmt takes them (telemetry.interval_s); "
            "beside other programs run `nvidia-smi dmon -s pu -o T`.",
            known=False,
        )
    answer, reasons = "No GPU was used", {"not used, as training.device is cpu"}
    if run.config.get("training", {}).get("device") != "cpu":
        answer = "There was no GPU"
        reasons = {str(of.header.get("gpu_unavailable") or "none found") for of in run.telemetry}
    answer += ": the model was trained on CPUs."
    if computing is not None:
        answer += f" They computed {percent(computing)} of the time of a step."
    evidence = [f"GPUs on {', '.join(of.host for of in run.telemetry)}: {', '.join(reasons)}."]
    busy = machines.cpu_percent(run)
    if busy is not None:
        evidence.append(f"The CPUs of the hosts were {busy:.0f} % busy while steps ran.")
    return Answer(answer, (*evidence, *_model_flops(run)))


def _model_flops(run: Run) -> Iterable[str]:
    rate = machines.model_flop_per_s(run)
    if rate is not None:
        yield (
            f"The model's products, 6 x weights x tokens and attention, made {flop_rate(rate)} on "
            "all ranks; python -m hvd_nmt.bench measures what the same devices can make."
        )


def state_sentence(summary: RunSummary) -> str:
    """Whether the run goes on, in one sentence."""
    end, planned = summary.record.early_end, summary.record.max_steps
    finished = "Finished."
    if end is not None:
        of = f" of {planned:,}" if planned else ""
        finished = f"Finished at step {end.step:,}{of}: {end.because} ({end.option})."
    last = f"last record {duration(summary.silent_s or 0.0)} ago"
    return {
        State.FINISHED: finished,
        State.RUNNING: f"Still running: {last}.",
        State.STOPPED: "Stopped before its last step.",
        State.NO_CLOCK: "The log does not say that it ended, and it has no clock to tell by.",
        State.SILENT: f"Ended without saying so, killed or crashed: {last}.",
    }[summary.state]

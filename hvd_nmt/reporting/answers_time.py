"""The questions about time and processors: duration, step time, GPUs."""

import datetime
from collections.abc import Iterable, Sequence
from statistics import median

from hvd_nmt.common.units import count, duration, flop_rate, percent, step_duration
from hvd_nmt.explain import durations, processors
from hvd_nmt.explain.goodput import goodput
from hvd_nmt.explain.intervals import PARTS, last_settings
from hvd_nmt.records.record import Launch, Run
from hvd_nmt.reporting import phrases
from hvd_nmt.reporting.answer import Answer, Table
from hvd_nmt.reporting.run_facts import RunFacts, RunState

FULLY_COMPUTING = 0.85
"""share of a step's time from which on we call the processors fully used"""
_LITTLE_POWER = 60.0  # percent of the power limit: less is no sign of full kernels
_ENOUGH_FOR_TENTHS = 10  # number of intervals below which nine tenths of them mean nothing
_MOST_STARTS = 20  # number of the newest starts in the table
_GET_CLOCK = (
    "Missing are times of day: hvd_nmt writes one with every line, OpenSeq2Seq only into its "
    "TensorBoard events (`wall_time`), which are not next to the log."
)


def how_long(facts: RunFacts) -> Answer:
    """Wall time: from the start of the first rank's process (else the first record) to the last
    record, on the clock of the first rank. Goodput: the steps that counted x the median step, over
    the wall time. A step counts once, if its result is in the weights. The median: of the logged
    intervals under the same settings, without the first of each start. What the first took more is
    tracing; what the others took more goes to the parts of a step that exceed their own medians. A
    restart or pause: from the last record of a start to the next process. Steps done again: those
    logged after the checkpoint of the next start.
    """
    run = facts.record
    training_s, wall_s = durations.training_s(run), durations.wall_s(run)
    if training_s is None and wall_s is None:
        return Answer(f"The record has no step times. {_GET_CLOCK}", known=False)
    if wall_s is None or run.started_s is None:
        return Answer(
            f"About {duration(training_s or 0.0)} of training steps; how long start-up, "
            "evaluations and checkpoints took on top is not in the log.",
            (f"{count(run.steps_done, 'step')} with logged step times.", _GET_CLOCK),
        )
    if facts.state == RunState.FINISHED:
        answer = f"{duration(wall_s)} for {count(durations.steps_done(run), 'step')}."
    else:
        planned = f" of {run.max_steps:,}" if run.max_steps else ""
        answer = f"{duration(wall_s)} to step {run.steps_done:,}{planned}"
        times, left = durations.step_times(run), (run.max_steps or 0) - run.steps_done
        if facts.state == RunState.RUNNING and times and left > 0:
            to_go = duration(left * times.mean_s)
            answer += f", and about {to_go} of steps to go (evaluations not counted)"
        answer += f". {state_sentence(facts)}"
    began, ended = _clock(run.started_s), _clock(run.started_s + wall_s)
    evidence = [f"From {began} to {ended}."]
    if run.saves:
        hosts = max(save.copies for save in run.saves)
        evidence.append(
            f"Training stood still for {step_duration(median(save.wait_s for save in run.saves))} "
            f"(median) for each of {count(len(run.saves), 'checkpoint')} on {count(hosts, 'host')}."
        )
    spent, tables = goodput(run), []
    if spent is not None:
        parts = [(name, duration(s), percent(s / wall_s)) for name, s in spent.parts.items()]
        tables.append(Table("Where the time went", ("part", "time", "share"), tuple(parts)))
    if spent and spent.share is not None:
        answer += f" Goodput: {percent(spent.share)}."
    else:
        evidence.append("Goodput is unknown: the record lacks a time of a start, or an interval.")
    if not run.launches:
        evidence += list(_pauses(run))[-_MOST_STARTS:]
    else:
        lost = count(durations.lost_steps(run.launches), "step")
        evidence.append(
            f"hvd_nmt.launch started the ranks {count(len(run.launches), 'time')}; {lost} had to "
            "be trained again."
        )
        rows = tuple(map(_start, run.launches, (*run.launches[1:], None)))[-_MOST_STARTS:]
        head = ("ranks", "ended", "last step", "exit code", "last message")
        tables.append(Table("Starts by hvd_nmt.launch, the newest", head, rows))
    return Answer(answer, tuple(evidence), tuple(tables))


def _pauses(run: Run) -> Iterable[str]:
    """Of each start but the newest, when it ended, and where the next continued."""
    for start, (ended_s, pause_s, lost) in enumerate(run.pauses, start=1):
        of_next = [interval for interval in run.intervals if interval.start == start]
        if of_next:
            done = of_next[0].step - of_next[0].steps
            yield (
                f"Start {start} ended at {_clock(ended_s)}; after {duration(pause_s)} start "
                f"{start + 1} continued from step {done:,}, and did "
                + (f"{count(lost, 'unsaved step')} again." if lost else "no logged step again.")
            )


def _clock(time_s: float) -> str:
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _start(launch: Launch, later: Launch | None) -> tuple[str, ...]:
    ranks = ", ".join(f"{host}:{ranks}" for host, ranks in launch.ranks_by_host.items())
    step = "none" if launch.last_step is None else f"{launch.last_step:,}"
    ended = "not recorded" if launch.ended_s is None else _clock(launch.ended_s)
    code = "not recorded" if launch.exit_code is None else str(launch.exit_code)
    message = _last_message(launch)
    if not message and later is not None and launch.exit_code is None:
        message = "its launcher was killed, or could not write"
    return ranks, ended, step, code, message


def _last_message(launch: Launch) -> str:
    return launch.sentence.rpartition("hvd_nmt.train: ")[2]


def average_step(facts: RunFacts) -> Answer:
    """The mean over all steps, except the first logged interval of each start, which holds tracing
    and warm-up. Only steps since exchange or ranks changed. The margin is Student's 95 % interval
    of the intervals' means, taken as independent.
    """
    times = durations.step_times(facts.record)
    if times is None:
        return Answer(
            "No step time was recorded: wait for the first logged interval (training.log_every).",
            ("OpenSeq2Seq prints `time per step = ...` after each loss: keep the whole log.",),
            known=False,
        )
    intervals = count(times.intervals, "interval")
    evidence = [f"The median of {intervals} is {step_duration(times.median_s)}."]
    if times.intervals >= _ENOUGH_FOR_TENTHS:
        low, high = step_duration(times.low_s), step_duration(times.high_s)
        evidence.append(f"Nine tenths of the intervals lie between {low} and {high}.")
    if times.first_s:
        first = ", ".join(map(step_duration, times.first_s))
        evidence.append(f"The first interval of each start is not counted: {first} a step.")
    if tokens := durations.mean_rate(facts.record, "tokens_per_s"):
        evidence.append(f"{tokens:,.0f} source and target tokens a second, all ranks together.")
    margin = "" if times.margin_s is None else f" ± {step_duration(times.margin_s)}"
    answer = f"{step_duration(times.mean_s)}{margin} (mean of {times.steps:,} steps)."
    tables = *_parts_of_a_step(facts), *phrases.each_setting(facts.record)
    return Answer(answer, tuple(evidence), tables)


def _parts_of_a_step(facts: RunFacts) -> tuple[Table, ...]:
    verdict, step_s = facts.verdict, facts.verdict.step_s
    if not verdict.shares or not step_s:
        return ()
    shares = list(verdict.shares.items())
    if verdict.exchange_s is not None:
        name = "of the communication: exchanging weights between hosts"
        shares.append((name, verdict.exchange_s / step_s))
    rows = tuple((name, step_duration(share * step_s), percent(share)) for name, share in shares)
    title = f"A mean step of {step_duration(step_s)}: where the time of all steps went"
    return (Table(title, ("part", "time", "share"), rows),)


def gpus_used(facts: RunFacts) -> Answer:
    """From the share of computing, the power, and the activity of the GPU's memory during the
    steps. Utilisation proves nothing. NVML counts the time in which any kernel runs, and a GPU that
    waits inside an all-reduce runs one. Energy: each GPU's own counter.
    """
    run, computing = last_settings(facts.record), facts.verdict.shares.get(PARTS["compute_s"])
    uses, on_cpus = processors.gpu_use(run), run.config.get("training", {}).get("device") == "cpu"
    evidence, tables = [], _parts_of_a_step(facts)
    if rate := durations.mean_rate(run, "model_flop_per_s"):
        evidence.append(
            f"The model's products, 6 x weights x tokens and attention, made {flop_rate(rate)} on "
            "all ranks; python -m hvd_nmt.bench measures what the same devices can make."
        )
    if not run.telemetry:
        return Answer(
            "The record has no samples of the GPUs: hvd_nmt takes them (telemetry.interval_s); "
            "with other programs, run `nvidia-smi dmon -s pu -o T`.",
            tuple(evidence), tables, known=False,
        )  # fmt: skip
    share = "an unknown share" if computing is None else percent(computing)
    if not uses or on_cpus:
        why = {str(of.header.get("gpu_unavailable") or "none") for of in run.telemetry}
        evidence.append(f"GPUs: {'training.device is cpu' if on_cpus else ', '.join(why)}.")
        busy, _ = processors.cpu_percents(run)
        if busy is not None:
            evidence.append(f"The CPUs of the hosts were {busy:.0f} % busy while steps ran.")
        answer = f"No GPU was used. The CPUs computed {share} of the time of a step."
        return Answer(answer, tuple(evidence), tables)
    if drawn_j := sum(use.energy_j or 0.0 for use in uses):
        per_step = f", {drawn_j / run.steps_done:,.1f} J a step" if run.steps_done else ""
        evidence.append(f"They took {drawn_j / 3.6e6:.3g} kWh over the whole run{per_step}.")
    mean = processors.mean_use(uses)
    tables = (*tables, _while_steps_ran([*uses, mean] if len(uses) > 1 else uses))
    answer = f"No: they computed {share} of the time of a step and waited the rest."
    if computing is None:
        answer = (
            "Not known exactly: the record does not split a step into its parts. Power and memory "
            "activity are below; hvd_nmt records the parts of each step."
        )
    elif computing >= FULLY_COMPUTING:
        answer = f"Yes, as far as time goes: {share} of a step was computing."
        if mean.of_limit_percent and mean.of_limit_percent < _LITTLE_POWER:
            answer += (
                " But they drew far less than their power limit, so the kernels are too small to "
                "fill the GPUs: try more tokens per step or float16."
            )
    return Answer(answer, tuple(evidence), tables, computing is not None)


def _while_steps_ran(uses: Sequence[processors.GpuUse]) -> Table:
    rows = []
    for use in uses:
        values = (use.power_w, use.of_limit_percent, use.memory_activity_percent,
                  use.utilisation_percent, use.spinning_percent)  # fmt: skip
        shown = ("unknown" if value is None else f"{value:.0f}" for value in values)
        held = ", ".join(f"{why} {percent(share)}" for why, share in use.throttled)
        rows.append((use.name, *shown, held))
    head = ("GPU", "power, W", "of its limit, %", "memory active, %", "utilisation, %",
            "busy, but hardly working, %", "clocks held down by")  # fmt: skip
    return Table("While training steps ran", head, tuple(rows))


def state_sentence(facts: RunFacts) -> str:
    """Whether the run continues; then who ended the newest start that failed, and when."""
    end, planned = facts.record.early_end, facts.record.max_steps
    finished = "Finished."
    if end is not None:
        of = f" of {planned:,}" if planned else ""
        finished = f"Finished at step {end.step:,}{of}: {end.because} ({end.option})."
    last = f"last record {duration(facts.silent_s or 0.0)} ago"
    running = "Still running"
    if facts.record.source == "hvd_nmt" and not facts.record.locked:
        running = "Running or killed (a report made on its host shows which)"
    state = {
        RunState.FINISHED: finished,
        RunState.RUNNING: f"{running}: {last}.",
        RunState.STOPPED: "Stopped before its last step.",
        RunState.NO_CLOCK: "Not known whether it ended: the log has no closing line and no clock.",
        RunState.SILENT: f"Killed or crashed, without a closing line: {last}.",
    }[facts.state]
    launches = facts.record.launches
    if facts.state is RunState.SILENT and launches and launches[-1].exit_code is None:
        return f"{state} The launcher of the newest start was killed, too, or could not write."
    if not (failed := [one for one in launches if one.exit_code and one.ended_s]):
        return state
    at = _clock(failed[-1].ended_s or 0.0)
    starts = f"{count(len(failed), 'start')} ended early, the newest at {at}"
    return f"{state} {starts}: {_last_message(failed[-1]) or f'exit code {failed[-1].exit_code}'}"

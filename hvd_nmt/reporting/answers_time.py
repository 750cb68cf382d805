"""The questions about time and processors: duration, step time, GPUs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from statistics import fmean, median

from hvd_nmt.common.units import count, duration, flop_rate, percent, step_duration
from hvd_nmt.explain import machines
from hvd_nmt.explain.intervals import EXCHANGING, PARTS
from hvd_nmt.records.record import Launch, Run, Save
from hvd_nmt.reporting.answer import Answer, Facts, State, Table

_ENOUGH_FOR_TENTHS = 10  # intervals below which nine tenths of them mean nothing
FULLY_COMPUTING = 0.85
"""share of a step's time from which on we call the processors fully used"""
_LITTLE_POWER = 0.6  # of the limit: less is no sign of full kernels
_SHARE_WORTH_SAYING = 0.05
_MOST_STARTS = 20  # of which each one's end is said, the newest
_J_PER_KWH = 3.6e6
_GET_CLOCK = (
    "Time stamps are needed: hvd_nmt writes one with every line, OpenSeq2Seq only into its "
    "TensorBoard events (`wall_time`), which were not found beside the log."
)
_NVIDIA_SMI = (
    "nvidia-smi --query-gpu=timestamp,index,power.draw,power.limit,utilization.memory,"
    "utilization.gpu --format=csv -l 1"
)


def how_long(facts: Facts) -> Answer:
    """Question 1."""
    run = facts.run
    training_s = machines.training_s(run)
    wall_s = machines.wall_s(run)
    if run.started_s is None or wall_s is None:
        if training_s is None:
            unknown = f"The record has neither a clock nor step times. {_GET_CLOCK}"
            return Answer(unknown, known=False)
        return Answer(
            f"About {duration(training_s)} of training steps; start-up, evaluations and "
            "checkpoints come on top, how long they took is not in the log.",
            (f"{count(run.steps_done, 'step')} with logged step times.", f"Missing: {_GET_CLOCK}"),
        )
    evidence = [f"From {_utc(run.started_s)} to {_utc(run.started_s + wall_s)}."]
    if run.startup_s is None and run.source == "hvd_nmt":
        evidence.append("How long the process took to its first record is not recorded.")
    if training_s is not None:
        evidence.append(_where_it_went(facts, wall_s, training_s))
    evidence += [*_saves(run.saves), *_starts(run)]
    return Answer(_duration_sentence(facts, wall_s), tuple(evidence))


def _where_it_went(facts: Facts, wall_s: float, training_s: float) -> str:
    run = facts.run
    times = [e.seconds for e in run.evaluations if e.seconds is not None]
    rest_s = max(0.0, wall_s - training_s - sum(times) - (run.startup_s or 0.0))
    parts = [f"{duration(training_s)} in logged steps"]
    if run.source == "hvd_nmt":
        parts.append(f"{duration(sum(times))} in {count(len(times), 'evaluation')}")
    else:
        parts[0] += " (evaluations included, as the log measures it)"
    rest = "checkpoints and pauses"
    if facts.state != State.FINISHED:
        rest = "checkpoints, pauses and whatever came after the last logged step or evaluation"
    if run.startup_s is None:
        rest = f"start-up, {rest}"
    else:
        startup = duration(run.startup_s)
        parts.append(f"{startup} in start-up (imports, data, comparing the hosts)")
    return ", ".join([*parts, f"{duration(rest_s)} in {rest}."])


def _saves(saves: Sequence[Save]) -> list[str]:
    """What the checkpoints cost; [] where there were none."""
    if not saves:
        return []
    text = (
        f"Training stood still for {step_duration(median(save.wait_s for save in saves))} for each "
        f"of {count(len(saves), 'checkpoint')} (median)"
    )
    if (hosts := max(save.copies for save in saves)) > 1:
        text += f"; {hosts} hosts kept copies"
    return [f"{text}."]


def _starts(run: Run) -> list[str]:
    """What `hvd_nmt.launch` did: how often it started the ranks, and why each start ended."""
    if not run.launches:
        return []
    text = f"hvd_nmt.launch started the ranks {count(len(run.launches), 'time')}"
    if len(run.launches) > 1:
        lost = count(machines.lost_steps(run.launches), "step")
        text += f": {lost} had to be trained again"
    return [f"{text}.", *map(_end, run.launches[:-1][-_MOST_STARTS:])]


def _end(launch: Launch) -> str:
    """Why a start ended that was not the last."""
    where = ", ".join(f"{host}:{ranks}" for host, ranks in launch.ranks_by_host.items())
    at = "before its first step" if launch.last_step is None else f"at step {launch.last_step:,}"
    said = launch.sentence.rpartition("hvd_nmt.train: ")[2]
    why = "its launcher was killed." if launch.exit_code is None else f"code {launch.exit_code}."
    if launch.exit_code and said:
        why = f"code {launch.exit_code}, {said}"
    return f"The start on {where} ended {at}: {why}"


def _duration_sentence(facts: Facts, wall_s: float) -> str:
    run = facts.run
    planned = f" of {run.max_steps:,}" if run.max_steps else ""
    if facts.state == State.FINISHED:
        return f"{duration(wall_s)} for {count(machines.steps_done(run), 'step')}."
    times = machines.step_times(run)
    left = (run.max_steps or 0) - run.steps_done
    if facts.state == State.RUNNING:
        text = f"{duration(wall_s)} so far, at step {run.steps_done:,}{planned}"
        if times and left > 0:
            text += (
                f"; about {duration(left * times.mean_s)} of steps to go, if they go on as they "
                "do (evaluations not counted)"
            )
        return text + "."
    text = f"{duration(wall_s)} until the last record at step {run.steps_done:,}{planned}."
    if facts.state == State.SILENT:
        text += " The run did not say that it ended: it was killed or it crashed."
    return text


def average_step(facts: Facts) -> Answer:
    """Question 10."""
    times = machines.step_times(facts.run)
    if times is None:
        return Answer(_no_step_time(facts.run), known=False)
    margin = ""
    if times.margin_s is not None:
        scale, unit = (1, "s") if times.mean_s >= 0.1 else (1000, "ms")
        margin = f" ± {scale * times.margin_s:.2g} {unit}"
    answer = f"{step_duration(times.mean_s)}{margin} (mean of {times.steps:,} steps)."
    evidence = [f"The median of {count(times.intervals, 'interval')} is "
                f"{step_duration(times.median_s)}."]  # fmt: skip
    if times.intervals >= _ENOUGH_FOR_TENTHS:
        evidence.append(
            f"Nine tenths of the intervals lie between {step_duration(times.low_s)} and "
            f"{step_duration(times.high_s)}."
        )
    if times.first_s:
        which = "The first interval" + (" of each start" if len(times.first_s) > 1 else "")
        each = ", ".join(step_duration(seconds) for seconds in times.first_s)
        evidence.append(f"{which}, left out: {each} a step.")
    tokens = machines.tokens_per_s(facts.run)
    if tokens:
        evidence.append(f"{tokens:,.0f} source and target tokens a second, all ranks together.")
    return Answer(answer, tuple(evidence), _shares_table(facts))


def _no_step_time(run: Run) -> str:
    if run.source == "hvd_nmt":
        wait = "wait for the first logged interval (training.log_every steps)"
        return f"No step time was recorded: {wait}."
    if run.intervals:
        return (
            "The log has losses but no time of a step. OpenSeq2Seq prints a line `time per step = "
            "...` after each loss but the first of a start: keep the whole log, not a part of it."
        )
    return "The log has no step yet: set print_loss_steps, and let it reach a second such step."


def _parts_sentence(facts: Facts) -> str:
    step_s = facts.verdict.step_s or 0.0
    shares = facts.verdict.shares.items()
    parts = ", ".join(f"{step_duration(share * step_s)} {name}" for name, share in shares)
    if facts.verdict.exchange_s is not None:
        parts += f", of which {step_duration(facts.verdict.exchange_s)} {EXCHANGING}"
    return f"Of a step of {step_duration(step_s)}: {parts}."


def _shares_table(facts: Facts) -> tuple[Table, ...]:
    step_s = facts.verdict.step_s
    if not facts.verdict.shares or step_s is None:
        return ()
    rows = tuple(
        (name, step_duration(share * step_s), percent(share))
        for name, share in facts.verdict.shares.items()
    )
    exchange_s = facts.verdict.exchange_s
    if exchange_s is not None:
        share = percent(exchange_s / step_s if step_s else 0.0)
        rows += ((f"of the communication: {EXCHANGING}", step_duration(exchange_s), share),)
    title = "A mean step: where the time of all steps went"
    return (Table(title, ("part", "time", "share"), rows),)


def gpus_used(facts: Facts) -> Answer:
    """Question 4."""
    run = facts.run
    uses = machines.gpu_use(run)
    computing = facts.verdict.shares.get(PARTS["compute_s"])
    if not uses or _on_processors(run):
        return _no_gpu(facts, computing)
    head = ("GPU", "power", "of its limit", "memory activity", "utilisation (no evidence)")
    rows = tuple(_gpu_row(use) for use in uses)
    table = Table("While training steps ran (means)", head, rows)
    limits = [u.power_w / u.power_limit_w for u in uses if u.power_w and u.power_limit_w]
    evidence = [*_activity(uses, limits), *_held_back(uses), *_energy(run, uses)]
    evidence += _model_flops(run)
    if computing is None:
        answer = (
            "The record does not say how much of a step was computing, so power and memory "
            "activity below must do; train with hvd_nmt to have the steps taken apart."
        )
        return Answer(answer, tuple(evidence), (table,), known=False)
    answer = f"No: they computed {percent(computing)} of the time of a step and waited the rest."
    if computing >= FULLY_COMPUTING:
        answer = f"Yes, as far as time goes: {percent(computing)} of a step was computing."
        if limits and fmean(limits) < _LITTLE_POWER:
            answer += (
                " But they drew far less than their power limit, so the kernels are too small to "
                "fill the GPUs: try more tokens per step or float16."
            )
    return Answer(answer, (_parts_sentence(facts), *evidence), (table,))


def _activity(uses: Sequence[machines.GpuUse], limits: Sequence[float]) -> list[str]:
    """Power, activity of the memory, utilisation."""
    found = []
    activity = [u.memory_activity_percent for u in uses if u.memory_activity_percent is not None]
    busy = [u.utilisation_percent for u in uses if u.utilisation_percent is not None]
    active = f"their memory was active {fmean(activity):.0f} % of the time" if activity else ""
    if limits:
        power = f"They drew {percent(fmean(limits))} of their power limit"
        found.append(f"{power}, and {active}." if active else f"{power}.")
    elif active:
        found.append(f"{active.capitalize()}.")
    if busy:
        found.append(
            f"nvidia-smi's utilisation was {fmean(busy):.0f} %. That is no evidence for a busy "
            "GPU: it also counts the waiting inside an all-reduce."
        )
    return found


def _held_back(uses: Sequence[machines.GpuUse]) -> list[str]:
    """What the samples say of GPUs that only wait or whose clocks are held down."""
    found = []
    shares = [use.spinning for use in uses if use.spinning is not None]
    if shares and fmean(shares) >= _SHARE_WORTH_SAYING:
        found.append(
            f"In {percent(fmean(shares))} of their samples they looked busy but drew "
            "little power and hardly touched their memory: the sign of waiting inside a collective."
        )
    for use in uses:
        held = [f"{reason} ({percent(share)} of the samples)" for reason, share in use.throttled
                if share >= _SHARE_WORTH_SAYING]  # fmt: skip
        if held:
            found.append(f"The clocks of {use.host}:{use.index} were held down: {', '.join(held)}.")
    return found


def _on_processors(run: Run) -> bool:
    return bool(run.config.get("training", {}).get("device") == "cpu")


def _energy(run: Run, uses: Sequence[machines.GpuUse]) -> list[str]:
    drawn_j = sum(use.energy_j or 0.0 for use in uses)
    if not drawn_j:
        return []
    kwh = drawn_j / _J_PER_KWH
    text = f"{kwh:,.2f} kWh" if kwh >= 0.1 else f"{drawn_j / 3600:,.1f} Wh"
    per_step = f", {drawn_j / run.steps_done:,.1f} J a step" if run.steps_done else ""
    return [f"They took {text} over the whole run{per_step}."]


def _model_flops(run: Run) -> list[str]:
    rate = machines.model_flop_per_s(run)
    if rate is None:
        return []
    return [
        f"The model's products, 6 x weights x tokens and attention, made {flop_rate(rate)} on "
        "all ranks; python -m hvd_nmt.bench measures what the same devices can make."
    ]


def _gpu_row(use: machines.GpuUse) -> tuple[str, ...]:
    def known(value: float | None, unit: str) -> str:
        return "unknown" if value is None else f"{value:.0f} {unit}"

    limit = "unknown"
    if use.power_w and use.power_limit_w:
        limit = percent(use.power_w / use.power_limit_w)
    return (
        f"{use.host}:{use.index} {use.name}", known(use.power_w, "W"), limit,
        known(use.memory_activity_percent, "%"), known(use.utilisation_percent, "%"),
    )  # fmt: skip


def _no_gpu(facts: Facts, computing: float | None) -> Answer:
    run = facts.run
    if not run.telemetry:
        return Answer(
            "The record holds no samples of the GPUs. Missing are power and memory activity over "
            f"time: hvd_nmt samples them (telemetry.interval_s); beside other programs run "
            f"`{_NVIDIA_SMI}`.",
            known=False,
        )
    reasons = {str(host.header.get("gpu_unavailable") or "none found") for host in run.telemetry}
    if _on_processors(run):
        reasons = {"not used, as training.device is cpu"}
    evidence = [f"GPUs on {', '.join(host.host for host in run.telemetry)}: {', '.join(reasons)}."]
    busy = machines.cpu_percent(run)
    if busy is not None:
        evidence.append(f"The CPUs of the hosts were {busy:.0f} % busy while steps ran.")
    evidence += _model_flops(run)
    none = "No GPU was used" if _on_processors(run) else "There was no GPU"
    answer = f"{none}: the model was trained on CPUs."
    if computing is not None:
        answer += f" They computed {percent(computing)} of the time of a step."
    return Answer(answer, tuple(evidence))


def state_sentence(facts: Facts) -> str:
    """Whether the run goes on, in one sentence."""
    silent_s = facts.silent_s or 0.0
    ago = duration(silent_s) if silent_s >= 60 else f"{silent_s:.0f} s"
    end, planned = facts.run.early_end, facts.run.max_steps
    finished = "Finished."
    if end is not None:
        of = f" of {planned:,}" if planned else ""
        finished = f"Finished at step {end.step:,}{of}: {end.because} ({end.option})."
    return {
        State.FINISHED: finished,
        State.RUNNING: f"Still running: last record {ago} ago.",
        State.STOPPED: "Stopped before its last step.",
        State.AHEAD: f"Whether it still runs cannot be told: its last record is "
                     f"{duration(-silent_s)} in the future, so a clock is wrong, that of its host "
                     "or of this one.",
        State.NO_CLOCK: "The log does not say that it ended, and it has no clock to tell by.",
        State.SILENT: f"Ended without saying so: last record {ago} ago.",
    }[facts.state]  # fmt: skip


def _utc(time_s: float) -> str:
    moment = datetime.datetime.fromtimestamp(time_s, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")

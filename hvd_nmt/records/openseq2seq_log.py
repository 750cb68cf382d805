"""The log of an OpenSeq2Seq run (`nohup.out`) as a `Run`, with its TensorBoard events if at hand.

The training loss is that of rank 0's last batch, smoothed cross-entropy minus the entropy of the
smoothed label. A time per step is the mean since the line before, with evaluations in between.

Source: NVIDIA/OpenSeq2Seq, open_seq2seq/utils/hooks.py, funcs.py and models/model.py.
"""

import ast
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from hvd_nmt.checkpoints.run_files import Line
from hvd_nmt.checkpoints.sizes import FLOAT_BYTES
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.tensorflow_import import import_tensorflow
from hvd_nmt.records import metrics
from hvd_nmt.records.record import Evaluation, Interval, Run

UNKNOWN_HOST = "unknown"

_FLOAT = r"([-+]?(?:[\d.]+(?:e[-+]?\d+)?|nan|inf))"
_TAG = re.compile(r"\[\d+,(\d+)\]<std(?:out|err)>:\s?")  # mpirun and horovodrun
_HOROVOD_RANK = re.compile(r"Building graph in Horovod rank: (\d+)")
_NCCL = re.compile(r"(\S+?):\d+:\d+ \[\d+\] NCCL INFO .*\brank (\d+) nranks \d+")
_CONFIG = "*** Training config:"
_ENTRY = re.compile(
    r"""'([^']+)': (\{|<[^>]*>|\[[^]]*\]|\([^)]*\)|"[^"]*"|'[^']*'?|[^,{}]*)(\}*)"""
)
"""entry of a dictionary: name, value or its opening brace, closing braces"""
_START = re.compile(r"\*\*\* (?:Starting training from scratch|Restored checkpoint.*?-(\d+)\b)")
_STEP = re.compile(r"\*\*\* (?:Epoch (\d+), g|G)lobal step (\d+):.*?loss(?::| =) *" + _FLOAT)
_TIME = re.compile(r"time per step = (\d+):(\d+):([\d.]+)")
_VALIDATION_LOSS = re.compile(r"\*\*\* +Validation loss: *" + _FLOAT)
_PSEUDO_BLEU = re.compile(r"\*\*\* +Eval BL(?:UE|EU) score: *" + _FLOAT)
_PARAMETERS = re.compile(r"\*\*\* Total trainable parameters: (\d+)")
_TOKENS_PER_S = re.compile(r"\*\*\* Avg objects per second: ([\d.]+)")
_TAGS = ("train_loss", "learning_rate", "Loss_Optimization/global_gradient_norm")
"""tags of a step in the events"""


def read_log(log: Path) -> Run:
    """Reads what the training printed, of one rank or of all; RunError: the file is no such log.

    `config` has everything under `openseq2seq`, and in `training` and `model` what explains the
    schedule; `environment` has `average_tokens_per_s` (of all ranks, both sides) if it is told.
    """
    text = log.read_text(encoding="utf-8", errors="replace")
    if _CONFIG not in text and not _STEP.search(text):
        raise RunError(
            f"{log} is not a log of an OpenSeq2Seq training (no line `*** Global step N: ...`): "
            "give such a log, or a run directory of hvd_nmt."
        )
    ranked = [
        (int(tag[1]), line[tag.end() :]) if (tag := _TAG.match(line)) else (0, line)
        for line in text.splitlines()
    ]
    lines = [line for rank, line in ranked if rank == 0]
    raw = _config(lines)
    intervals, evaluations, is_finished = _steps(lines, raw)
    events, times_s, host = _events(log, raw, intervals)
    hosts = _hosts(ranked, raw, host)
    parameters = int(match[1]) if (match := _PARAMETERS.search(text)) else None
    speeds = _TOKENS_PER_S.findall(text)
    return Run(
        log.name, log, "OpenSeq2Seq", hosts=hosts, max_steps=raw.get("max_steps"),
        parameters=parameters, finished=is_finished, config=_in_our_names(raw),
        # float32 on the wire, in mixed precision too (mp_wrapper.py)
        gradient_bytes=FLOAT_BYTES * parameters if parameters else None,
        environment={"average_tokens_per_s": float(speeds[-1])} if speeds else {},
        started_s=min(times_s, default=None), ended_s=max(times_s, default=None),
        intervals=tuple(
            replace(interval, **metrics.fields_of(Interval, events.get(interval.step, {})))
            for interval in intervals
        ),
        evaluations=tuple(evaluations),
        problems=tuple(_problems(raw, is_finished, hosts, bool(events))),
    )  # fmt: skip


def _config(lines: Sequence[str]) -> dict[str, Any]:
    """A dictionary as pprint printed it, by its columns: values may be cut, braces missing."""
    entries: dict[str, Any] = {}
    open_dicts = [(0, entries)]  # column from which on an entry is one of it
    begin = next((n for n, line in enumerate(lines) if _CONFIG in line), len(lines))
    for line in lines[begin + 1 :]:
        if line.startswith("***"):
            break
        for entry in _ENTRY.finditer(line):
            while open_dicts[-1][0] > entry.start():
                open_dicts.pop()
            if entry[2] == "{":
                open_dicts.append((entry.end(), open_dicts[-1][1].setdefault(entry[1], {})))
                continue
            try:
                value = ast.literal_eval(entry[2])
            except (ValueError, SyntaxError):  # a class, a function, or cut
                value = entry[2].strip(" '")
            open_dicts[-1][1][entry[1]] = value
            del open_dicts[max(1, len(open_dicts) - len(entry[3])) :]
    return entries


def _steps(
    lines: Sequence[str], raw: dict[str, Any]
) -> tuple[list[Interval], list[Evaluation], bool]:
    """What rank 0 printed of its steps and evaluations, and whether it has finished."""
    intervals: list[Interval] = []
    evaluations: list[Evaluation] = []
    finished = False
    is_first, begun_step, evaluated_step = True, 0, 0
    for line in lines:
        if match := _START.search(line):
            is_first, begun_step, finished = True, int(match[1] or 0), False
            intervals = [i for i in intervals if i.step <= begun_step]
            evaluations = [e for e in evaluations if e.step <= begun_step]
        elif match := _STEP.search(line):
            step, before = int(match[2]), intervals[-1].step if intervals else 0
            epoch = float(match[1]) if match[1] else None
            intervals.append(Interval(step, step - before, loss=float(match[3]), epoch=epoch))
        if match := _TIME.search(line):
            step_s = 3600 * int(match[1]) + 60 * int(match[2]) + float(match[3])
            if intervals and not is_first:  # a start's first counts from before it was ready
                intervals[-1] = replace(intervals[-1], step_s=step_s)
            is_first = False
        elif "*** Running evaluation on a validation set" in line:
            evaluated_step = _evaluated_step(intervals, evaluations, raw, begun_step)
        elif match := _VALIDATION_LOSS.search(line):
            evaluations.append(Evaluation(evaluated_step, float(match[1])))
        elif (match := _PSEUDO_BLEU.search(line)) and evaluations:
            evaluations[-1] = replace(evaluations[-1], pseudo_bleu=float(match[1]))
        elif "*** Finished training" in line:
            finished = True
    return intervals, evaluations, finished


def _evaluated_step(
    intervals: Sequence[Interval], evaluations: Sequence[Evaluation], raw: dict[str, Any],
    begun_step: int,
) -> int:  # fmt: skip
    """The log names none: it is the first step, each eval_steps from it, and the last but one."""
    first = begun_step + 1
    step = done = max(first, intervals[-1].step) if intervals else first
    every, last = raw.get("eval_steps"), raw.get("max_steps", math.inf)
    if every:
        step = first + math.ceil((done - first) / every) * every
        while evaluations and step <= evaluations[-1].step:
            step += every
    return int(min(step, max(done, last - 1)))


def _events(
    log: Path, raw: dict[str, Any], intervals: Sequence[Interval]
) -> tuple[dict[int, Line], list[float], str | None]:
    """Lines of steps, times and host, by the run's event files in its logdir or next to the log."""
    folders = {log.parent, log.parent / Path(raw.get("logdir", "")).name}
    paths = [path for folder in folders for path in folder.glob("events.out.tfevents.*.*")]
    losses = {interval.step: interval.loss or 0.0 for interval in intervals}
    lines: dict[int, Line] = {}
    times_s: list[float] = []
    host = None
    if paths:  # the loader calls it, too, but aloud
        import_tensorflow()
    for path in sorted(paths, key=lambda path: path.name):
        of_file: dict[int, Line] = {}
        seen_s = []
        for event in LegacyEventFileLoader(str(path)).Load():
            of_step = {v.tag: v.simple_value for v in event.summary.value if v.tag in _TAGS}
            if "train_loss" in of_step:
                of_step["time_s"] = event.wall_time
            of_file.setdefault(event.step, {}).update(of_step)
            if event.HasField("summary"):
                seen_s.append(event.wall_time)
        off = [abs(line["train_loss"] - losses[step]) for step, line in of_file.items()
               if step in losses and "train_loss" in line]  # fmt: skip
        # Where a resumed run did steps again, the log's values are those of the later file.
        if off and median(off) <= 1e-4:  # the last decimal of a logged loss
            lines |= of_file
            begun, host = path.name.split(".", 4)[3:]
            times_s += [float(begun), *seen_s]
    return lines, times_s, host


def _hosts(
    ranked: Sequence[tuple[int, str]], raw: dict[str, Any], host: str | None
) -> tuple[str, ...]:
    """Host of each rank, or of each GPU of the one process, as far as they are named."""
    named = {int(m[2]): m[1] for _, line in ranked if (m := _NCCL.match(line))}
    if host is not None:
        named.setdefault(0, host)
    ranks = {int(m[1]) for _, line in ranked if (m := _HOROVOD_RANK.search(line))}
    ranks |= {rank for rank, _ in ranked} | set(named)
    if not raw.get("use_horovod") and ranks == {0}:
        return (named.get(0, UNKNOWN_HOST),) * raw.get("num_gpus", 1)
    return tuple(named.get(rank, UNKNOWN_HOST) for rank in range(max(ranks) + 1))


def _in_our_names(raw: dict[str, Any]) -> dict[str, Any]:
    """The configuration as it was, and what explains the schedule under this package's names."""
    if not raw:
        return {}
    # The parameters of another schedule mean something else.
    is_ours = "transformer_policy" in str(raw.get("lr_policy"))
    rates = raw.get("lr_policy_params", {}) if is_ours else {}
    named = {
        "max_steps": raw.get("max_steps"),
        "learning_rate": rates.get("learning_rate"),
        "warmup_steps": rates.get("warmup_steps"),
        "max_learning_rate": rates.get("max_lr"),
        "schedule_width": rates.get("d_model"),
    }
    training = {name: value for name, value in named.items() if isinstance(value, int | float)}
    if "learning_rate" in training:
        training["learning_rate"] *= rates.get("coefficient", 1.0)
    width = raw.get("decoder_params", {}).get("hidden_size")
    return {"openseq2seq": raw, "model": {"width": width}, "training": training}


def _problems(
    raw: dict[str, Any], is_finished: bool, hosts: Sequence[str], has_events: bool
) -> Iterator[str]:
    yield "OpenSeq2Seq logs neither the size of the training set nor GPUs and network."
    if not raw:
        yield "The log does not show the configuration."
    if not has_events:
        yield (
            "No TensorBoard events of this run are next to the log, so learning rates, gradient "
            "norms and the time of day are unknown."
        )
    if not is_finished:
        yield "The log has no line `Finished training`: the run continues or was stopped."
    if raw.get("use_horovod") and (len(hosts) == 1 or UNKNOWN_HOST in hosts):
        yield "The log does not name all ranks of Horovod and their hosts."

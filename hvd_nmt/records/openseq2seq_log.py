"""The log of an OpenSeq2Seq run (`nohup.out`) as a `Run`, with its TensorBoard events if at hand.

What the numbers are: the training loss is that of rank 0's last batch, not a mean; a time per step
is the mean since the line before and holds the evaluations in between; "BLUE" is teacher-forced
arg-max BLEU over pieces, kept as `pseudo_bleu`; losses are smoothed cross-entropy minus the entropy
of the smoothed label. A learning rate at global step N is that of the N-th update.

Source: NVIDIA/OpenSeq2Seq, open_seq2seq/utils/hooks.py, funcs.py and models/model.py.
"""

from __future__ import annotations

import ast
import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorboard.compat.proto import event_pb2

from hvd_nmt.common.errors import RunError
from hvd_nmt.common.gradient import bytes_of_gradients
from hvd_nmt.records.record import Evaluation, Interval, Run

SAMPLES_KEPT = 5
"""sentences kept of each evaluation, and of the training batches"""
UNKNOWN_HOST = "unknown"

_FLOAT = r"([-+]?(?:[\d.]+(?:e[-+]?\d+)?|nan|inf))"
_TAG = re.compile(r"^\[\d+,(\d+)\]<std(?:out|err)>:\s?")  # mpirun and horovodrun
_HOROVOD_RANK = re.compile(r"Building graph in Horovod rank: (\d+)")
_GPU_NAME = re.compile(r"^name: (.+?) major: ")  # TensorFlow 1, gpu_device.cc
_NCCL = re.compile(r"^(\S+?):\d+:\d+ \[\d+\] NCCL INFO .*\brank (\d+) nranks \d+")
_START = re.compile(r"\*\*\* (?:Starting training from scratch|Restored checkpoint.*?-(\d+)\b)")
_STEP = re.compile(r"\*\*\* (?:Epoch (\d+), g|G)lobal step (\d+):.*?loss(?::| =) *" + _FLOAT)
_TIME = re.compile(r"time per step = (\d+):(\d+):([\d.]+)")
_VALIDATION_LOSS = re.compile(r"\*\*\* +Validation loss: *" + _FLOAT)
_PSEUDO_BLEU = re.compile(r"\*\*\* +Eval BL(?:UE|EU) score: *" + _FLOAT)
_PARAMETERS = re.compile(r"\*\*\* Total trainable parameters: (\d+)")
_AVERAGE = re.compile(r"\*\*\* Avg (time per step|objects per second): ([\d.]+)")
_SAMPLE = re.compile(r"\*\*\* +(\*{5}EVAL|Train) (Source|Target|Prediction)\[0\]: +(.*)")
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\.(.+)")
_KEY = re.compile(r"'([^']+)': ")
_PLAIN = re.compile(r"<[^>]*>|[^,{}]*")
_PLACES = 5e-5
"""half of the last decimal of a logged loss"""
_NAMES = {
    "model.encoder_layers": "encoder_params.encoder_layers",
    "model.decoder_layers": "decoder_params.num_hidden_layers",
    "model.width": "decoder_params.hidden_size",
    "model.heads": "decoder_params.num_heads",
    "model.feed_forward_width": "decoder_params.filter_size",
    "training.max_steps": "max_steps",
    "training.learning_rate": "lr_policy_params.learning_rate",
    "training.warmup_steps": "lr_policy_params.warmup_steps",
    "training.max_learning_rate": "lr_policy_params.max_lr",
    "training.schedule_width": "lr_policy_params.d_model",
    "evaluation.every_steps": "eval_steps",
}
"""names in this package's configuration -> where OpenSeq2Seq's has the same"""

Series = dict[int, tuple[float, float]]
"""step -> (unix time, value)"""


def read_log(log: Path) -> Run:
    """Reads what the training printed (stdout, or stdout and stderr), of one rank or of all.

    Event files are looked for beside the log and in the folder of the configured logdir's name
    beside it; those of another run are not used.

    Returns:
        The run. `config` has `training`, `model` and `evaluation` under the names of this
        package's configuration as far as they have a meaning here, and everything under
        `openseq2seq`. `environment` has `precision`, `gpus`, `average_step_s` and
        `average_tokens_per_s` (of all ranks, both sides) if the log tells them, and `samples`.

    Raises:
        RunError: the file cannot be read or is no such log.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunError(f"The log {log} cannot be read: {error.strerror or error}.") from error
    if "*** Training config:" not in text and not _STEP.search(text):
        raise RunError(
            f"{log} is no log of an OpenSeq2Seq training (no line `*** Global step N: ...`): give "
            "such a log, or a run directory of hvd_nmt."
        )
    all_lines = text.splitlines()
    lines = [line for line, rank in _by_rank(all_lines) if rank == 0]
    raw = _printed_config(lines, "*** Training config:")
    contents = _parsed(lines, raw)
    series, host, begun_s = _events(log, raw, contents)
    hosts, unknown = _hosts(all_lines, raw, host)
    times_s = [time_s for points in series.values() for time_s, _ in points.values()]
    return Run(
        log.name, log, "OpenSeq2Seq", hosts, parameters=contents.parameters,
        # float32 on the wire, in mixed precision too (mp_wrapper.py)
        gradient_bytes=bytes_of_gradients(contents.parameters) if contents.parameters else None,
        max_steps=raw["max_steps"] if isinstance(raw.get("max_steps"), int) else None,
        finished=contents.finished, started_s=min(begun_s + times_s, default=None),
        ended_s=max(times_s, default=None), config=_in_our_names(raw),
        environment=_environment(contents, raw),
        intervals=tuple(_with_events(interval, series) for interval in contents.intervals),
        evaluations=tuple(_scored(scores, series) for scores in contents.evaluations),
        problems=(*_problems(contents, series, raw), *unknown),
    )  # fmt: skip


@dataclass
class _Contents:
    intervals: list[Interval] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    finished: bool = False


def _by_rank(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        tag = _TAG.match(line)
        yield (line[tag.end() :], int(tag[1])) if tag else (line, 0)


def _parsed(lines: list[str], raw: dict[str, Any]) -> _Contents:
    contents = _Contents()
    first, begun_step, evaluated_step = True, 0, 0
    for line in lines:
        if match := _START.search(line):
            first, begun_step, contents.finished = True, int(match[1] or 0), False
            contents.intervals = [one for one in contents.intervals if one.step <= begun_step]
            contents.evaluations = [one for one in contents.evaluations if one.step <= begun_step]
        elif match := _STEP.search(line):
            _add_interval(contents, int(match[2]), float(match[3]), match[1])
        if match := _TIME.search(line):
            step_s = 3600 * int(match[1]) + 60 * int(match[2]) + float(match[3])
            if not first and contents.intervals:  # a start's first counts from before it was ready
                contents.intervals[-1] = replace(contents.intervals[-1], step_s=step_s)
            first = False
        elif "*** Running evaluation on a validation set" in line:
            evaluated_step = begun_step + 1 if first else _evaluated_step(contents, raw, begun_step)
        elif match := _VALIDATION_LOSS.search(line):
            earlier = [each for each in contents.evaluations if each.step < evaluated_step]
            contents.evaluations = [*earlier, Evaluation(evaluated_step, None, float(match[1]))]
        elif (match := _PSEUDO_BLEU.search(line)) and contents.evaluations:
            last = contents.evaluations[-1]
            contents.evaluations[-1] = replace(last, pseudo_bleu=float(match[1]))
        elif match := _SAMPLE.search(line):
            _add_sample(contents, evaluated_step, match)
        elif "*** Finished training" in line:
            contents.finished = True
        else:
            _add_fact(contents, line)
    return contents


def _add_interval(contents: _Contents, step: int, loss: float, epoch: str | None) -> None:
    earlier = [interval for interval in contents.intervals if interval.step < step]
    steps = step - (earlier[-1].step if earlier else 0)
    epochs = float(epoch) if epoch else None
    contents.intervals = [*earlier, Interval(step, steps, None, loss=loss, epoch=epochs)]


def _evaluated_step(contents: _Contents, raw: dict[str, Any], begun_step: int) -> int:
    """The log names none: it is the first step, each eval_steps from it, and the last but one."""
    step = done = contents.intervals[-1].step if contents.intervals else begun_step
    every, last = raw.get("eval_steps"), raw.get("max_steps")
    if isinstance(every, int) and every > 0:
        step = begun_step + 1 + math.ceil(max(0, done - begun_step - 1) / every) * every
        while contents.evaluations and step <= contents.evaluations[-1].step:
            step += every
    return min(step, max(done, last - 1)) if isinstance(last, int) else step


def _add_sample(contents: _Contents, evaluated_step: int, match: re.Match[str]) -> None:
    name, text = match[2].lower(), match[3].strip()
    if name == "source" and match[1] == "Train":
        step = contents.intervals[-1].step if contents.intervals else 0
        contents.samples.append({"kind": "train", "step": step})
    elif name == "source":
        contents.samples.append({"kind": "evaluation", "step": evaluated_step})
    if contents.samples:
        contents.samples[-1][name] = text


def _add_fact(contents: _Contents, line: str) -> None:
    if match := _PARAMETERS.search(line):
        contents.parameters = int(match[1])
    elif match := _AVERAGE.search(line):
        name = "average_step_s" if "time" in match[1] else "average_tokens_per_s"
        contents.environment[name] = float(match[2])
    elif match := _GPU_NAME.search(line):
        contents.environment.setdefault("gpus", []).append(match[1])


def _printed_config(lines: list[str], title: str) -> dict[str, Any]:
    """A dictionary as pprint printed it, by its columns: values may be cut, braces missing."""
    found: dict[str, Any] = {}
    stack = [(1, found)]  # column of the keys -> where they go
    begin = next((index for index, line in enumerate(lines) if title in line), len(lines))
    for line in lines[begin + 1 :]:
        if line.startswith("***"):
            break
        if _KEY.match(line.lstrip(" {")):
            _add_entries(line, stack)
    return found


def _add_entries(line: str, stack: list[tuple[int, dict[str, Any]]]) -> None:
    at = line.index("'")
    while len(stack) > 1 and stack[-1][0] > at:
        stack.pop()
    while match := _KEY.match(line, at):
        key, at = match[1], match.end()
        if literal := _literal(line[at:]):
            stack[-1][1][key] = literal[0]
            return
        if line.startswith("{'", at):
            at += 1
            stack.append((at, stack[-1][1].setdefault(key, {})))
        elif plain := _PLAIN.match(line, at):
            stack[-1][1][key] = plain[0].strip(" '")
            at = plain.end() + 2  # behind ", "


def _literal(text: str) -> list[Any]:
    """The value, if the text is a Python literal but for commas and braces that follow it."""
    text = text.rstrip(" ,")
    while text:
        try:
            return [ast.literal_eval(text)]
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            text = text[:-1] if text.endswith("}") else ""
    return []


def _events(
    log: Path, raw: dict[str, Any], contents: _Contents
) -> tuple[dict[str, Series], str | None, list[float]]:
    """Of the event files that belong to the log: scalars by tag, host, and when they began."""
    folders = [log.parent, log.parent / Path(str(raw.get("logdir", ""))).name]
    paths = {path for folder in folders for path in folder.glob("events.out.tfevents.*")}
    losses = {interval.step: interval.loss for interval in contents.intervals}
    series: dict[str, Series] = {}
    host, begun_s = None, []
    for path in sorted(paths, key=lambda path: path.name):
        found = _scalars(path)
        agrees = [
            abs(value - loss) <= 2 * _PLACES
            for step, (_, value) in found.get("train_loss", {}).items()
            if (loss := losses.get(step)) is not None
        ]
        # Where a resumed run did steps again, the log's values are those of the later file.
        if agrees and 2 * sum(agrees) >= len(agrees):
            for tag, points in found.items():
                series.setdefault(tag, {}).update(points)
            if match := _EVENT_FILE.match(path.name):
                host = match[2]
                begun_s.append(float(match[1]))
    return series, host, begun_s


def _scalars(path: Path) -> dict[str, Series]:
    """All scalars of an event file up to where it ends or is torn.

    TensorBoard's own loader imports TensorFlow, which takes seconds.
    """
    series: dict[str, Series] = {}
    data = path.read_bytes()
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        record = data[at + 12 : at + 12 + length]  # length, its CRC, the record, its CRC
        at += 16 + length
        if at > len(data):
            break
        try:
            event = event_pb2.Event.FromString(record)
        except DecodeError:
            break
        for value in event.summary.value:
            if value.HasField("simple_value"):
                points = series.setdefault(value.tag, {})
                points[event.step] = (event.wall_time, value.simple_value)
    return series


def _hosts(
    lines: list[str], raw: dict[str, Any], host: str | None
) -> tuple[tuple[str, ...], list[str]]:
    """Host of each rank, or each GPU of the one process, if named; what is not known of them."""
    named = {int(m[2]): m[1] for line in lines if (m := _NCCL.search(_TAG.sub("", line)))}
    if host is not None:
        named.setdefault(0, host)
    ranks = {int(m[1]) for line in lines if (m := _HOROVOD_RANK.search(line))}
    ranks |= {rank for _, rank in _by_rank(lines)} | set(named)
    if not raw.get("use_horovod") and ranks == {0}:
        gpus = raw.get("num_gpus")
        return (named.get(0, UNKNOWN_HOST),) * (gpus if isinstance(gpus, int) else 1), []
    hosts = tuple(named.get(rank, UNKNOWN_HOST) for rank in range(max(ranks) + 1))
    if len(hosts) == 1:
        return hosts, ["The log shows Horovod but only rank 0: the number of ranks is unknown."]
    known = UNKNOWN_HOST not in hosts
    return hosts, [] if known else ["The log does not name the hosts of all its ranks."]


def _problems(contents: _Contents, series: dict[str, Series], raw: dict[str, Any]) -> list[str]:
    problems = ["OpenSeq2Seq logs neither the size of the training set nor GPUs and network."]
    if not raw:
        problems.append("The log does not show the configuration.")
    if not series:
        problems.append(
            "No TensorBoard events of this run lie beside the log, so learning rates, gradient "
            "norms and the time of day are unknown."
        )
    if not contents.finished:
        problems.append("The log does not say `Finished training`: the run goes on or was stopped.")
    return problems


def _with_events(interval: Interval, series: dict[str, Series]) -> Interval:
    def at(tag: str) -> tuple[float | None, float | None]:
        return series.get(tag, {}).get(interval.step, (None, None))

    return replace(
        interval,
        time_s=at("train_loss")[0],
        loss=at("train_loss")[1] or interval.loss,
        learning_rate=at("learning_rate")[1],
        gradient_norm=at("Loss_Optimization/global_gradient_norm")[1],
    )


def _scored(scores: Evaluation, series: dict[str, Series]) -> Evaluation:
    """Takes step and time from the event with the logged loss that is nearest."""
    equal = [
        (abs(step - scores.step), step, time_s, value)
        for step, (time_s, value) in series.get("eval_loss", {}).items()
        if scores.loss is not None and abs(value - scores.loss) <= 2 * _PLACES
    ]
    _, step, time_s, loss = min(equal, default=(0, scores.step, None, scores.loss))
    return replace(scores, step=step, time_s=time_s, loss=loss)


def _environment(contents: _Contents, raw: dict[str, Any]) -> dict[str, Any]:
    kept: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for sample in contents.samples:
        kept.setdefault((sample["kind"], sample["step"]), []).append(sample)
    samples = [sample for group in kept.values() for sample in group[:SAMPLES_KEPT]]
    dtype = {"precision": str(raw["dtype"]).removeprefix("tf.")} if "dtype" in raw else {}
    return {**dtype, **contents.environment, "samples": samples}


def _in_our_names(raw: dict[str, Any]) -> dict[str, Any]:
    """The configuration under the names of this package's, and as it was."""
    if not raw:
        return {}
    # The parameters of another schedule mean something else.
    is_ours = "transformer_policy" in str(raw.get("lr_policy"))
    known = raw if is_ours else {**raw, "lr_policy_params": {}}
    config: dict[str, dict[str, Any]] = {"openseq2seq": raw}
    for ours, place in _NAMES.items():
        group, name = ours.split(".")
        config.setdefault(group, {})
        if (value := _at(known, place)) is not None:
            config[group][name] = value
    training = config["training"]
    if isinstance(training.get("learning_rate"), float | int):
        training["learning_rate"] *= _at(raw, "lr_policy_params.coefficient") or 1.0
    return config


def _at(values: Any, place: str) -> Any:
    for name in place.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values

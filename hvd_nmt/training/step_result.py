"""The numbers of a step: one vector on its way over the ranks, a `StepResult` for readers."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvd_nmt.telemetry.steps import StepTime


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepNumbers:
    """The vector of a training step, in this order.

    It is summed over ranks up to `tokens_by_host`: of a list with a place for each rank or host a
    rank fills its own. The rest each rank has without asking the others.
    """

    loss: float
    """smoothed cross-entropy per target token, nats"""
    nll: float
    """cross-entropy per target token, nats"""
    stop: float
    """ranks that were asked to stop"""
    end: float
    """above 0: the time of the run is over"""
    sentences: float
    """that all ranks were fed"""
    by_corpus: list[float]
    """of them, from each of several corpora"""
    rank_ready_s: list[float]
    """of each rank, see `telemetry.steps`"""
    rank_input_wait_s: list[float]
    """of each rank, see `telemetry.steps`"""
    rank_paused_s: list[float]
    """seconds for which each rank was kept from running in the step before"""
    rank_not_finite: list[float]
    """of each rank, 1: its own loss was NaN or Inf"""
    tokens_by_host: list[float]
    """target tokens that each host learned from, where hosts train alone"""
    gradient_norm: float
    """of the summed gradients; without clipping this rank's: its last digits depend on threads"""
    source_tokens: float
    """real ones, of all ranks"""
    target_tokens: float
    """real ones, of all ranks"""
    waited_s: float
    """seconds from this rank's own gradients to the sums, by the wall's clock"""
    loss_scale: float
    """of this step; 0: none"""
    skipped_steps: float
    """of the run until now"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult(StepNumbers):
    """What a step gave; equal on all ranks but for `step_time` and what it is made of."""

    step: int
    """this one, from 1"""
    is_left_out: bool
    """whether NaN or Inf kept it from changing weights, where hosts train alone those of one"""
    step_s: float
    """seconds that this rank took"""
    exchange_s: float | None
    """of them, between hosts after the step; None: nothing ever follows a step"""
    step_time: StepTime
    """where these seconds went"""


def packed(numbers: Iterable[tf.Tensor]) -> tf.Tensor:
    """Numbers of a step, in the order of `StepNumbers`, as one float32 vector."""
    return tf.concat([tf.reshape(number, [-1]) for number in numbers], 0)


def unpacked(values: list[float], *, ranks: int, corpora: int, hosts: int) -> StepNumbers:
    """The vector as numbers, and lists with so many places."""
    names = [field.name for field in dataclasses.fields(StepNumbers)]
    places = {name: ranks for name in names if name.startswith("rank_")}
    places |= {"by_corpus": corpora, "tokens_by_host": hosts}
    rest = iter(values)
    numbers: dict[str, Any] = {
        name: [next(rest) for _ in range(places[name])] if name in places else next(rest)
        for name in names
    }
    return StepNumbers(**numbers)

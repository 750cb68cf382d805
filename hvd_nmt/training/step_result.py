"""The numbers of a step: one vector on its way over the ranks, a `StepResult` for readers."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_nmt.telemetry.steps import StepTime


class Summed(NamedTuple):
    """What is summed over ranks; of a field with a place for each of them a rank fills its own."""

    loss: Any
    nll: Any
    stop: Any
    end: Any
    sentences: Any
    by_corpus: Any
    rank_ready_s: Any
    rank_input_wait_s: Any
    rank_paused_s: Any
    rank_not_finite: Any
    tokens_by_host: Any


class Own(NamedTuple):
    """What each rank has without asking the others."""

    gradient_norm: Any
    source_tokens: Any
    target_tokens: Any
    waited_s: Any
    loss_scale: Any
    skipped_steps: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step gave; equal on all ranks but for `step_time` and what it is made of."""

    step: int
    """this one, from 1"""
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
    rank_not_finite: list[float]
    """of each rank, 1: its own loss was NaN or Inf"""
    rank_paused_s: list[float]
    """seconds for which each rank was kept from running in the step before"""
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
    is_left_out: bool
    """whether NaN or Inf kept it from changing weights, where hosts train alone those of one"""
    step_s: float
    """seconds that this rank took"""
    exchange_s: float | None
    """of them, between hosts after the step; None: nothing ever follows a step"""
    step_time: StepTime
    """where these seconds went"""


def packed(fields: Iterable[tf.Tensor]) -> tf.Tensor:
    """The fields of `Summed` or `Own` as one float32 vector."""
    return tf.concat([tf.reshape(field, [-1]) for field in fields], 0)


def unpacked(values: list[float], *, ranks: int, corpora: int, hosts: int) -> tuple[Summed, Own]:
    """The fields of both vectors, one after the other: a number, or one for each place."""
    places = {name: ranks for name in Summed._fields if name.startswith("rank_")}
    places |= {"by_corpus": corpora, "tokens_by_host": hosts}
    rest = iter(values)
    summed, own = (
        [
            [next(rest) for _ in range(places[name])] if name in places else next(rest)
            for name in kind._fields
        ]
        for kind in (Summed, Own)
    )
    return Summed(*summed), Own(*own)

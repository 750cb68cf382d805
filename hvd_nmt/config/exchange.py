"""How the hosts of a run share what their ranks learn, with nothing left to be decided."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Literal

from hvd_nmt.config.limits import AUTO
from hvd_nmt.config.schema import Config, TrainingConfig

MOST_PARTS = 64
"""in which the weights travel, streamed: each has graphs of its own"""
WAY_OF_TWO_HOSTS = 1.6
"""how far the common weights of two hosts move in the long run, hosts' mean progress = 1: of 1.0,
1.4, 1.6 and 2.0 the last two came within 1 % of the loss of plain training on Multi30k, and 2.0
spoils the embedded corpus, which wants 1.0: docs/slow-links.md"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exchange:
    """The fields of `TrainingConfig` that have the same names, decided.

    The default is what a run on one host does, or over a fast link: one all-reduce of float32
    gradients over all ranks in each step.
    """

    wire: Literal["float32", "float16"] = "float32"
    """numbers that travel between hosts"""
    hierarchical: bool = False
    """gradients are summed within each host first"""
    islands: bool = False
    """hosts join their weights every `sync_every` steps, and not their gradients in each step"""
    sync_every: int = 1
    """islands: steps from one exchange of a weight to the next; 1 without islands"""
    streaming: bool = False
    """islands: a part of the weights travels in each step"""
    outer_rate: float = 0.0
    """islands: of the hosts' mean progress, which moves the common weights; 0: see `rate`"""
    outer_momentum: float = 0.5
    """islands: Nesterov momentum of the common weights"""

    @property
    def parts(self) -> int:
        """In how many parts the weights travel from one exchange to the next, a step each."""
        return min(self.sync_every, MOST_PARTS) if self.streaming else 1

    @property
    def is_plain(self) -> bool:
        """Whether float32 gradients are summed over all ranks in each step and in one go."""
        return self.wire == "float32" and not self.hierarchical and not self.islands

    def rate(self, hosts: float) -> float:
        """What the hosts' mean progress is multiplied by.

        Adam divides a gradient by its size. That of one host has fewer sentences, so more noise:
        where noise prevails, its step goes 1 / sqrt(hosts) as far along the true gradient as a step
        of all hosts would, and so does the mean of the hosts' steps. Source: the square root rule
        of Malladi et al. 2022, arXiv 2205.10287. Momentum m moves 1 / (1 - m) times as far. So the
        way grows with the square root of hosts; that of two is `WAY_OF_TWO_HOSTS`.

        Args:
            hosts: how many there are; less if some learn from far more tokens than others.
        """
        way = WAY_OF_TWO_HOSTS * math.sqrt(hosts / 2)
        return self.outer_rate or way * (1 - self.outer_momentum)

    def written_into(self, training: TrainingConfig) -> TrainingConfig:
        """The same configuration with this in place of what was left to be decided."""
        return dataclasses.replace(
            training,
            wire=self.wire,
            hierarchical="on" if self.hierarchical else "off",
            islands="hosts" if self.islands else "off",
            sync_every=self.sync_every,
            streaming="on" if self.streaming else "off",
            outer_rate=self.outer_rate,
            outer_momentum=self.outer_momentum,
        )


class Joined(enum.Enum):
    """What the islands make equal on all hosts after a step."""

    NOTHING = enum.auto()
    WEIGHTS = enum.auto()
    """the weights, all at once: they are not streamed"""
    EVERYTHING = enum.auto()
    """Adam's moments, too: a checkpoint may be written"""


def joined_at(config: Config, exchange: Exchange, step: int) -> Joined:
    """What the islands make equal on all hosts after a step.

    Args:
        config: of the run; when it saves and evaluates.
        exchange: how the hosts share what they learn.
        step: steps done.
    """
    if not exchange.islands:
        return Joined.NOTHING

    def due(every_steps: int) -> bool:
        return is_due(step, every_steps, exchange.sync_every)

    saved = due(config.checkpoints.every_steps) or due(config.evaluation.every_steps)
    if saved or step == config.training.max_steps:
        return Joined.EVERYTHING
    at_once = not exchange.streaming and step % exchange.sync_every == 0
    return Joined.WEIGHTS if at_once else Joined.NOTHING


def decided(training: TrainingConfig) -> Exchange | None:
    """What the configuration asks for; None: something is left to the program.

    Islands need no measuring to know that numbers are to be narrow.
    """
    islands = training.islands == "hosts"
    open_ = (training.sync_every, training.streaming) if islands else (
        training.wire, training.hierarchical, training.islands)  # fmt: skip
    if AUTO in open_:
        return None
    narrow = training.wire == "float16" or (islands and training.wire == AUTO)
    return Exchange(
        wire="float16" if narrow else "float32",
        hierarchical=training.hierarchical == "on" or islands,
        islands=islands,
        sync_every=int(training.sync_every) if islands else 1,
        streaming=islands and training.streaming == "on",
        outer_rate=training.outer_rate,
        outer_momentum=training.outer_momentum,
    )


def is_decided(training: TrainingConfig) -> bool:
    """Whether the configuration leaves nothing of the exchange to the program."""
    return decided(training) is not None


def may_group_ranks(training: TrainingConfig) -> bool:
    """Whether ranks of a host may have to exchange something among themselves."""
    exchange = decided(training)
    return exchange is None or not exchange.is_plain


def is_due(step: int, every_steps: int, sync_every: int = 1) -> bool:
    """Whether something that is due every so many steps is done after this one.

    What all hosts must have in common stands at an exchange: each due step is put off to the next.

    Args:
        step: steps done.
        every_steps: steps between two times that it is due.
        sync_every: steps between two exchanges; 1: each step is one.
    """
    return step % sync_every == 0 and step // every_steps > (step - sync_every) // every_steps

"""One file shared by all ranks that horovodrun started, on one host or several.

Rank 0 alone reads the input and writes the output, so these need to be on its host only. Chunk by
chunk it hands the lines to all ranks, each takes its share, and the results come back in order:
what is in memory or on its way at any time is one chunk. Each host needs the run directory, with
the same checkpoint, under the same path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, final

from hvd_nmt.config import command_line

if TYPE_CHECKING:
    from hvd_nmt.training.horovod import Rank

Value = TypeVar("Value")


@contextmanager
def join(threads: int = 0) -> Iterator[RankGroup]:
    """Takes this process's place among the ranks; TensorFlow must not have computed yet.

    Args:
        threads: of this rank; 0: its share of the cores of its host.

    Raises:
        ClusterError: the ranks do not fit together, or one is lost.
    """
    if not command_line.started_by_horovod():
        yield RankGroup()
        return
    from hvd_nmt.training import devices, horovod
    from hvd_nmt.translation.engine import use_threads

    rank = horovod.init()
    group = RankGroup(rank)
    with horovod.raise_on_all_ranks():
        devices.set_up(rank)
        use_threads(group.threads(threads))  # later is too late: ranks that talk compute
    with horovod.end_when_ranks_are_lost("hvd_nmt.translate"):
        yield group
    horovod.shutdown()


@final
class RankGroup:
    """This process among those that share a file; made by `join`.

    Args:
        rank: None if it is alone.
    """

    def __init__(self, rank: Rank | None = None) -> None:
        self._rank = rank
        self.size = 1 if rank is None else rank.size
        self.is_first = rank is None or rank.is_first

    def raise_on_all_ranks(self) -> AbstractContextManager[None]:
        """For a block that may fail on some ranks: a user's error there is raised on all."""
        if self._rank is None:
            return nullcontext()
        from hvd_nmt.training import horovod

        return horovod.raise_on_all_ranks()

    def gather(self, value: Value) -> list[Value]:
        """Every rank's value, by rank; of types that JSON has."""
        if self._rank is None:
            return [value]
        from hvd_nmt.training import horovod

        return horovod.gather(value)

    def broadcast(self, value: Value) -> Value:
        """The value of rank 0, on all ranks; of types that JSON has."""
        return self.gather(value if self.is_first else None)[0]  # type: ignore[return-value]

    def threads(self, wanted: int) -> int:
        """Processor threads of this rank: those wanted, or if that is 0 its share of the cores."""
        if wanted or self._rank is None:
            return wanted
        return max(1, len(os.sched_getaffinity(0)) // self._rank.local_size)

    def share(self, texts: Sequence[str]) -> list[int]:
        """Indices of the texts that are this rank's: as much work as any other rank's."""
        if self._rank is None:
            return list(range(len(texts)))
        longest_first = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        return longest_first[self._rank.index :: self.size]

    def require_equal(self, facts: dict[str, Any]) -> None:
        """See that what the ranks work with is the same on all of them."""
        if self._rank is not None:
            from hvd_nmt.training import cluster

            cluster.require_equal(facts, self._rank)

"""Whether each epoch of a run had every sentence exactly once, whatever interrupted it.

Of several corpora with weights: whether it had every sentence as often as was planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hvd_nmt.common.units import count
from hvd_nmt.data.sentence_sum import SentenceSum
from hvd_nmt.records.record import DataOfStart, Fed, Run

_STARTS_NAMED = 6
"""starts of which each one's ranks are named, at most"""


@dataclass(frozen=True)
class Coverage:
    """What the recorded digests prove, epoch by epoch (from 1)."""

    exact: tuple[int, ...] = ()
    """finished epochs in which every sentence came exactly once"""
    faults: tuple[str, ...] = ()
    """of other finished epochs, one sentence each"""
    others: tuple[str, ...] = ()
    """of epochs that cannot be judged, one sentence each"""
    starts: tuple[int, ...] = ()
    """numbers of the starts, from 0, in which the exact epochs were trained"""
    ranks: tuple[int, ...] = ()
    """number of ranks of each of these starts"""
    left_out: tuple[tuple[int, int], ...] = ()
    """of the exact epochs: (epoch, sentences in steps that changed no weight), where there are
    any"""
    how_often: str = "exactly once"
    """what was planned of each sentence"""

    @property
    def proof(self) -> str:
        """One sentence about the exact epochs; "" without one."""
        if not self.exact:
            return ""
        but = " and ".join(f"{number:,} of epoch {epoch:,}" for epoch, number in self.left_out)
        return (
            f"Every sentence of {_epochs(self.exact)} was trained on {self.how_often}, "
            f"{_starts(self.ranks)}" + (f", but for {but}, which were left out." if but else ".")
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """All of it."""
        return (*self.faults, *([self.proof] if self.proof else []), *self.others)


@dataclass(frozen=True)
class _Epoch:
    """What an epoch was to have, and what it was fed."""

    number: int
    whole: SentenceSum
    fed: Sequence[Fed]
    """in the steps that may be of it"""
    missing: str = ""
    """why it cannot be judged"""


@dataclass(frozen=True)
class _Segment:
    """Steps that were trained on the same data."""

    data: DataOfStart
    first: int
    """the first step"""
    last: int
    """the last step that is recorded"""
    is_newest: bool


def coverage(run: Run) -> Coverage:
    """Compares what each epoch was fed with what a whole epoch has.

    An epoch is judged if all of it was recorded with the same data: where a run went on with other
    data, from the first epoch that began with them.
    """
    exact: list[int] = []
    faults: list[str] = []
    others: list[str] = []
    starts: set[int] = set()
    left_out: list[tuple[int, int]] = []
    for each in _planned(run) if run.planned else _equal(run):
        epoch = each.number
        if each.missing:
            others.append(f"Epoch {epoch:,} {each.missing}")
            continue
        trained, skipped = (
            _total(sums[epoch] for sums in all_sums if epoch in sums)
            for all_sums in ([f.by_epoch for f in each.fed], [f.left_out for f in each.fed])
        )
        if fault := _fault(trained.plus(skipped), each.whole):
            faults.append(f"Epoch {epoch:,}: {fault}")
            continue
        exact.append(epoch)
        left_out += [(epoch, skipped.count)] if skipped.count else []
        starts.update(f.start for f in each.fed if {epoch} & {*f.by_epoch, *f.left_out})
    numbers = tuple(sorted(starts))
    ranks = tuple(len(run.start_hosts[number]) or 1 for number in numbers)
    found = Coverage(tuple(exact), tuple(faults), tuple(others), numbers, ranks, tuple(left_out))
    return replace(found, how_often="as often as planned") if run.planned else found


def _equal(run: Run) -> Iterator[_Epoch]:
    """The epochs of runs in which each has every sentence once."""
    for segment in _segments(run):
        begun, steps = segment.first - 1, segment.data.steps_per_epoch
        fed = [each for each in run.fed if segment.first <= each.step <= segment.last]
        ending = "is not finished." if segment.is_newest else "ended with other data."
        for epoch in range(-(-begun // steps) + 1, -(-segment.last // steps) + 1):
            missing = ending if epoch * steps > segment.last else ""
            yield _Epoch(epoch, segment.data.epoch, fed, missing)


def _planned(run: Run) -> Iterator[_Epoch]:
    """The epochs of a run on several corpora, each with a plan of its own."""
    last = _last_step(run)
    for each in run.planned:
        missing = "is not finished." if each.last_step > last else ""
        missing = "ended with other data." if each.was_cut else missing
        fed = [one for one in run.fed if one.step >= each.first_step]
        yield _Epoch(each.number, each.sentences, fed, missing)


def _last_step(run: Run) -> int:
    return max([run.saved_step or 0, *(fed.step for fed in run.fed)])


def _segments(run: Run) -> list[_Segment]:
    """The steps of which sentences are recorded, cut where the data change."""
    last = _last_step(run)
    known: list[DataOfStart | None] = []
    for data in run.start_data:
        if data is None:  # by a version that did not record it
            known = [None]
        elif not known or known[-1] is None or not data.is_same(known[-1]):
            known.append(data)
    found = [data for data in known if data is not None]
    ends = [after.first_step - 1 for _, after in pairwise(found)]
    return [
        _Segment(data, data.first_step, end, data is found[-1])
        for data, end in zip(found, [*ends, last][: len(found)], strict=True)
    ]


def _total(sums: Iterable[SentenceSum]) -> SentenceSum:
    total = SentenceSum()
    for each in sums:
        total = total.plus(each)
    return total


def _fault(found: SentenceSum, whole: SentenceSum) -> str:
    """What is wrong with an epoch, "" if nothing is."""
    if found == whole:
        return ""
    more = found.count - whole.count
    of = f"of {whole.count:,}"
    if more < 0:
        return f"{count(-more, 'sentence')} {of} missing."
    if more > 0:
        return f"{count(more, 'sentence')} doubled: {found.count:,} came instead {of}."
    return f"{whole.count:,} sentences came, as many as it has, but some missing and some doubled."


def _epochs(numbers: Sequence[int]) -> str:
    """Such as "epoch 2", "epochs 1 to 3", "epochs 1, 3 to 5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    texts = [" to ".join(f"{number:,}" for number in part) for part in parts]
    return f"epoch{'s' if len(numbers) > 1 else ''} {', '.join(texts)}"


def _starts(ranks: Sequence[int]) -> str:
    """Such as "in one start on 2 ranks", "over 2 starts on 4 and 3 ranks"."""
    if len(ranks) == 1:
        return f"in one start on {count(ranks[0], 'rank')}"
    if len(set(ranks)) == 1:
        on = f"on {count(ranks[0], 'rank')} each"
    elif len(ranks) > _STARTS_NAMED:
        on = f"on {min(ranks)} to {max(ranks)} ranks"
    else:
        on = f"on {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} ranks"
    return f"over {len(ranks):,} starts {on}"

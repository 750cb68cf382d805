"""Work with all cores on jobs, results in their order, in bounded memory."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import chain, islice
from multiprocessing import get_context
from typing import Any, TypeVar

from hvd_nmt.common.errors import DataError

Job = TypeVar("Job")
Result = TypeVar("Result")

_JOBS_PER_WORKER = 3  # one in work, the others done and waiting for their turn
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_state: Any = None
"""of a worker process"""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def in_order(
    work: Callable[[Any, Job], Result],
    jobs: Iterable[Job],
    make: Callable[[Any], Any] = lambda settings: settings,
    settings: Any = None,
    workers: int | None = None,
) -> Iterator[Result]:
    """Yields `work(state, job)` for each job, in order.

    Jobs are taken from `jobs` only as results are taken from here, so that neither pile up. A
    single job, or a single worker, is done in this process. Workers die with this process, also
    when it is killed.

    Args:
        work: what is done with a job; it writes no files.
        jobs: picklable.
        make: makes the state of each process from `settings`, once.
        workers: number of processes; by default one for each core.

    Raises:
        DataError: a worker was killed, for example because the memory is full.
        Exception: what `work` raised, at the place of its job.
    """
    workers = workers or cores()
    jobs = iter(jobs)
    first = list(islice(jobs, 2))
    if len(first) < 2 or workers < 2:
        if first:
            state = make(settings)
            yield from (work(state, job) for job in chain(first, jobs))
        return
    # fork: starts in milliseconds, and needs no main module that can be imported again.
    pool = ProcessPoolExecutor(
        workers, get_context("fork"), _begin, (make, settings, os.getpid())
    )  # fmt: skip
    begun: deque[Future[Result]] = deque()
    try:
        for job in chain(first, jobs):
            begun.append(pool.submit(_do, work, job))
            if len(begun) == _JOBS_PER_WORKER * workers:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    except BrokenProcessPool:
        with suppress(AttributeError, OSError):  # before Python 3.11.5 `shutdown` would hang
            pool._call_queue._reader.close()  # type: ignore[attr-defined]
        raise DataError(
            "A worker process was killed, perhaps because the memory is full: close other "
            "programs and give the same command again."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(make: Callable[[Any], Any], settings: Any, parent: int) -> None:
    global _state
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends the workers
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    _state = make(settings)


def _do(work: Callable[[Any, Job], Result], job: Job) -> Result:
    return work(_state, job)

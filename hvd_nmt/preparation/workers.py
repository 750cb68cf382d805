"""Work with all cores on jobs, results in their order, in bounded memory."""

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import get_context
from typing import Any, TypeVar

from hvd_nmt.common import signals
from hvd_nmt.common.errors import DataError

Job = TypeVar("Job")
Result = TypeVar("Result")

_JOBS_PER_WORKER = 3  # one in work, the others done and waiting for their turn
_work: Callable[[Any], Any]
"""work of this process, if it is a worker"""


def in_order(work: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
    """Yields `work(job)` for each job, in order.

    Jobs are taken from `jobs` only as results are taken from here, so that neither pile up. A
    single job, or a single worker, is done in this process. Workers, each with a copy of `work`,
    which writes no files, die with this process, also when it is killed. DataError: a worker was
    killed. What `work` raises is raised at the place of its job.
    """
    workers = len(os.sched_getaffinity(0))
    jobs = iter(jobs)
    first = list(islice(jobs, 2))
    if len(first) < 2 or workers < 2:
        yield from map(work, chain(first, jobs))
        return
    # fork: starts in milliseconds, copies `work`, and needs no main module to import again.
    pool = ProcessPoolExecutor(workers, get_context("fork"), _begin, (work, os.getpid()))
    begun: deque[Future[Result]] = deque()
    try:
        for job in chain(first, jobs):
            begun.append(pool.submit(_do, job))
            if len(begun) == _JOBS_PER_WORKER * workers:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    except BrokenProcessPool:
        if sys.version_info < (3, 11, 5):  # where `shutdown` would hang
            pool._call_queue._reader.close()  # type: ignore[attr-defined]
        raise DataError(
            "A worker process was killed, perhaps because memory is full: close other programs "
            "and run the same command again."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(work: Callable[[Any], Any], parent: int) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends the workers
    signals.end_with_parent(parent)
    _work = work


def _do(job: Any) -> Any:
    return _work(job)

"""Work on several threads: all of it, or the error."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading

import pytest

from hvd_nmt.common.threads import in_threads


@pytest.mark.parametrize("threads", [1, 3, 20])
def test_each_number_is_done_once(threads: int) -> None:
    done = []
    in_threads(done.append, range(500), threads)
    assert sorted(done) == list(range(500))


def test_they_work_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=600)
    in_threads(lambda _: both.wait(), range(2), 2)


def test_an_error_ends_the_work() -> None:
    def work(number: int) -> None:
        if number == 7:
            raise MemoryError("no more")

    with pytest.raises(MemoryError, match="no more"):
        in_threads(work, itertools.count(), 4)  # which has no end of its own


def test_the_end_of_the_interpreter_waits_for_nothing() -> None:
    code = (
        "import threading, time\n"
        "from hvd_nmt.common.threads import in_threads\n"
        "begun = threading.Event()\n"
        "work = lambda _: begun.set() or time.sleep(1000)\n"
        "threading.Thread(target=in_threads, args=(work, range(10), 2), daemon=True).start()\n"
        "begun.wait()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)

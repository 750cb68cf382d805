"""Work on several threads: all of it, or the error."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from hvd_nmt.common.threads import in_threads


@pytest.mark.parametrize("threads", [1, 3, 20])
def test_each_number_is_done_once(threads: int) -> None:
    done = []
    in_threads(done.append, range(500), threads)
    assert sorted(done) == list(range(500))


def test_they_work_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)
    in_threads(lambda _: both.wait(), range(2), 2)


def test_an_error_ends_the_work() -> None:
    done = []

    def work(number: int) -> None:
        if number == 7:
            raise MemoryError("no more")
        done.append(number)
        time.sleep(0.001)

    with pytest.raises(MemoryError, match="no more"):
        in_threads(work, range(100_000), 4)
    assert len(done) < 1000


def test_the_end_of_the_interpreter_waits_for_nothing() -> None:
    code = (
        "import threading, time\n"
        "from hvd_nmt.common.threads import in_threads\n"
        "work = lambda _: time.sleep(0.5)\n"
        "threading.Thread(target=in_threads, args=(work, range(10_000), 2), daemon=True).start()\n"
        "time.sleep(0.2)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

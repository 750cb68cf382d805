"""Work on several threads that holds no process back when it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


def in_threads(work: Callable[[int], Any], numbers: Iterable[int], threads: int) -> None:
    """Does some work for each number, and returns when all is done.

    Unlike those of `concurrent.futures`, these threads do not finish what is left when the
    interpreter ends meanwhile.

    Args:
        work: gets a number.
        numbers: of the parts of the work, which do not depend on each other.
        threads: that do them.

    Raises:
        BaseException: what the work raised first; nothing more is begun then.
    """
    left, lock = iter(numbers), threading.Lock()
    failures: list[BaseException] = []

    def do() -> None:
        try:
            while not failures:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                work(number)
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=do, daemon=True) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]

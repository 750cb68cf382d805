"""A rank that C++ would abort lives on where a peer is gone, and only there."""

import subprocess
import sys

import pytest

# With the first condition the thread that would abort sleeps, so the main thread says so.
PROGRAM = """
import ctypes, threading
from hvd_nmt.training import terminate

slept = threading.Event()
terminate.time.sleep = lambda seconds: (slept.set(), threading.Event().wait())
terminate.stay_alive_if(lambda: {holds})
abort = ctypes.CDLL("libstdc++.so.6")["_ZSt9terminatev"]
threading.Thread(target=abort, daemon=True).start()
slept.wait(600)
print("alive", flush=True)
"""


@pytest.mark.parametrize(("holds", "code", "says"), [(True, 0, "alive\n"), (False, -6, "")])
def test_a_thread_that_would_abort_sleeps_where_the_condition_holds(holds, code, says):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(holds=holds)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, says), done.stderr
    assert ("terminate called" in done.stderr) == (not holds)

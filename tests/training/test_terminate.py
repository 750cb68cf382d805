"""A rank that C++ would abort lives on where a peer is gone, and only there."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, threading, time
from hvd_nmt.training import terminate

asked = threading.Event()
terminate.stay_alive_if(lambda: asked.set() or {holds})
abort = ctypes.CDLL("libstdc++.so.6")["_ZSt9terminatev"]
threading.Thread(target=abort, daemon=True).start()
assert asked.wait(10)
time.sleep(0.5)
print("alive")
sys.stdout.flush()
"""


@pytest.mark.parametrize(("holds", "code", "says"), [(True, 0, "alive\n"), (False, -6, "")])
def test_a_thread_that_would_abort_sleeps_where_the_condition_holds(holds, code, says):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(holds=holds)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, says), done.stderr
    assert code == 0 or code == -signal.SIGABRT
    assert ("terminate called" in done.stderr) == (not holds)

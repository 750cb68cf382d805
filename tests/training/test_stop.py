"""Signals to a real run: what it says, how it ends, and that it ends when it is told to.

The main thread gets stuck in C where no handler of Python runs, as in a long step.
"""

import signal

import pytest

import toy
from hvd_nmt.common import signals
from hvd_nmt.training.stop import StopRequest

STUCK_EVALUATION = """
import ctypes, sys, time
from hvd_nmt import train
from hvd_nmt.training.evaluation import Evaluator

def stuck(self, step, said):
    print("it begins", flush=True)
    time.sleep(3)
    print("stuck", flush=True)
    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex), lock(mutex)

Evaluator.__call__ = stuck
sys.exit(train.main())
"""


def test_the_second_ctrl_c_ends_at_once(toy_commands, toy_data, tmp_path):
    options = toy.train_options(toy_data, "run", 1)
    command = [*toy_commands.command(STUCK_EVALUATION), *options]
    run = toy.Run(command, tmp_path, toy.environment(tmp_path))
    run.wait_for(lambda: "it begins" in run.stdout)
    run.process.send_signal(signal.SIGTERM)  # which a launcher may send twice
    run.process.send_signal(signal.SIGTERM)
    run.process.send_signal(signal.SIGINT)
    run.wait_for(lambda: StopRequest.LINE in run.stderr)
    run.wait_for(lambda: "stuck" in run.stdout)
    run.process.send_signal(signal.SIGINT)  # even now
    done = run.finished()
    assert done.returncode == -signal.SIGINT
    assert done.stderr == StopRequest.LINE


def test_after_an_error_sigterm_does_nothing_and_ctrl_c_what_it_did_before(capfd):
    """A launcher sends it to the ranks when one has ended: each still says its sentence."""
    with signals.restored():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever ran here before
        request = StopRequest(announces=True)
        request.listen()
        request.hold_back()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert not request.requested
    assert StopRequest.LINE not in capfd.readouterr().err

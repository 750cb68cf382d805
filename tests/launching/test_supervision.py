"""What the launcher takes for progress, with hosts that answer late."""

import os
import signal

import pytest

from hvd_nmt.common import signals
from hvd_nmt.config import Config
from hvd_nmt.diagnosis.hosts import Host
from hvd_nmt.diagnosis.link import Links
from hvd_nmt.launching import preflight, supervision
from hvd_nmt.launching.preflight import Job, Outlook
from hvd_nmt.launching.start import Outcome, Start
from launched import events

HOST = Host("gpu", 2)


class Again:
    """A host that answers again."""

    def tell(self, *_, **__):
        pass


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    """A function: the launcher's code where starts end so, and hosts tell of these steps."""

    def run(codes, told_at_end, told_later, pause=lambda seconds: None):
        steps = iter(told_later)
        ended, told = iter(codes), iter(told_at_end)

        def look(*_, is_restart=False):
            return Outlook((HOST,), "lo", (), (), {}, next(steps) if is_restart else -1)

        def start(start, _):
            if start._plan.run_dir is None:  # the report
                return Outcome(0, "")
            step = next(told)
            silent = ("gpu",) if step is None else ()
            return Outcome(next(ended), "", silent=silent, saved_step=step)

        monkeypatch.setattr(preflight, "look", look)
        monkeypatch.setattr(Start, "run", start)
        monkeypatch.setattr(Links, "to", lambda links, host: Again())
        monkeypatch.setattr(supervision.time, "sleep", pause)
        job = Job(("python",), Config(run_dir=tmp_path), (HOST,), 2, 2, restarts_per_hour=100)
        with signals.restored():
            return supervision.supervise(job)

    return run


def test_starts_without_a_new_checkpoint_end_it(supervised):
    assert supervised([137] * 5, [-1] * 5, [-1] * 4) == 137


def test_a_checkpoint_that_is_heard_of_later_counts(supervised):
    """The host is silent after each end, and asked again before the next start."""
    silent = [None, 0] * 6
    assert supervised([137] * 6 + [0], [*silent, 60], [10, 20, 30, 40, 50, 60]) == 0


def test_a_signal_between_two_starts_ends_the_launcher(supervised, tmp_path):
    """Whose pause may be of an hour."""
    assert supervised([137], [5], [], lambda seconds: os.kill(os.getpid(), signal.SIGTERM)) == 75
    assert [event["kind"] for event in events(tmp_path)] == ["start", "end", "restart", "stopped"]

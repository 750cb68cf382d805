"""The story of an unattended run: hosts are asked, ranks start, end, and start again until done."""

from __future__ import annotations

import dataclasses
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from hvd_nmt.checkpoints.run_files import LAUNCHES
from hvd_nmt.common import signals
from hvd_nmt.common.errors import ClusterError, Preempted
from hvd_nmt.common.units import count, duration
from hvd_nmt.diagnosis.hosts import Host
from hvd_nmt.launching import aftermath, policy, preflight, ranks_start
from hvd_nmt.launching.aftermath import Aftermath
from hvd_nmt.launching.command import Command
from hvd_nmt.launching.launch_log import LaunchLog
from hvd_nmt.launching.policy import Decision, End
from hvd_nmt.launching.preflight import Outlook, Wanted
from hvd_nmt.launching.ranks_start import StopSignals

_INTERRUPTED = 130
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Job:
    """What is to be done until it is done."""

    command: Command
    wanted: Wanted
    timeout_s: float
    """for each host to answer"""
    restarts_per_hour: int
    wait_for_hosts_h: float
    """hours that hosts may be missing after the first start"""


def supervise(job: Job) -> int:
    """Start the ranks until the run is done, or cannot be done.

    Returns:
        The exit code, see `common.errors`.

    Raises:
        ClusterError: something hinders the first start.
    """
    return _Supervision(job).run()


def dry_run(job: Job) -> list[str]:
    """What would be started where, as lines; only the names of variables.

    Raises:
        ClusterError: something hinders it.
    """
    outlook = _first_outlook(job)
    variables = ranks_start.environment(outlook.hosts, "")
    lines = [
        f"hosts       {ranks_start.named(outlook.hosts)}",
        f"ranks       {sum(host.slots for host in outlook.hosts)}",
        f"card        {outlook.nic}",
        f"variables   {' '.join(sorted(variables))}",
        f"command     {' '.join(job.command.words)}",
    ]
    if job.command.config is not None:
        lines.append(f"run         {job.command.config.run_dir}")
    return lines


def _first_outlook(job: Job) -> Outlook:
    outlook = preflight.look(job.command, job.wanted, job.timeout_s, -1, is_restart=False)
    for warning in outlook.warnings:
        _say(f"warning: {warning}")
    if outlook.hindrances:
        *others, last = outlook.hindrances
        for hindrance in others:
            _say(hindrance)
        raise ClusterError(last)
    return outlook


@final
class _Supervision:
    """What is known while a job is done, from start to start."""

    def __init__(self, job: Job) -> None:
        self._job = job
        config = job.command.config
        self._run_dir = None if config is None else config.run_dir
        self._log = LaunchLog(None if self._run_dir is None else self._run_dir / LAUNCHES)
        self._stop = StopSignals()
        self._id = secrets.token_hex(8)
        self._ends: list[End] = []
        """of the starts until now"""
        self._saved_step = -1
        """of the newest checkpoint that is known of; -1: none"""
        self._silent: set[str] = set()
        """hosts that have not said that nothing is left of earlier starts"""
        self._said: set[str] = set()
        """warnings and hindrances: each is said once"""

    def run(self) -> int:
        self._stop.listen()
        try:
            return self._run()
        except KeyboardInterrupt:  # between two starts
            return self._stopped(_INTERRUPTED if self._stop.at_once else Preempted.exit_code)
        finally:
            self._log.close()

    def _run(self) -> int:
        while True:
            with self._stop.interrupting():
                outlook = self._outlook()
            if outlook is None:
                return self._ends[-1].exit_code
            code, sentence = self._start(outlook)
            self._note_end(outlook, code, sentence)
            if self._stop.at_once:
                return self._stopped(_INTERRUPTED)
            decision = policy.decide(self._ends, self._job.restarts_per_hour, self._stop.requested)
            if not decision.restarts:
                return self._finish(decision)
            self._log.append("restart", pause_s=decision.pause_s)
            _say(f"ended with code {code}; starting again in {duration(decision.pause_s)}.")
            with self._stop.interrupting():
                time.sleep(decision.pause_s)

    def _outlook(self) -> Outlook | None:
        """What the hosts say, once enough can be used; None: they could not for too long."""
        if not self._ends:
            outlook = _first_outlook(self._job)
            self._saved_step, self._said = outlook.saved_step, set(outlook.warnings)
            return outlook
        failures, waited_from_s = 0, time.monotonic()
        while True:
            self._clear_up_silent()
            outlook = preflight.look(
                self._job.command, self._job.wanted, self._job.timeout_s, self._saved_step,
                is_restart=True,
            )  # fmt: skip
            self._note_saved(outlook.saved_step)
            for text in (*outlook.warnings, *outlook.hindrances):
                if text not in self._said:
                    _say(text)
            self._said |= {*outlook.warnings, *outlook.hindrances}
            if not outlook.hindrances:
                return outlook
            failures += 1
            pause_s = policy.pause_s(failures)
            self._log.append("waiting", why=list(outlook.hindrances), pause_s=pause_s)
            if time.monotonic() - waited_from_s + pause_s > self._job.wait_for_hosts_h * _HOUR_S:
                why = f"The hosts could not be used for {self._job.wait_for_hosts_h:g} hours."
                self._finish(Decision(False, self._ends[-1].exit_code, why=why))
                return None
            time.sleep(pause_s)

    def _start(self, outlook: Outlook) -> tuple[int, str]:
        """One start; its exit code and what it said last."""
        hosts, nic = outlook.hosts, outlook.nic or ""
        if outlook.left_out:
            self._log.append("left out", why=outlook.left_out)
            for host, why in outlook.left_out.items():
                _say(f"without {host}: {why}")
        words = self._job.command.words
        self._log.append(
            "start", start_id=self._start_id, nic=nic, command=list(words),
            hosts={host.name: host.slots for host in hosts},
        )  # fmt: skip
        ranks = count(sum(host.slots for host in hosts), "rank")
        _say(f"starting {ranks} on {ranks_start.named(hosts)}, network card {nic}.")
        return ranks_start.run(
            ranks_start.words(hosts, nic, words),
            ranks_start.environment(hosts, self._start_id),
            self._stop,
        )

    @property
    def _start_id(self) -> str:
        return f"{self._id}.{len(self._ends) + 1}"

    def _note_end(self, outlook: Outlook, code: int, sentence: str) -> None:
        """End what is left of the start, and see how far it came."""
        # A checkpoint may be being written, whatever ended the other ranks.
        found = self._clear_up(outlook.hosts, 0.0 if self._stop.at_once else signals.grace_s())
        event = aftermath.as_event(found)
        self._log.append("end", exit_code=code, sentence=sentence, **event)
        self._ends.append(End(code, False, time.monotonic()))
        self._note_saved(found.saved_step)

    def _note_saved(self, step: int | None) -> None:
        """Of the newest checkpoint; a host may say later than the end what the start had saved."""
        if step is not None and step > self._saved_step:
            self._saved_step = step
            self._ends[-1] = dataclasses.replace(self._ends[-1], progressed=True)

    def _clear_up(self, hosts: Sequence[Host], patience_s: float) -> Aftermath:
        found = aftermath.clear_up(hosts, self._id, self._start_id, self._run_dir, patience_s)
        for host, number in found.killed.items():
            _say(f"{host}: ended {count(number, 'process', 'processes')} of the start before.")
        for host, number in found.left.items():
            still = count(number, "process", "processes")
            _say(f"warning: {host}: {still} of the start before cannot be ended.")
        self._silent = self._silent - {host.name for host in hosts} | {*found.silent}
        return found

    def _clear_up_silent(self) -> None:
        """Hosts that did not answer after a start may do so now."""
        again = [host for host in self._job.wanted.hosts if host.name in self._silent]
        if again:
            self._clear_up(again, 0.0)

    def _finish(self, decision: Decision) -> int:
        """Nothing is started any more."""
        if self._stop.requested and decision.exit_code == Preempted.exit_code:
            return self._stopped(decision.exit_code)
        kind = "given up" if decision.exit_code else "finished"
        self._log.append(kind, exit_code=decision.exit_code, why=decision.why)
        if decision.why:
            _say(decision.why)
        return decision.exit_code

    def _stopped(self, code: int) -> int:
        self._log.append("stopped", exit_code=code)
        saved = "; there is no checkpoint yet" if self._ends else " before the ranks were started"
        if self._saved_step >= 0:
            saved = f"; the newest checkpoint is of step {self._saved_step:,}"
        _say(f"stopped by a signal{saved}: the same command goes on.")
        return code


def _say(text: str) -> None:
    print(f"hvd_nmt.launch: {text}", file=sys.stderr, flush=True)

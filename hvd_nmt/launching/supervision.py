"""The story of an unattended run: hosts are asked, ranks start, end, and start again until done."""

from __future__ import annotations

import dataclasses
import os
import queue
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from hvd_nmt.checkpoints.run_files import LAUNCHES
from hvd_nmt.common import signals
from hvd_nmt.common.errors import ClusterError, Preempted
from hvd_nmt.common.rank_environment import START_ID, rank_environment
from hvd_nmt.common.units import count, duration
from hvd_nmt.diagnosis.hosts import Host
from hvd_nmt.diagnosis.link import Link, LinkError, Links, Message
from hvd_nmt.launching import policy, preflight
from hvd_nmt.launching.command import Command
from hvd_nmt.launching.launch_log import LaunchLog
from hvd_nmt.launching.policy import Decision, End
from hvd_nmt.launching.preflight import Outlook, Wanted
from hvd_nmt.launching.rank_output import Output
from hvd_nmt.launching.start import Outcome, Rendezvous, Start, Where
from hvd_nmt.launching.stop_signals import StopSignals

_INTERRUPTED = 130
_HOUR_S = 3600.0
_REPORT_S = 600.0


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
    """Start the ranks until the run is done, or cannot be done; the exit code (`common.errors`).

    Raises:
        ClusterError: something hinders the first start.
    """
    return _Supervision(job).run()


def dry_run(job: Job) -> list[str]:
    """What would be started where, as lines; only the names of variables.

    Raises:
        ClusterError: something hinders it.
    """
    with Links(job.timeout_s) as links:
        outlook = _first_outlook(job, links, _say)
    ranks = sum(host.slots for host in outlook.hosts)
    lines = [
        f"hosts       {_named(outlook.hosts)}",
        f"ranks       {ranks}",
        f"card        {outlook.nic}",
        f"variables   {' '.join(sorted({*rank_environment(ranks), START_ID}))}",
        f"command     {' '.join(job.command.words)}",
    ]
    if job.command.config is not None:
        lines.append(f"run         {job.command.config.run_dir}")
    return lines


def _first_outlook(job: Job, links: Links, say: Callable[[str], None]) -> Outlook:
    outlook = preflight.look(job.command, job.wanted, links, -1, is_restart=False)
    for warning in outlook.warnings:
        say(f"warning: {warning}")
    if outlook.hindrances:
        *others, last = outlook.hindrances
        for hindrance in others:
            say(hindrance)
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
        self._shown = Output()
        self._events: queue.SimpleQueue[tuple[Link | None, Message | None]] = queue.SimpleQueue()
        self._links = Links(job.timeout_s, self._hear)
        self._rendezvous = Rendezvous()
        self._id = secrets.token_hex(8)
        self._ends: list[End] = []
        """of the starts until now"""
        self._saved_step = -1
        """of the newest checkpoint that is known of; -1: none"""
        self._silent: set[str] = set()
        """hosts that have not said that nothing is left of earlier starts"""
        self._told: set[str] = set()
        """warnings and hindrances: each is said once"""

    def run(self) -> int:
        self._stop.listen()
        try:
            with self._links:
                return self._run()
        except KeyboardInterrupt:  # between two starts
            return self._stopped(_INTERRUPTED if self._stop.at_once else Preempted.exit_code)
        finally:
            self._log.close()
            self._shown.flush(gives_up=lambda: self._stop.requested)

    def _run(self) -> int:
        while True:
            with self._stop.interrupting():
                outlook = self._outlook()
            if outlook is None:
                return self._ends[-1].exit_code
            self._note_end(self._start(outlook))
            if self._stop.at_once:
                return self._stopped(_INTERRUPTED)
            decision = policy.decide(self._ends, self._job.restarts_per_hour, self._stop.requested)
            if not decision.restarts:
                code = self._finish(decision)
                self._report(outlook)
                return code
            self._log.append("restart", pause_s=decision.pause_s)
            code = self._ends[-1].exit_code
            self._shown.say(
                f"ended with code {code}; starts again in {duration(decision.pause_s)}."
            )
            with self._stop.interrupting():
                time.sleep(decision.pause_s)

    def _hear(self, link: Link, message: Message | None) -> None:
        """In the threads that read what agents tell."""
        if message is not None and message.get("tell") == "output":
            rank, stream, text = (message[name] for name in ("rank", "stream", "text"))
            self._shown.hear(rank, stream, text, lambda size: link.tell("printed", size=size))
        else:
            self._events.put((link, message))

    def _outlook(self) -> Outlook | None:
        """What the hosts say, once enough can be used; None: they could not for too long."""
        if not self._ends:
            outlook = _first_outlook(self._job, self._links, self._shown.say)
            self._saved_step, self._told = outlook.saved_step, set(outlook.warnings)
            return outlook
        failures, waited_from_s = 0, time.monotonic()
        while True:
            self._clear_up_silent()
            outlook = preflight.look(
                self._job.command, self._job.wanted, self._links, self._saved_step, is_restart=True
            )
            self._note_saved(outlook.saved_step)
            for text in (*outlook.warnings, *outlook.hindrances):
                if text not in self._told:
                    self._shown.say(text)
            self._told |= {*outlook.warnings, *outlook.hindrances}
            silent = self._silent & {host.name for host in outlook.hosts}
            if not outlook.hindrances and not silent:
                return outlook
            failures += 1
            pause_s = policy.pause_s(failures)
            self._log.append("waiting", why=list(outlook.hindrances), pause_s=pause_s)
            if time.monotonic() - waited_from_s + pause_s > self._job.wait_for_hosts_h * _HOUR_S:
                why = f"The hosts could not be used for {self._job.wait_for_hosts_h:g} hours."
                self._finish(Decision(False, self._ends[-1].exit_code, why=why))
                return None
            time.sleep(pause_s)

    def _start(self, outlook: Outlook) -> Outcome:
        hosts, nic = outlook.hosts, outlook.nic or ""
        if outlook.left_out:
            self._log.append("left out", why=outlook.left_out)
            for host, why in outlook.left_out.items():
                self._shown.say(f"without {host}: {why}")
                self._links.drop(host)
        words = self._job.command.words
        number = len(self._ends) + 1
        is_training = self._job.command.config is not None
        next_id = f"{self._id}.{number + 1}" if is_training and self._job.restarts_per_hour else ""
        start_id = f"{self._id}.{number}"
        where = Where(hosts, nic, self._id, start_id, self._run_dir, next_id)
        self._log.append(
            "start", start_id=where.start_id, nic=nic, command=list(words),
            hosts={host.name: host.slots for host in hosts},
        )  # fmt: skip
        ranks = count(sum(host.slots for host in hosts), "rank")
        self._shown.say(f"starting {ranks} on {_named(hosts)}, network card {nic}.")
        start = Start(words, where, self._links, self._events, self._shown, self._stop)
        return start.run(self._rendezvous)

    def _note_end(self, outcome: Outcome) -> None:
        event = dataclasses.asdict(outcome)
        self._log.append("end", **event.pop("reached"), **event)
        self._ends.append(End(outcome.exit_code, False, time.monotonic()))
        self._note_saved(outcome.saved_step)
        for host, number in outcome.killed.items():
            self._shown.say(f"{host}: killed {count(number, 'process', 'processes')} of the start.")
        for host, number in outcome.left.items():
            still = count(number, "process", "processes")
            self._shown.say(f"warning: {host}: {still} of the start cannot be killed.")
        self._silent |= {*outcome.silent}
        for host in outcome.silent:
            self._links.drop(host)

    def _note_saved(self, step: int | None) -> None:
        """Of the newest checkpoint; a host may say later than the end what the start had saved."""
        if step is not None and step > self._saved_step:
            self._saved_step = step
            self._ends[-1] = dataclasses.replace(self._ends[-1], progressed=True)

    def _clear_up_silent(self) -> None:
        """Hosts that did not answer after a start may do so now."""
        run_dir = None if self._run_dir is None else os.fspath(self._run_dir)
        for host in self._job.wanted.hosts:
            if host.name in self._silent:
                try:
                    found = self._links.to(host).ask(
                        "end", self._job.timeout_s + signals.grace_s(), launch_id=self._id,
                        start_id="", run_dir=run_dir, patience_s=signals.grace_s(), asks=False,
                    )  # fmt: skip
                except LinkError:
                    self._links.drop(host.name)
                    continue
                self._silent.discard(host.name)
                self._note_saved(found["saved_step"])

    def _finish(self, decision: Decision) -> int:
        """Nothing is started any more."""
        if self._stop.requested and decision.exit_code == Preempted.exit_code:
            return self._stopped(decision.exit_code)
        kind = "given up" if decision.exit_code else "finished"
        self._log.append(kind, exit_code=decision.exit_code, why=decision.why)
        if decision.why:
            self._shown.say(decision.why)
        return decision.exit_code

    def _report(self, outlook: Outlook) -> None:
        """Have the host of rank 0 write it: it has the records."""
        config = self._job.command.config
        if config is None or not config.telemetry.report:
            return
        self._shown.say("writing the report ...")
        try:
            with self._stop.interrupting():
                reply = self._links.to(outlook.hosts[0]).ask(
                    "report", _REPORT_S, run_dir=os.fspath(config.run_dir), limit_s=_REPORT_S
                )
        except KeyboardInterrupt:
            return
        except LinkError as error:
            reply = {"said": f"The report could not be written ({error})."}
        if reply["said"]:
            self._shown.say(reply["said"])

    def _stopped(self, code: int) -> int:
        self._log.append("stopped", exit_code=code)
        saved = "; there is no checkpoint yet" if self._ends else " before the ranks were started"
        if self._saved_step >= 0:
            saved = f"; the newest checkpoint is of step {self._saved_step:,}"
        self._shown.say(f"stopped by a signal{saved}: the same command goes on.")
        return code


def _named(hosts: Sequence[Host]) -> str:
    """Hosts and slots, as for -H."""
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def _say(text: str) -> None:
    print(f"hvd_nmt.launch: {text}", file=sys.stderr, flush=True)

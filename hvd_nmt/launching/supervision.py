"""The story of an unattended run: hosts are asked, ranks start, end, and start again until done."""

import contextlib
import dataclasses
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, final

from hvd_nmt.checkpoints.run_files import LAUNCHES
from hvd_nmt.common.errors import ClusterError, Preempted
from hvd_nmt.common.rank_environment import START_ID, rank_environment
from hvd_nmt.common.units import count, duration
from hvd_nmt.diagnosis.hosts import Host
from hvd_nmt.diagnosis.link import Link, Links, Message
from hvd_nmt.launching import policy, preflight
from hvd_nmt.launching.policy import Decision, End
from hvd_nmt.launching.preflight import Job, Outlook
from hvd_nmt.launching.rank_output import Output
from hvd_nmt.launching.start import Events, Outcome, Plan, Rendezvous, Start, StopSignals
from hvd_nmt.telemetry.jsonl import JsonlFile
from hvd_nmt.training import heartbeat

_INTERRUPTED = 130
_HOUR_S, _REPORT_S = 3600.0, 600.0
_REPORT = "import pathlib, sys; from hvd_nmt import train; train.write_report(pathlib.Path({!r}))"


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
        f"command     {' '.join(job.words)}",
    ]
    return lines if job.config is None else [*lines, f"run         {job.config.run_dir}"]


def _first_outlook(job: Job, links: Links, say: Callable[[str], None]) -> Outlook:
    outlook = preflight.look(job, links)
    for warning in outlook.warnings:
        say(f"warning: {warning}")
    for hindrance in outlook.hindrances[:-1]:
        say(hindrance)
    if outlook.hindrances:
        raise ClusterError(outlook.hindrances[-1])
    return outlook


@final
class _Supervision:
    """What is known while a job is done, from start to start."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._run_dir = None if job.config is None else job.config.run_dir
        self._log = None if self._run_dir is None else self._run_dir / LAUNCHES
        self._stop = StopSignals()
        self._shown = Output()
        self._events = Events()
        self._links = Links(job.timeout_s, self._hear)
        self._rendezvous = Rendezvous()
        self._id = secrets.token_hex(8)
        self._ends: list[End] = []
        """of the starts until now"""
        self._saved_step = -1
        """of the newest checkpoint that is known of; -1: none"""
        self._said: set[str] = set()
        """warnings and hindrances: each is said once"""

    def run(self) -> int:
        self._stop.listen()
        try:
            with self._links:
                return self._run()
        except KeyboardInterrupt:  # between two starts
            return self._stopped(_INTERRUPTED if self._stop.at_once else Preempted.exit_code)
        finally:
            self._shown.flush(gives_up=lambda: self._stop.requested)

    def _run(self) -> int:
        while True:
            with self._stop.interrupting():
                outlook = self._outlook() if self._ends else self._first_outlook()
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
            self._record("restart", pause_s=decision.pause_s)
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
        elif message is None or message.get("states") != {}:
            self._events.put((link, message))

    def _first_outlook(self) -> Outlook:
        outlook = _first_outlook(self._job, self._links, self._shown.say)
        self._saved_step, self._said = outlook.saved_step, {*outlook.warnings}
        return outlook

    def _outlook(self) -> Outlook | None:
        """What the hosts say, once enough can be used; None: they could not for too long."""
        failures, waited_from_s = 0, time.monotonic()
        while True:
            for host in self._job.hosts:
                self._links.to(host).tell("clear", launch_id=self._id)
            outlook = preflight.look(self._job, self._links, self._saved_step, is_restart=True)
            self._note_saved(outlook.saved_step)
            for text in (*outlook.warnings, *outlook.hindrances):
                if text not in self._said:
                    self._shown.say(text)
                    self._said.add(text)
            if not outlook.hindrances:
                return outlook
            failures += 1
            pause_s = policy.pause_s(failures + 1)
            self._record("waiting", why=list(outlook.hindrances), pause_s=pause_s)
            if time.monotonic() - waited_from_s + pause_s > self._job.wait_for_hosts_h * _HOUR_S:
                why = f"The hosts could not be used for {self._job.wait_for_hosts_h:g} hours."
                self._finish(Decision(False, self._ends[-1].exit_code, why=why))
                return None
            time.sleep(pause_s)

    def _start(self, outlook: Outlook) -> Outcome:
        hosts, nic, job = outlook.hosts, outlook.nic or "", self._job
        if outlook.left_out:
            self._record("left out", why=outlook.left_out)
        for host, why in outlook.left_out.items():
            self._shown.say(f"without {host}: {why}")
            self._links.drop(host)
        number = len(self._ends) + 1
        plan = Plan(job.words, hosts, nic, f"{self._id}.{number}")
        if job.config is not None:
            plan = dataclasses.replace(
                plan, run_dir=os.fspath(job.config.run_dir),
                next_start_id=f"{self._id}.{number + 1}" if job.restarts_per_hour else "",
                imports_s=None if job.config.training.stuck_limit_s == 0 else heartbeat.LONGEST_S,
            )  # fmt: skip
        self._record(
            "start", start_id=plan.start_id, nic=nic, command=list(job.words),
            hosts={host.name: host.slots for host in hosts},
        )  # fmt: skip
        ranks = count(sum(host.slots for host in hosts), "rank")
        self._shown.say(f"starting {ranks} on {_named(hosts)}, network card {nic}.")
        return self._run_plan(plan)

    def _run_plan(self, plan: Plan) -> Outcome:
        start = Start(plan, self._links, self._events, self._shown, self._stop)
        return start.run(self._rendezvous)

    def _note_end(self, outcome: Outcome) -> None:
        event = dataclasses.asdict(outcome)
        self._record("end", **event.pop("reached"), **event)
        self._ends.append(End(outcome.exit_code, False, time.monotonic()))
        self._note_saved(outcome.saved_step)
        for host, number in outcome.left.items():
            still = count(number, "process", "processes")
            self._shown.say(f"warning: {host}: {still} of the start cannot be killed.")
        for host in outcome.silent:
            self._links.drop(host)

    def _note_saved(self, step: int | None) -> None:
        """Of the newest checkpoint; a host may say later than the end what the start had saved."""
        if step is not None and step > self._saved_step:
            self._saved_step = step
            self._ends[-1] = dataclasses.replace(self._ends[-1], progressed=True)

    def _finish(self, decision: Decision) -> int:
        """Nothing is started any more."""
        if self._stop.requested and decision.exit_code == Preempted.exit_code:
            return self._stopped(decision.exit_code)
        kind = "given up" if decision.exit_code else "finished"
        self._record(kind, exit_code=decision.exit_code, why=decision.why)
        if decision.why:
            self._shown.say(decision.why)
        return decision.exit_code

    def _report(self, outlook: Outlook) -> None:
        """Have the host of rank 0 write it: it has the records."""
        config = self._job.config
        if config is not None and config.telemetry.report and not self._stop.requested:
            words = ("python", "-c", _REPORT.format(os.fspath(config.run_dir)))
            host = Host(outlook.hosts[0].name, 1)
            self._shown.say("writing the report ...")
            plan = Plan(
                words, (host,), outlook.nic or "", f"{self._id}.report", longest_s=_REPORT_S
            )
            if self._run_plan(plan).exit_code:
                program = f"python -m hvd_nmt.report {config.run_dir}"
                self._shown.say(f"there is no report; this writes it: {program}")

    def _stopped(self, code: int) -> int:
        self._record("stopped", exit_code=code)
        saved = "; there is no checkpoint yet" if self._ends else " before the ranks were started"
        if self._saved_step >= 0:
            saved = f"; the newest checkpoint is of step {self._saved_step:,}"
        self._shown.say(f"stopped by a signal{saved}: the same command goes on.")
        return code

    def _record(self, kind: str, **values: Any) -> None:
        """A line of `launch.jsonl`, which `records.launches` reads. A failed write stops no run."""
        if self._log is None:
            return
        try:
            with contextlib.closing(JsonlFile(self._log)) as file:
                file.append({"time_s": time.time(), "kind": kind, **values})
        except OSError as error:
            self._shown.say(
                f"warning: {self._log} cannot be written ({error.strerror or error}): the report "
                "will not know of restarts from here on."
            )
            self._log = None


def _named(hosts: Sequence[Host]) -> str:
    """Hosts and slots, as for -H."""
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def _say(text: str) -> None:
    print(f"hvd_nmt.launch: {text}", file=sys.stderr, flush=True)

"""The story of an unattended run: hosts are asked, ranks start, end, and start again until done."""

import contextlib
import dataclasses
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, final

from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common import signals
from hvd_nmt.common.errors import ClusterError, Preempted
from hvd_nmt.common.jsonl import JsonlFile
from hvd_nmt.common.rank_environment import START_ID, rank_environment
from hvd_nmt.common.units import count, duration
from hvd_nmt.hosts.channel import Message
from hvd_nmt.hosts.connection import Connection, Connections
from hvd_nmt.hosts.host_list import Host
from hvd_nmt.launching import policy, preflight
from hvd_nmt.launching.attempt import Attempt, AttemptOutcome, Events
from hvd_nmt.launching.job import Job
from hvd_nmt.launching.policy import AttemptEnd, Decision
from hvd_nmt.launching.preflight import Outlook
from hvd_nmt.launching.rank_output import RankOutput
from hvd_nmt.launching.rendezvous import Rendezvous
from hvd_nmt.launching.stop_signals import StopSignals

INTERRUPTED = 130
_HOUR_S = 3600.0
_BEYOND_GRACE_S = 10.0
"""seconds for ranks of a killed launcher to end, beyond their grace"""


def supervise(job: Job) -> int:
    """Start ranks until the run is done or cannot be; its exit code. ClusterError: no hosts."""
    return _Supervision(job).run()


def dry_run(job: Job) -> list[str]:
    """What would be started where, as lines; variables by name. ClusterError: it cannot be."""
    with Connections(job.options.timeout_s) as connections:
        outlook = _first_outlook(
            job, connections, lambda text: print(f"hvd_nmt.launch: {text}", file=sys.stderr)
        )
    ranks = sum(host.slots for host in outlook.hosts)
    lines = [
        f"hosts       {_listed(outlook.hosts)}",
        f"ranks       {ranks}",
        f"card        {outlook.nic}",
        f"variables   {' '.join(sorted({*rank_environment(ranks), START_ID}))}",
        f"command     {' '.join(job.command)}",
    ]
    return lines if job.config is None else [*lines, f"run         {job.config.run_dir}"]


def _first_outlook(
    job: Job, connections: Connections, say: Callable[[str], None], patience_s: float = 0.0
) -> Outlook:
    """What the hosts report; ranks of a launcher that was killed have a patience to end."""
    until_s = time.monotonic() + patience_s
    while (outlook := preflight.ask_hosts(job, connections)).held_by:
        if time.monotonic() > until_s or len(outlook.hindrances) > 1:  # what no patience fixes
            break
        run = f"another run ({outlook.held_by}) is in the run directory"
        say(f"{run}: waits {patience_s:g} s, as ranks of a killed launcher end by themselves.")
        time.sleep(1.0)
    for text in (*outlook.warnings, *outlook.hindrances[:-1]):
        say(text)
    if outlook.hindrances:
        raise ClusterError(outlook.hindrances[-1])
    return outlook


@final
class _Supervision:
    """What is known while a job is done, from start to start."""

    def __init__(self, job: Job) -> None:
        self._job, self._options = job, job.options
        self._log = None if job.config is None else RunDirectory(job.config.run_dir).launches
        self._stop = StopSignals()
        self._output = RankOutput()
        self._events = Events()
        self._connections = Connections(job.options.timeout_s, self._receive)
        self._rendezvous = Rendezvous()
        self._id = secrets.token_hex(8)
        self._ends: list[AttemptEnd] = []
        self._saved_step = -1
        self._unrecorded: list[dict[str, Any]] = []
        self._said_once: set[str] = set()

    def run(self) -> int:
        self._stop.listen()
        try:
            with self._connections:
                return self._run()
        except KeyboardInterrupt:  # between two starts
            return self._stopped(INTERRUPTED if self._stop.at_once else Preempted.exit_code)
        finally:
            while not (self._output.flush(1.0) or self._stop.requested):
                pass  # its reader stands still

    def _run(self) -> int:
        while True:
            with self._stop.interrupting():
                outlook = self._outlook()
            if self._ends and outlook.saved_step > self._saved_step:  # by ranks of a lost host
                self._ends[-1] = dataclasses.replace(self._ends[-1], progressed=True)
            self._saved_step = outlook.saved_step
            self._note_end(self._attempt(outlook).run(self._rendezvous))
            if self._stop.at_once:
                return self._stopped(INTERRUPTED)
            restarts = self._options.restarts_per_hour
            decision = policy.decide(self._ends, restarts, self._stop.requested)
            if not decision.restarts:
                return self._finish(decision)
            self._record("restart", pause_s=decision.pause_s)
            pause = duration(decision.pause_s)
            self._output.say(f"ended with code {decision.exit_code}; starts again in {pause}.")
            with self._stop.interrupting():
                time.sleep(decision.pause_s)

    def _receive(self, connection: Connection, message: Message | None) -> None:
        """In the threads that read what agents send."""
        if message is not None and message.get("tell") == "output":
            rank, stream, text = (message[name] for name in ("rank", "stream", "text"))
            self._output.receive(rank, stream, text, lambda: connection.tell("printed"))
        elif message is None or message.get("states") != {}:
            self._events.put((connection, message))

    def _say_once(self, text: str) -> None:
        if text not in self._said_once:
            self._said_once.add(text)
            self._output.say(text)

    def _outlook(self) -> Outlook:
        """What the hosts report, once enough can be used."""
        if not self._ends:
            patience_s = signals.grace_s() + _BEYOND_GRACE_S
            return _first_outlook(self._job, self._connections, self._say_once, patience_s)
        failures, until_s = 0, time.monotonic() + self._options.wait_for_hosts_h * _HOUR_S
        while True:
            for host in self._job.hosts:
                self._connections.to(host).tell("clear", launch_id=self._id)
            outlook = preflight.ask_hosts(
                self._job, self._connections, self._saved_step, is_restart=True
            )
            for text in (*outlook.warnings, *outlook.hindrances):
                self._say_once(text)
            if not outlook.hindrances:
                return outlook
            failures += 1
            pause_s = policy.pause_s(failures + 1)
            self._record("waiting", why=list(outlook.hindrances), pause_s=pause_s)
            if time.monotonic() + pause_s > until_s:
                why = f"The hosts could not be used for {self._options.wait_for_hosts_h:g} hours."
                self._record("given up", exit_code=ClusterError.exit_code, why=why)
                raise ClusterError(why)
            time.sleep(pause_s)

    def _attempt(self, outlook: Outlook) -> Attempt:
        """The next start, which is announced and recorded."""
        job, hosts, nic = self._job, outlook.hosts, outlook.nic or ""
        if outlook.skipped:
            self._record("left out", why=outlook.skipped)
        for host, why in outlook.skipped.items():
            self._output.say(f"without {host}: {why}")
            self._connections.drop(host)
        start_id, next_start_id = (f"{self._id}.{len(self._ends) + n}" for n in (1, 2))
        self._record(
            "start", start_id=start_id, nic=nic, command=list(job.command),
            hosts={host.name: host.slots for host in hosts},
        )  # fmt: skip
        ranks = count(sum(host.slots for host in hosts), "rank")
        self._output.say(f"starting {ranks} on {_listed(hosts)}, network card {nic}.")
        has_spares = job.config is not None and job.options.restarts_per_hour > 0
        return Attempt(
            job, hosts, nic, start_id, next_start_id if has_spares else "", self._connections,
            self._events, self._output, self._stop,
        )  # fmt: skip

    def _note_end(self, outcome: AttemptOutcome) -> None:
        event = dataclasses.asdict(outcome)
        self._record("end", **event.pop("reached"), **event)
        progressed = outcome.saved_step > self._saved_step
        self._ends.append(AttemptEnd(outcome.exit_code, progressed, time.monotonic()))
        self._saved_step = max(self._saved_step, outcome.saved_step)

    def _finish(self, decision: Decision) -> int:
        if self._stop.requested and decision.exit_code == Preempted.exit_code:
            return self._stopped(decision.exit_code)
        kind = "given up" if decision.exit_code else "finished"
        self._record(kind, exit_code=decision.exit_code, why=decision.why)
        if decision.why:
            self._output.say(decision.why)
        return decision.exit_code

    def _stopped(self, code: int) -> int:
        self._record("stopped", exit_code=code)
        saved = "; there is no checkpoint yet" if self._ends else " before the ranks were started"
        if self._saved_step >= 0:
            saved = f"; the newest checkpoint is of step {self._saved_step:,}"
        self._output.say(f"stopped by a signal{saved}: run the same command to continue.")
        return code

    def _record(self, kind: str, **values: Any) -> None:
        """A line of `launch.jsonl`, which `records.read` reads. A failed write stops no run."""
        if self._log is None:
            return
        self._unrecorded.append({"time_s": time.time(), "kind": kind, **values})
        try:
            with contextlib.closing(JsonlFile(self._log)) as file:
                while self._unrecorded:
                    file.append(self._unrecorded[0])
                    del self._unrecorded[0]
        except OSError as error:
            self._say_once(f"warning: cannot write {self._log} ({error.strerror}): tries again.")


def _listed(hosts: Sequence[Host]) -> str:
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)

"""What the hosts report before a start, and where its ranks go: `doctor` without the all-reduce."""

import dataclasses
import socket
from collections.abc import Container, Sequence
from dataclasses import dataclass

from hvd_nmt.common.units import count
from hvd_nmt.config import Config
from hvd_nmt.diagnosis import checks
from hvd_nmt.diagnosis.checks import FAIL, WARN, Check, PlannedRun
from hvd_nmt.hosts import facts
from hvd_nmt.hosts.connection import Connections
from hvd_nmt.hosts.facts import HostFacts
from hvd_nmt.hosts.host_list import Host, is_here
from hvd_nmt.launching.job import Job

_NETWORK = "network"
_OF_ANY_COMMAND = (
    "ssh", "names", "clock", "versions", "code of hvd_nmt", "Horovod", "GPUs", _NETWORK,
)  # fmt: skip
"""checks of `doctor` that have nothing to do with a run of hvd_nmt.train"""


@dataclass(frozen=True)
class Outlook:
    """What is to be expected of a start."""

    hosts: tuple[Host, ...]
    """hosts with their ranks, in order"""
    nic: str | None
    """network card of one name on all of them; None: there is none"""
    hindrances: tuple[str, ...]
    """reasons why it would fail, one sentence each; () if nothing hinders"""
    warnings: tuple[str, ...]
    skipped: dict[str, str]
    """host -> why no rank starts there"""
    saved_step: int
    """step of the newest complete checkpoint that is known of; -1: none"""
    held_by: str = ""
    """process of another run in the run directory"""


def place(among: Sequence[Host], without: Container[str], ranks: int) -> tuple[Host, ...]:
    """The first slots of the hosts that can be used, as many as ranks if there are."""
    placed: list[Host] = []
    for host in among:
        slots = min(host.slots, ranks - sum(one.slots for one in placed))
        if slots > 0 and host.name not in without:
            placed.append(Host(host.name, slots))
    return tuple(placed)


def ask_hosts(
    job: Job, connections: Connections, known_step: int = -1, is_restart: bool = False
) -> Outlook:
    """Ask all hosts, and determine where the ranks can run.

    `known_step`: step of the newest checkpoint known; -1: none. A restart also skips hosts that
    answer but on which a rank would fail; before the first start these are hindrances.
    """
    run = checks.ask(job.config or Config(), job.hosts, connections)
    reached = [checks.reached(answer) for answer in run.answers]
    skipped = {check.host: _sentence(check) for check in reached if check.status == FAIL}
    hosts, nic, results = _examined(job, run, skipped)
    failed = {
        check.host: _sentence(check) for check in results
        if check.status == FAIL and check.host and check.name != "run directory"  # the run's fault
    }  # fmt: skip
    if failed and is_restart:
        skipped |= failed
        hosts, nic, results = _examined(job, run, skipped)
    hindrances = [_sentence(check) for check in results if check.status == FAIL]
    slots = sum(host.slots for host in hosts)
    if slots < job.min_ranks:
        need = f"{count(slots, 'slot')} are left, but {job.min_ranks:,} are needed"
        hindrances = [*skipped.values(), *hindrances] or [f"{need}: name more hosts."]
    run_dirs = {answer.host.name: answer.facts.get("run_dir", {}) for answer in run.answers}
    saved = {name: run_dir.get("saved_step") or -1 for name, run_dir in run_dirs.items()}
    saved_step = max(known_step, *saved.values()) if job.config else -1
    if skipped and hosts and job.config and max(saved[host.name] for host in hosts) < saved_step:
        # The ranks would begin with no or older weights, where hosts share no file system.
        hindrances.append(
            f"Without {', '.join(skipped)} no host has the checkpoint of step {saved_step:,}: fix "
            f"that, or copy {job.config.run_dir} to another host."
        )
    warnings = [f"warning: {_sentence(check)}" for check in results if check.status == WARN]
    held_by = next(filter(None, (run_dir.get("held_by") for run_dir in run_dirs.values())), "")
    return Outlook(
        hosts, nic, tuple(hindrances), tuple(warnings), skipped, saved_step,
        held_by if job.config else "",
    )  # fmt: skip


def _sentence(check: Check) -> str:
    """A check that did not pass, as one sentence."""
    where = f"{check.host}: " if check.host else ""
    result = check.result.removeprefix(f"{check.name}: ").removesuffix(".")
    mark = ";" if ": " in result else ":"  # it is a list, or has another remedy
    remedy = f"{mark} {check.remedy}" if check.remedy else ""
    return f"{where}{check.name}: {result}{remedy}."


def _examined(
    job: Job, run: PlannedRun, skipped: dict[str, str]
) -> tuple[tuple[Host, ...], str | None, list[Check]]:
    """Where the ranks go without some hosts, through which card, and the checks of that."""
    hosts = place(job.hosts, skipped, job.ranks)
    by_name = {answer.host.name: answer for answer in run.answers}
    answers = [dataclasses.replace(by_name[host.name], host=host) for host in hosts]
    if not answers:
        return hosts, None, []
    results = checks.examine(dataclasses.replace(run, answers=answers))
    if job.config is None:
        results = [check for check in results if check.name in _OF_ANY_COMMAND]
    if job.options.nic:  # routes tell which one, and it is known
        results = [check for check in results if check.name != _NETWORK or check.status != FAIL]
    elif any(check.name == _NETWORK and check.status == FAIL for check in results):
        return hosts, None, results
    nic = _card(answers, job.options.nic)
    return hosts, nic, [*results, *_card_checks(answers, nic)]


def _card(answers: Sequence[HostFacts], given: str) -> str | None:
    """The network card for Horovod; None: none is known."""
    names = [answer.host.name for answer in answers]
    if all(map(is_here, names)):
        return "lo"
    if given:
        return given
    if len(names) > 1:
        return checks.used_nic(answers)
    return facts.routes({"hosts": names})[names[0]]  # one, and this is another


def _card_checks(answers: Sequence[HostFacts], nic: str | None) -> list[Check]:
    """The card must be there on every host, and here, where all ranks meet at first."""
    nics_of = {answer.host.name: answer.facts["nics"] for answer in answers}
    nics_of.setdefault(socket.gethostname(), facts.nics({}))
    cards_of = {
        host: [name for name, card in nics.items() if card["is_up"]]
        for host, nics in nics_of.items()
    }
    remedy = "give a card that all hosts have, also this one, with --nic, or rename the cards"
    return [
        Check(_NETWORK, host, FAIL, f"no card {nic or 'that leads there'} that is up among "
              f"{', '.join(sorted(cards))}", remedy)
        for host, cards in cards_of.items() if cards and nic not in cards
    ]  # fmt: skip

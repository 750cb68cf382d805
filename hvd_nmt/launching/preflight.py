"""What the hosts say before a start, and where its ranks go: `doctor` without the all-reduce."""

import dataclasses
import socket
from collections.abc import Container, Sequence
from dataclasses import dataclass

import psutil

from hvd_nmt.common.units import count
from hvd_nmt.config import Config
from hvd_nmt.diagnosis import checks
from hvd_nmt.diagnosis.checks import FAIL, WARN, Check, PlannedRun
from hvd_nmt.hosts import facts
from hvd_nmt.hosts.connections import Connections
from hvd_nmt.hosts.facts import HostFacts
from hvd_nmt.hosts.host_list import Host, is_here

_NETWORK = "network"
_OF_ANY_COMMAND = (
    "ssh", "names", "clock", "versions", "code of hvd_nmt", "Horovod", "GPUs", _NETWORK,
)  # fmt: skip
"""checks of `doctor` that have nothing to do with a run of hvd_nmt.train"""


@dataclass(frozen=True)
class Job:
    """What is to be done until it is done."""

    words: tuple[str, ...]
    """the command"""
    config: Config | None
    """of its run; None: it is not hvd_nmt.train, so nothing is known of it"""
    hosts: tuple[Host, ...]
    """with their slots, in order"""
    ranks: int
    min_ranks: int
    """hosts that cannot be used are left out while the others have so many slots"""
    nic: str = ""
    """network card, of one name on all hosts; "": the one that leads from each to the others"""
    timeout_s: float = 30.0
    """for each host to answer"""
    restarts_per_hour: int = 10
    wait_for_hosts_h: float = 24.0
    """hours that hosts may be missing after the first start"""


@dataclass(frozen=True)
class Outlook:
    """What is to be expected of a start."""

    hosts: tuple[Host, ...]
    """with their ranks, in order"""
    nic: str | None
    """network card of one name on all of them; None: none was found"""
    hindrances: tuple[str, ...]
    """why it would fail, one sentence each; () if nothing hinders"""
    warnings: tuple[str, ...]
    left_out: dict[str, str]
    """host -> why it does without"""
    saved_step: int
    """step of the newest complete checkpoint that is known of; -1: none"""
    held_by: str = ""
    """the process of another run in the run directory"""


def place(among: Sequence[Host], without: Container[str], ranks: int) -> tuple[Host, ...]:
    """The first slots of the hosts that can be used, as many as ranks if there are."""
    placed: list[Host] = []
    for host in among:
        slots = min(host.slots, ranks - sum(one.slots for one in placed))
        if slots > 0 and host.name not in without:
            placed.append(Host(host.name, slots))
    return tuple(placed)


def look(
    job: Job, connections: Connections, known_step: int = -1, is_restart: bool = False
) -> Outlook:
    """Ask all hosts, and find out where the ranks can run.

    `known_step`: of the newest checkpoint known; -1: none. A restart also leaves out hosts that
    answer but on which a rank would fail; before the first start these are hindrances.
    """
    asked = checks.ask(job.config or Config(), job.hosts, connections)
    reached = [checks.reached(answer) for answer in asked.answers]
    out = {check.host: sentence(check) for check in reached if check.status == FAIL}
    hosts, nic, found = _judged(job, asked, out)
    failed = {
        check.host: sentence(check) for check in found
        if check.status == FAIL and check.host and check.name != "run directory"  # the run's fault
    }  # fmt: skip
    if failed and is_restart:
        out |= failed
        hosts, nic, found = _judged(job, asked, out)
    hindrances = [sentence(check) for check in found if check.status == FAIL]
    slots = sum(host.slots for host in hosts)
    if slots < job.min_ranks:
        need = f"{count(slots, 'slot')} are left, but {job.min_ranks:,} are needed"
        hindrances = [*out.values(), *hindrances] or [f"{need}: name more hosts."]
    saved = {
        answer.host.name: answer.facts.get("run_dir", {}).get("saved_step") or -1
        for answer in asked.answers
    }
    saved_step = max(known_step, *saved.values()) if job.config else -1
    if out and hosts and job.config and max(saved[host.name] for host in hosts) < saved_step:
        # The ranks would begin anew, or further back, where hosts share no file system.
        hindrances.append(
            f"Without {', '.join(out)} no host has the checkpoint of step {saved_step:,}: fix "
            f"that, or copy {job.config.run_dir} to another host."
        )
    warnings = [f"warning: {sentence(check)}" for check in found if check.status == WARN]
    held = [answer.facts["run_dir"]["held_by"] for answer in asked.answers if answer.facts]
    held_by = next(filter(None, held), "") if job.config else ""
    return Outlook(hosts, nic, tuple(hindrances), tuple(warnings), out, saved_step, held_by)


def sentence(check: Check) -> str:
    """A check that did not go well, as one sentence."""
    where = f"{check.host}: " if check.host else ""
    found = check.found.removeprefix(f"{check.name}: ").removesuffix(".")
    mark = ";" if ": " in found else ":"  # a list, or a remedy of its own
    remedy = f"{mark} {check.remedy}" if check.remedy else ""
    return f"{where}{check.name}: {found}{remedy}."


def _judged(
    job: Job, asked: PlannedRun, out: dict[str, str]
) -> tuple[tuple[Host, ...], str | None, list[Check]]:
    """Where the ranks go without some hosts, through which card, and what is to be said of it."""
    hosts = place(job.hosts, out, job.ranks)
    by_name = {answer.host.name: answer for answer in asked.answers}
    answers = [dataclasses.replace(by_name[host.name], host=host) for host in hosts]
    if not answers:
        return hosts, None, []
    found = checks.examine(dataclasses.replace(asked, answers=answers))
    if job.config is None:
        found = [check for check in found if check.name in _OF_ANY_COMMAND]
    if job.nic:  # routes tell which one, and it is known
        found = [check for check in found if check.name != _NETWORK or check.status != FAIL]
    elif any(check.name == _NETWORK and check.status == FAIL for check in found):
        return hosts, None, found
    nic = _card(answers, job.nic)
    return hosts, nic, [*found, *_card_checks(answers, nic)]


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
    cards_of = {
        answer.host.name: [name for name, card in answer.facts["nics"].items() if card["is_up"]]
        for answer in answers
    }
    own = [name for name, state in psutil.net_if_stats().items() if state.isup]
    cards_of.setdefault(socket.gethostname(), own)
    remedy = "give a card that all hosts have, also this one, with --nic, or rename the cards"
    return [
        Check(_NETWORK, host, FAIL, f"no card {nic or 'that leads there'} that is up among "
              f"{', '.join(sorted(cards))}", remedy)
        for host, cards in cards_of.items() if cards and nic not in cards
    ]  # fmt: skip

"""The hosts that were named, and what they answer."""

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hvd_nmt.common.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Host:
    """A host that was asked for."""

    name: str
    slots: int
    """ranks to run there"""


@dataclass(frozen=True)
class Answer:
    """What asking one host gave."""

    host: Host
    facts: dict[str, Any] = field(default_factory=dict)
    """what `probe.facts` says there; {} if there was no answer"""
    error: str | None = None
    """why there was none, in words"""
    reached: bool = True
    """False: the host was not even reached; True with an error: the probe did not run there"""
    seconds: float = 0.0
    """until the answer or the failure"""
    clock_differs_s: float = 0.0
    """from ours, and the time that the answer took on its way"""


def parse(text: str) -> list[Host]:
    """The hosts of "v100a:2,v100b:2"; one slot where none is given.

    Raises:
        ConfigError: a word that is no host, or a host twice.
    """
    found = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, colon, slots = word.partition(":")
        if not _NAME.fullmatch(name) or (colon and not _is_count(slots)):
            raise ConfigError(
                f"-H has {word!r}: write NAME:SLOTS with commas between, as in v100a:2,v100b:2."
            )
        found.append(Host(name, int(slots or 1)))
    return _each_once(found, "-H")


def read_hostfile(path: Path) -> list[Host]:
    """The hosts of a file with lines "NAME slots=RANKS".

    Raises:
        ConfigError: it cannot be read, or a line is something else, or a host stands twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"The host file {path} cannot be read: {error}.") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = words[1].removeprefix("slots=") if len(words) == 2 else ""
        if not (_NAME.fullmatch(words[0]) and _is_count(slots)):
            raise ConfigError(
                f"{path} line {number} is {line.strip()!r}, expected: NAME slots=RANKS."
            )
        found.append(Host(words[0], int(slots)))
    return _each_once(found, str(path))


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _each_once(hosts: list[Host], where: str) -> list[Host]:
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{where} names {twice[0]} twice: give its slots in one entry.")
    if not hosts:
        raise ConfigError(f"{where} names no host.")
    inward = [name for name in names if name == "localhost" or name.startswith("127.")]
    if inward and len(hosts) > 1:
        raise ConfigError(
            f"{where} names {inward[0]} beside other hosts, and on each of them that is another "
            "machine: give this one's own name."
        )
    return hosts


def is_here(name: str) -> bool:
    """Whether a name is this machine's, as horovodrun sees it: it resolves to an own address."""
    if name in {"localhost", socket.gethostname(), socket.gethostname().partition(".")[0]}:
        return True
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(name, None)}
    except OSError:
        return False
    own = {address.address for nic in psutil.net_if_addrs().values() for address in nic}
    return bool(addresses & own)

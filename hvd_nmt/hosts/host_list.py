"""The hosts that a command names: their names and slots."""

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.telemetry import host

_ENTRY = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)(?:(?::|\s+slots=)([1-9][0-9]*))?")


@dataclass(frozen=True)
class Host:
    """A host that is to be used."""

    name: str
    slots: int
    """number of ranks to run there"""


def read_hosts(text: str, file: Path | None) -> list[Host]:
    """The hosts of "v100a:2,v100b:2", or of a file with lines "NAME slots=RANKS"; [] for neither.

    One slot by default. ConfigError: both are given, the file is unreadable, or an entry is wrong.
    """
    if text and file:
        raise ConfigError("Give the hosts with -H or with --hostfile, not with both.")
    if file is None:
        return _hosts(text.split(","), "-H") if text else []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot read the host file {file}: {error}.") from None
    return _hosts([line.partition("#")[0] for line in lines], str(file))


def _hosts(entries: Iterable[str], where: str) -> list[Host]:
    hosts: dict[str, Host] = {}
    for entry in filter(None, map(str.strip, entries)):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(
                f"{where} has {entry!r}: write NAME:SLOTS with commas between, as in "
                "v100a:2,v100b:2, or in a file lines NAME slots=RANKS."
            )
        name, slots = match.groups()
        if name in hosts:
            raise ConfigError(f"{where} names {name} twice: give its slots in one entry.")
        hosts[name] = Host(name, int(slots or 1))
    if not hosts:
        raise ConfigError(f"{where} names no host.")
    inward = [name for name in hosts if name == "localhost" or name.startswith("127.")]
    if inward and len(hosts) > 1:
        raise ConfigError(
            f"{where} names {inward[0]} and other hosts, for which that name is another machine: "
            "give this machine's own name."
        )
    return list(hosts.values())


def is_here(name: str) -> bool:
    """Whether a name is this machine's, as horovodrun sees it: it resolves to an address here."""
    if name in {"localhost", socket.gethostname(), socket.gethostname().partition(".")[0]}:
        return True
    return not set(host.addresses()).isdisjoint(addresses(name))


def addresses(name: str) -> list[str]:
    """The addresses of a host's name; []: it has none."""
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(info[4][0]) for info in infos))

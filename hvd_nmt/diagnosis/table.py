"""A check, and many of them for a reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"
_MOST_HOSTS = 24
"""characters of the column with host names"""


Judgement = tuple[str, str, str]
"""of a check: status, what was found, remedy"""


@dataclass(frozen=True)
class Check:
    """What was looked at on a host, or on all together, and what was found."""

    name: str
    host: str
    """the host that was looked at, or "" for all together"""
    status: str
    """ok; warn: a run works, but worse than it could; fail: it will not start or not be right"""
    found: str
    """what was found, in words and numbers"""
    remedy: str = ""
    """what to do; "" where nothing has to be done"""


def table(checks: Sequence[Check]) -> str:
    """One line per check, aligned; hosts of which the same was found share a line.

    Returns:
        The lines, and below them the remedies, numbered as in the table.
    """
    groups: dict[Check, list[str]] = {}
    for check in checks:
        groups.setdefault(dataclasses.replace(check, host=""), []).append(check.host)
    remedies = list(dict.fromkeys(check.remedy for check in groups if check.remedy))
    rows = []
    for check, hosts in groups.items():
        note = f"  [{remedies.index(check.remedy) + 1}]" if check.remedy else ""
        rows.append((check.status.upper(), check.name, _named(hosts), check.found + note))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False))
        + f"  {row[3]}"
        for row in rows
    ]
    if remedies:
        lines += ["", *(f"[{number}] {text}" for number, text in enumerate(remedies, 1))]
    return "\n".join(lines)


def _named(hosts: list[str]) -> str:
    text = ", ".join(filter(None, hosts))
    return text if len(text) <= _MOST_HOSTS else f"{hosts[0]} and {len(hosts) - 1} more"

"""A check, and many of them for a reader."""

from __future__ import annotations

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
    rows, remedies = [], list[str]()
    for check, hosts in _merged(checks):
        note = ""
        if check.remedy:
            if check.remedy not in remedies:
                remedies.append(check.remedy)
            note = f"  [{remedies.index(check.remedy) + 1}]"
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


def _merged(checks: Sequence[Check]) -> list[tuple[Check, list[str]]]:
    """Checks that differ in nothing but the host, with all their hosts."""
    groups: dict[tuple[str, str, str, str], tuple[Check, list[str]]] = {}
    for check in checks:
        key = (check.name, check.status, check.found, check.remedy)
        groups.setdefault(key, (check, []))[1].append(check.host)
    return list(groups.values())


def _named(hosts: list[str]) -> str:
    text = ", ".join(filter(None, hosts))
    return text if len(text) <= _MOST_HOSTS else f"{hosts[0]} and {len(hosts) - 1} more"

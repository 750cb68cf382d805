"""What was looked at and found, as a table for a reader."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.common.units import count
from hvd_nmt.diagnosis.hosts import Answer
from hvd_nmt.diagnosis.prediction import Prediction

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


@dataclass(frozen=True)
class Findings:
    """What the hosts said, what it means, and what to expect of a run."""

    answers: Sequence[Answer]
    checks: Sequence[Check]
    """in the order in which one would mend them"""
    prediction: Prediction | None
    """None where nothing was measured"""

    @property
    def exit_code(self) -> int:
        """0, or that of a ClusterError if a check failed."""
        failed = any(check.status == FAIL for check in self.checks)
        return ClusterError.exit_code if failed else 0

    def text(self) -> str:
        """The table, the prediction, and how many checks failed."""
        counts = collections.Counter(check.status for check in self.checks)
        parts = [table(self.checks)]
        if self.prediction is not None:
            parts.append("\n".join(self.prediction.lines()))
        verdict = "a run would not start or not be right" if self.exit_code else "a run will start"
        parts.append(
            f"{counts[OK]} ok, {count(counts[WARN], 'warning')}, "
            f"{count(counts[FAIL], 'failure')}: {verdict}."
        )
        return "\n\n".join(parts)


def table(checks: Sequence[Check]) -> str:
    """A line for each check, and the remedies; hosts of which the same was found share a line."""
    groups: dict[Check, list[str]] = {}
    for check in checks:
        groups.setdefault(dataclasses.replace(check, host=""), []).append(check.host)
    remedies = list(dict.fromkeys(check.remedy for check in groups if check.remedy))
    rows = []
    for check, hosts in groups.items():
        note = f"  [{remedies.index(check.remedy) + 1}]" if check.remedy else ""
        named = ", ".join(filter(None, hosts))
        if len(named) > _MOST_HOSTS:
            named = f"{hosts[0]} and {len(hosts) - 1} more"
        rows.append((check.status.upper(), check.name, named, check.found + note))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows]
    if remedies:
        lines += ["", *(f"[{number}] {text}" for number, text in enumerate(remedies, 1))]
    return "\n".join(lines)

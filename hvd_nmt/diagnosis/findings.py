"""All that was found out about some hosts, as text and as plain values."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.common.units import count
from hvd_nmt.diagnosis.hosts import Answer
from hvd_nmt.diagnosis.prediction import Prediction
from hvd_nmt.diagnosis.table import FAIL, OK, WARN, Check, table


@dataclasses.dataclass(frozen=True)
class Findings:
    """What the hosts said, what it means, and what to expect of a run."""

    answers: Sequence[Answer]
    """what each host said"""
    checks: Sequence[Check]
    """what was looked at, in the order in which one would mend it"""
    prediction: Prediction | None
    """speed of the run; None where there was nothing to measure, or it failed"""

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

    def as_plain(self) -> dict[str, Any]:
        """Everything for JSON."""
        return {
            "exit_code": self.exit_code,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "prediction": None if self.prediction is None else self.prediction.as_plain(),
            "hosts": [dataclasses.asdict(answer) for answer in self.answers],
        }

"""left_out.json: the steps that a run leaves out because a gradient became NaN or Inf there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from hvd_nmt.checkpoints.run_files import LEFT_OUT
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import write_atomically


@dataclasses.dataclass(frozen=True)
class WentBack:
    """A run met NaN or Inf, and went back to its last checkpoint."""

    step: int
    """the step that went wrong"""
    epoch: int
    """its epoch, from 1"""
    ranks: tuple[int, ...]
    """ranks whose loss it was; () where all losses were finite, and the gradient was not"""
    left_out: tuple[int, ...]
    """steps whose updates are left out since: this one and its neighbours"""

    def sentence(self) -> str:
        """For a reader."""
        whose = f"the loss of {numbered('rank', self.ranks)}" if self.ranks else "the gradient"
        return (
            f"{numbered('Step', self.left_out)} of epoch {self.epoch:,} left out, because "
            f"{whose} became NaN or Inf at step {self.step:,}."
        )


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """All of these that a run has met, in their order."""

    events: tuple[WentBack, ...] = ()

    @cached_property
    def steps(self) -> frozenset[int]:
        """The steps whose updates are left out."""
        return frozenset(step for event in self.events for step in event.left_out)

    def in_epoch(self, epoch: int) -> WentBack | None:
        """When the run went back in an epoch; None if it did not."""
        return next((event for event in self.events if event.epoch == epoch), None)

    def record(self) -> list[dict[str, Any]]:
        """As JSON values."""
        return [dataclasses.asdict(event) for event in self.events]

    @classmethod
    def recorded(cls, record: Iterable[Any]) -> LeftOut:
        """What `record` gave."""
        return cls(tuple(
            WentBack(int(of["step"]), int(of["epoch"]), *(
                tuple(int(number) for number in of[name]) for name in ("ranks", "left_out")
            ))
            for of in record
        ))  # fmt: skip


def read(run_dir: Path) -> LeftOut:
    """What a run leaves out; nothing without the file.

    Raises:
        RunError: the file cannot be read: without it the run would not do again what it did.
    """
    path = run_dir / LEFT_OUT
    try:
        return LeftOut.recorded(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return LeftOut()
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(
            f"{path} cannot be read ({error}): it says which steps this run leaves out after NaN "
            "or Inf. Mend it, or delete it to train on these, too."
        ) from None


def write(run_dir: Path, left_out: LeftOut) -> None:
    """Write it down, whole or not at all."""
    text = "".join(["[\n", ",\n".join(map(json.dumps, left_out.record())), "\n]\n"])
    write_atomically(run_dir / LEFT_OUT, text)


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """Such as "step 6" and "steps 5, 6, 7"."""
    texts = [f"{number:,}" for number in numbers]
    return f"{noun}{'s' if len(texts) > 1 else ''} {', '.join(texts)}"

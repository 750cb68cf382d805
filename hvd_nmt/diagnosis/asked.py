"""What the hosts are wanted for: the run to come, and what they say of its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hvd_nmt.checkpoints import size
from hvd_nmt.checkpoints.size import Prediction
from hvd_nmt.common.gradient import bytes_of_gradients
from hvd_nmt.config import Config
from hvd_nmt.diagnosis.hosts import Answer

Batch = tuple[int, int, int]
"""rows of a rank, padded source length, padded target length"""


@dataclass(frozen=True)
class Asked:
    """What the hosts are wanted for."""

    config: Config
    answers: Sequence[Answer]
    worst_step: Callable[[int], dict[str, Any] | None] = lambda tokens: None
    """`worst_batch` of a host with the data, for steps of another number of tokens; None: untold"""

    @property
    def ranks(self) -> int:
        """Slots of all hosts."""
        return sum(answer.host.slots for answer in self.answers)

    @property
    def vocabulary_size(self) -> int:
        """Rows of the shared matrix: of the data if a host has them, else as configured."""
        pieces = self.config.data.vocabulary_size
        return int((self._data or {}).get("vocabulary_size") or -(-pieces // 8) * 8)

    @cached_property
    def checkpoint(self) -> Prediction:
        """What the run will save: its weights, their average, and moments of those it trains."""
        training = self.config.training
        return size.predict(
            self.config.model, self.vocabulary_size,
            freeze=training.freeze, averaged=training.ema_decay > 0,
        )  # fmt: skip

    @property
    def trained(self) -> int:
        """Trained values; frozen ones have no gradient."""
        return self.checkpoint.trained

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of a step."""
        return bytes_of_gradients(self.trained)

    @property
    def source_per_target_token(self) -> float:
        """Of the data; 1 where no host has them."""
        data = self._data or {}
        return float(data["source_tokens"] / data["target_tokens"]) if data else 1.0

    @property
    def worst_batch(self) -> Batch | None:
        """Of the step that needs most memory; None where no host has the data to look at."""
        return batch_of((self._data or {}).get("worst_batch"))

    @property
    def _data(self) -> dict[str, Any] | None:
        """Of the first host that has them."""
        found = (answer.facts.get("data") for answer in self.answers)
        return next((data for data in found if data and data.get("hash")), None)


def batch_of(told: dict[str, Any] | None) -> Batch | None:
    """The batch in what `probe` tells of a worst step; None where there is none."""
    if not told or told["error"]:
        return None
    return told["rows"], told["source_length"], told["target_length"]

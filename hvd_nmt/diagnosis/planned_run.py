"""The run to come: its configuration, and what the hosts say of its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hvd_nmt.checkpoints import size
from hvd_nmt.checkpoints.size import Prediction
from hvd_nmt.common.gradient import bytes_of_gradients
from hvd_nmt.config import Config
from hvd_nmt.diagnosis.hosts import Answer, Host
from hvd_nmt.diagnosis.link import Links

_USUAL_LENGTH = 28
"""tokens of a sentence where no host has the data: about WMT's"""


@dataclass(frozen=True)
class PlannedRun:
    """The run to come, on hosts that have been asked."""

    config: Config
    """all settings of the run"""
    answers: Sequence[Answer]
    """one of each host, in the order of their ranks"""

    def __post_init__(self) -> None:
        if self.config.training.device == "cpu":
            for answer in self.answers:
                if answer.facts and answer.facts.get("gpu"):  # as if there were none
                    none = {"gpus": [], "problems": [], "unavailable": "training.device is cpu"}
                    answer.facts["gpu"] = {**answer.facts["gpu"], **none}

    @property
    def ranks(self) -> int:
        """Slots of all hosts."""
        return sum(answer.host.slots for answer in self.answers)

    @property
    def vocabulary_size(self) -> int:
        """Rows of the softmax matrix: of the data if a host has them, else as configured."""
        pieces = self.config.data.vocabulary_size
        return int((self._data or {}).get("vocabulary_size") or -(-pieces // 8) * 8)

    @property
    def source_vocabulary_size(self) -> int:
        """Rows of the source's own matrix, of the data if a host has them; 0: it has none."""
        return int((self._data or {}).get("source_vocabulary_size") or 0)

    @cached_property
    def checkpoint(self) -> Prediction:
        """What the run will save: its weights, their average, and moments of those it trains."""
        training = self.config.training
        return size.predict(
            self.config.model, self.vocabulary_size,
            freeze=training.freeze, averaged=training.ema_decay > 0,
            source_vocabulary_size=self.source_vocabulary_size,
        )  # fmt: skip

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of a step; frozen values have none."""
        return bytes_of_gradients(self.checkpoint.trained)

    @property
    def tokens_per_step(self) -> float:
        """Source and target tokens of a step; as many of both where no host has the data."""
        target_tokens, data = self.config.training.tokens_per_step, self._data
        ratio = data["source_tokens"] / data["target_tokens"] if data else 1.0
        return float(target_tokens * (1 + ratio))

    @property
    def usual_batch(self) -> tuple[int, int, int]:
        """Rows, source and target tokens of a rank's batch, of sentences of the mean length."""
        data = self._data
        sides = ("source_tokens", "target_tokens")
        source, target = (
            max(1, round(data[side] / data["pairs"])) if data else _USUAL_LENGTH for side in sides
        )
        return max(1, self.config.training.tokens_per_step // self.ranks // target), source, target

    @property
    def _data(self) -> dict[str, Any] | None:
        """What the first host that has the data says of them."""
        found = (answer.facts.get("data") for answer in self.answers)
        return next((data for data in found if data and data.get("hash")), None)


def ask(config: Config, wanted: Sequence[Host], links: Links) -> PlannedRun:
    """Ask the hosts of a run that is to come."""
    request = {"run_dir": str(config.run_dir), "data": str(config.data.directory)}
    return PlannedRun(config, links.ask(wanted, request))

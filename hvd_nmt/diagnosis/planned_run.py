"""The run to come: its configuration, and what the hosts say of its data."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hvd_nmt.checkpoints import contents
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
        return int(self._data.get("vocabulary_size") or -(-pieces // 8) * 8)

    @property
    def source_vocabulary_size(self) -> int:
        """Rows of the source's own matrix, of the data if a host has them; 0: it has none."""
        return int(self._data.get("source_vocabulary_size") or 0)

    @cached_property
    def checkpoint(self) -> contents.Prediction:
        """What the run will save: its weights, their average, and moments of those it trains."""
        training = self.config.training
        return contents.predict(
            self.config.model, self.vocabulary_size,
            freeze=training.freeze, averaged=training.ema_decay > 0,
            source_vocabulary_size=self.source_vocabulary_size,
        )  # fmt: skip

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of a step; frozen values have none."""
        return contents.FLOAT_BYTES * self.checkpoint.trained

    @property
    def tokens_per_step(self) -> float:
        """Source and target tokens of a step; as many of both where no host has the data."""
        source, target = self._lengths
        return self.config.training.tokens_per_step * (1 + source / target)

    @property
    def usual_batch(self) -> tuple[int, int, int]:
        """Rows, source and target tokens of a rank's batch, of sentences of the mean length."""
        source, target = (max(1, round(length)) for length in self._lengths)
        return max(1, self.config.training.tokens_per_step // self.ranks // target), source, target

    @property
    def _lengths(self) -> tuple[float, float]:
        """Mean source and target tokens of a sentence pair."""
        if not self._data:
            return _USUAL_LENGTH, _USUAL_LENGTH
        pairs, source, target = (
            self._data[name] for name in ("pairs", "source_tokens", "target_tokens")
        )
        return source / pairs, target / pairs

    @property
    def _data(self) -> dict[str, Any]:
        """What the first host that has the data says of them; {}: none has."""
        found = (answer.facts.get("data") for answer in self.answers)
        return next((data for data in found if data and data.get("hash")), {})


def ask(config: Config, wanted: Sequence[Host], links: Links) -> PlannedRun:
    """Ask the hosts of a run that is to come."""
    request = {"run_dir": str(config.run_dir), "data": str(config.data.directory)}
    return PlannedRun(config, links.ask(wanted, request))

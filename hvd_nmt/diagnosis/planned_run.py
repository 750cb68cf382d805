"""The run to come: its configuration, and what the hosts say of its data."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hvd_nmt.checkpoints import size
from hvd_nmt.checkpoints.size import Prediction
from hvd_nmt.common.gradient import bytes_of_gradients
from hvd_nmt.config import Config, as_plain
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.diagnosis.hosts import Answer, Host
from hvd_nmt.diagnosis.link import Links


@dataclass(frozen=True)
class PlannedRun:
    """The run to come, on hosts that have been asked."""

    config: Config
    """all settings of the run"""
    answers: Sequence[Answer]
    """one of each host, in the order of their ranks"""
    worst_step: Callable[[int], dict[str, Any] | None] = lambda tokens: None
    """tokens per step -> `worst_batch` as a host with the data finds it; None: no host does"""

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
    def worst_batch(self) -> PaddedBatch | None:
        """The batch that needs most memory; None where no host has the data to look at."""
        return batch_in((self._data or {}).get("worst_batch"))

    @property
    def _data(self) -> dict[str, Any] | None:
        """What the first host that has the data says of them."""
        found = (answer.facts.get("data") for answer in self.answers)
        return next((data for data in found if data and data.get("hash")), None)


def batch_in(fact: dict[str, Any] | None) -> PaddedBatch | None:
    """The batch in the fact `worst_batch` of a probe; None where there is none."""
    if not fact or fact["error"]:
        return None
    return PaddedBatch(**{name: fact[name] for name in PaddedBatch._fields})


def ask(config: Config, wanted: Sequence[Host], links: Links) -> PlannedRun:
    """Ask the hosts of a run that is to come.

    Args:
        config: all settings of the run.
        wanted: the hosts and their slots, in the order of the ranks.
        links: to the agents of the hosts.
    """
    request = {
        "run_dir": str(config.run_dir),
        "data": str(config.data.directory),
        "model": dataclasses.asdict(config.model),
        "tokens_per_step": config.training.tokens_per_step,
        "stages": as_plain(config.data)["stages"],
        "seed": config.training.seed,
        "ranks": sum(host.slots for host in wanted),
    }
    answers = links.ask(wanted, request)
    with_data = [a.host for a in answers if (a.facts.get("data") or {}).get("hash")][:1]

    @functools.cache
    def worst_step(tokens_per_step: int) -> dict[str, Any] | None:
        again = request | {"tokens_per_step": tokens_per_step}
        for answer in links.ask(with_data, again):
            return (answer.facts.get("data") or {}).get("worst_batch")
        return None

    return PlannedRun(config, answers, worst_step)

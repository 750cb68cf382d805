"""How the hosts of a run share what their ranks learn."""

import dataclasses

from hvd_nmt.config.schema import ExchangeKind, TrainingConfig


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What travels between hosts; the default is also what a run on one host does."""

    kind: ExchangeKind = "float32"
    """see `TrainingConfig.exchange`"""
    sync_every: int = 1
    """steps from one exchange to the next; 1 without islands"""

    @classmethod
    def of(cls, training: TrainingConfig, hosts: int) -> "Exchange":
        """What a configuration asks for, on so many hosts."""
        if hosts < 2:
            return cls()
        return cls(training.exchange, training.sync_every if training.exchange == "islands" else 1)

    @property
    def trains_alone(self) -> bool:
        """Whether hosts train alone, and join their weights now and then: local steps."""
        return self.kind == "islands"


PLAIN = Exchange()


def is_due(step: int, every_steps: int, sync_every: int = 1) -> bool:
    """Whether something that is due every so many steps is done when `step` of them are.

    What all hosts must have in common is put off to the next exchange, of one every `sync_every`.
    """
    return step % sync_every == 0 and step // every_steps > (step - sync_every) // every_steps

"""What prepared data and a configuration feed to a run."""

from __future__ import annotations

from typing import NamedTuple

from hvd_nmt.config import DataConfig
from hvd_nmt.data.augmentation import Augmentation
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.data.mixed_epochs import MixedEpochs


class Feed(NamedTuple):
    """From which `hvd_nmt.data.batches` makes batches, beside the pairs themselves."""

    plan: BatchPlan
    """which sentences each step has"""
    augmentation: Augmentation | None
    """changes the sentences in each epoch anew; None: they stay as prepared"""


def feed(
    data: DataDirectory, config: DataConfig, tokens_per_step: int, seed: int, ranks: int = 1
) -> Feed:
    """The feed of the training part of prepared data.

    Args:
        data: prepared data.
        config: its corpora's stages, noise and BPE-dropout.
        tokens_per_step: real target tokens of one step over all ranks.
        seed: 0 to 2^64 - 1, of all epochs.
        ranks: that share the processor of this host.

    Raises:
        ConfigError: no plan can be made of this corpus.
        DataError: the vocabulary cannot be read, or is not one that BPE-dropout and noise can use.
    """
    mixture = MixedEpochs.of(data, config.stages, tokens_per_step, seed)
    augmentation = Augmentation.of(data, config, seed)
    lengths = None if augmentation is None else augmentation.lengths_of(data.train, ranks)
    plan = BatchPlan.of(data.train, tokens_per_step, seed, mixture, lengths)
    return Feed(plan, augmentation)

"""The first batches of training and of search, written so that a peer has the same tokens."""

import collections
import dataclasses
import itertools
import json

import numpy as np
from check import (
    PRESETS,
    SEARCH_TOKENS,
    STEPS,
    WARMUP_STEPS,
    WORK,
    config_of,
    sentences,
    vocabulary,
)

from hvd_nmt.config import Config
from hvd_nmt.data import batches, corpus
from hvd_nmt.data.batch_plan import BatchPlan, Position
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.model.batching import batches as cut_by_tokens
from hvd_nmt.model.batching import padded


def main() -> None:
    """Write WORK/batches.npz.

    It holds `meta` (JSON), training batches `all_I_source` and `all_I_target` as our
    graph gets them, `common_I_...` those of the commonest shape, padded to it, as XLA gets them;
    `search_TOKENS_I`, padded sources.
    """
    preset = PRESETS[0]
    config = config_of(preset)
    data = corpus.load(config.data.directory)
    plan = plan_of(config, data)
    arrays: dict[str, np.ndarray] = {}

    def keep(kind: str, rounded: bool, shape: PaddedBatch | None) -> None:
        stream = batches.batches(data.epochs, plan, Position(), 0, 1, rounded)
        sides = ((batch.source_BxS, batch.target_BxT) for batch in stream)
        wanted = (each for each in sides if shape is None or shape_of(*each) == shape)
        for index, (source, target) in enumerate(itertools.islice(wanted, WARMUP_STEPS + STEPS)):
            arrays[f"{kind}_{index}_source"] = source.astype(np.uint16)
            arrays[f"{kind}_{index}_target"] = target.astype(np.uint16)

    keep("all", False, None)
    keep("common", True, common_shape(plan))
    sources = sentences(data)
    for tokens in SEARCH_TOKENS:
        for index, rows in enumerate(cut_by_tokens([len(ids) for ids in sources], tokens)):
            batch = padded([sources[row] for row in rows])
            arrays[f"search_{tokens}_{index}"] = batch.astype(np.uint16)
    meta = {
        "preset": preset,
        "model": dataclasses.asdict(config.model),
        "vocabulary": vocabulary(data),
        "label_smoothing": config.training.label_smoothing,
        "warmup_steps": WARMUP_STEPS,
        "search_tokens": SEARCH_TOKENS,
        "sentences": len(sources),
    }
    np.savez(WORK / "batches.npz", meta=np.array(json.dumps(meta)), **arrays)


def plan_of(config: Config, data: corpus.DataDirectory) -> BatchPlan:
    """The plan that a run of this configuration has."""
    training = config.training
    return BatchPlan.of_data(data, config.data.stages, training.tokens_per_step, training.seed)


def shape_of(source_BxS: np.ndarray, target_BxT: np.ndarray) -> PaddedBatch:
    """The shape of a batch."""
    return PaddedBatch(*source_BxS.shape, target_BxT.shape[1])


def common_shape(plan: BatchPlan) -> PaddedBatch:
    """The shape, as it is rounded for XLA, that most steps have: one program serves them all."""
    shapes = (plan.padded_shapes(plan.epoch(epoch), 1) for epoch in range(8))
    each = (PaddedBatch(*map(int, one)) for three in shapes for one in zip(*three, strict=True))
    counts = collections.Counter(shape.rounded for shape in each)
    return counts.most_common(1)[0][0]


if __name__ == "__main__":
    main()

"""Few shapes for the batches of many: XLA compiles a program for each.

A shape is rows x (source length, target length), of what one rank computes in a step. The plan is
left alone: the same sentences meet in the same steps, and only the padding of a step grows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import PaddedBatch

MOST = 64
"""shapes, and so programs"""
MORE_PADDING = 0.05
"""padded tokens that may come on top, over all steps, as a share of those without rounding"""
_EPOCHS = 2
"""of each stage that are looked at: the next ones have much the same shapes"""
_SHAPES_SEEN = 1000
"""most frequent shapes of these epochs that are weighed; it takes memory of their square"""
_ROWS_TO, _LENGTHS_TO = (2, 4, 8, 16), (1, 2, 3, 4)
"""multiples to which shapes are rounded, to have more to choose from"""
_SLACKS = np.arange(0, 0.51, 0.01)


@dataclasses.dataclass(frozen=True, eq=False)
class FewShapes:
    """Shapes that stand for many others: those that one of them holds with little more padding.

    No small number of shapes holds all: 64 for all 1,616 of a simulated epoch of WMT (31,200
    tokens, 4 ranks) would cost 16 % more padding. So the frequent ones are rounded, 68 % of the
    steps there, and the others stay as they are.
    """

    shapes_Nx3: np.ndarray
    """int64, rows, source length and target length"""
    slack: float
    """by how much, as a share, a step may grow"""
    share: float
    """of the steps that are rounded, in the epochs that were looked at"""
    more_padding: float
    """padded tokens that come on top, as a share, over all steps of these epochs"""

    def rounded(self, shape: PaddedBatch) -> PaddedBatch:
        """The smallest that holds a shape, or that shape itself, if none does with little padding.

        Args:
            shape: of a step.
        """
        few_Nx3 = self.shapes_Nx3
        holds_N = (few_Nx3 >= shape).all(1) & (_tokens(few_Nx3) <= self._most_tokens(shape))
        if not holds_N.any():
            return shape
        rows, source, target = few_Nx3[np.where(holds_N, _tokens(few_Nx3), np.inf).argmin()]
        return PaddedBatch(int(rows), int(source), int(target))

    def __contains__(self, shape: object) -> bool:
        """Whether it is one of them: (rows, source length, target length)."""
        return bool((self.shapes_Nx3 == shape).all(1).any())

    def __iter__(self) -> Iterator[PaddedBatch]:
        """All of them, the one that most steps are rounded to first."""
        return (PaddedBatch(*map(int, shape)) for shape in self.shapes_Nx3)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.shapes_Nx3)

    def _most_tokens(self, shape: PaddedBatch) -> float:
        return (1 + self.slack) * float(_tokens(np.array(shape)))


def choose(
    plan: BatchPlan, size: int, fits: Callable[[np.ndarray], np.ndarray] | None = None
) -> FewShapes:
    """At most `MOST` shapes that hold as many steps as `MORE_PADDING` allows.

    Args:
        plan: of the training corpus.
        size: number of ranks.
        fits: which of some shapes [N, 3] fit into the memory, bool [N]; None: all.
    """
    numbers = {first + number for first in plan.first_epochs for number in range(_EPOCHS)}
    epochs = [plan.padded_shapes(plan.epoch(number), size) for number in sorted(numbers)]
    all_Nx3 = np.concatenate([np.stack(shapes, 1) for shapes in epochs])
    seen_Nx3, counts_N = np.unique(all_Nx3, axis=0, return_counts=True)
    most_N = np.sort(np.argsort(-counts_N, kind="stable")[:_SHAPES_SEEN])
    seen_Nx3, counts_N = seen_Nx3[most_N], counts_N[most_N]
    offered_Mx3 = _offered(seen_Nx3)
    if fits is not None:
        offered_Mx3 = offered_Mx3[fits(offered_Mx3)]
    grown_MxN = _tokens(offered_Mx3)[:, None].astype(np.float32) / _tokens(seen_Nx3)
    for dimension in range(3):
        grown_MxN[offered_Mx3[:, None, dimension] < seen_Nx3[None, :, dimension]] = np.inf
    # More slack holds more steps and pads more: the most that is allowed, by halving.
    low, high = 0, len(_SLACKS) - 1
    best = _cover(offered_Mx3, grown_MxN, seen_Nx3, counts_N, _SLACKS[0])
    while low < high:
        middle = (low + high + 1) // 2
        found = _cover(offered_Mx3, grown_MxN, seen_Nx3, counts_N, _SLACKS[middle])
        if found.more_padding <= MORE_PADDING:
            low, best = middle, found
        else:
            high = middle - 1
    share = best.share * float(counts_N.sum() / len(all_Nx3))
    return dataclasses.replace(best, share=share)


def _cover(
    offered_Mx3: np.ndarray, grown_MxN: np.ndarray, seen_Nx3: np.ndarray, counts_N: np.ndarray,
    slack: float,
) -> FewShapes:  # fmt: skip
    """Of the shapes offered, again and again the one that holds most steps not yet held."""
    holds_MxN = grown_MxN <= 1 + slack
    gain_M, left_N = _weights(holds_MxN, counts_N), counts_N > 0
    chosen: list[int] = []
    while len(chosen) < MOST and gain_M.max() > 0:
        chosen.append(int(gain_M.argmax()))
        new_N = holds_MxN[chosen[-1]] & left_N
        gain_M = gain_M - _weights(holds_MxN[:, new_N], counts_N[new_N])
        left_N &= ~new_N
    grown_N = grown_MxN[chosen].min(0)
    grown_N = np.where(grown_N <= 1 + slack, grown_N, 1)
    tokens_N = _tokens(seen_Nx3) * counts_N
    return FewShapes(
        offered_Mx3[chosen],
        float(slack),
        float(counts_N[~left_N].sum() / counts_N.sum()),
        float((tokens_N * grown_N).sum() / tokens_N.sum() - 1),
    )


def _weights(holds_MxN: np.ndarray, counts_N: np.ndarray) -> np.ndarray:
    """How many steps each shape holds, [M]; whole numbers that float32 adds up exactly."""
    return holds_MxN.astype(np.float32) @ counts_N.astype(np.float32)


def _offered(seen_Nx3: np.ndarray) -> np.ndarray:
    """Shapes to choose from: those seen, and the same rounded up in several ways."""
    offered = [seen_Nx3]
    for rows_to in _ROWS_TO:
        for lengths_to in _LENGTHS_TO:
            multiple_3 = np.array([rows_to, lengths_to, lengths_to])
            offered.append(-(-seen_Nx3 // multiple_3) * multiple_3)
    return np.unique(np.concatenate(offered), axis=0)


def _tokens(shapes: np.ndarray) -> np.ndarray:
    """Source and target tokens with padding, of shapes [..., 3]."""
    return shapes[..., 0] * (shapes[..., 1] + shapes[..., 2])

"""The weights of a model in parts of equal size, each to be read and written as one vector."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Piece(NamedTuple):
    """Rows of one weight."""

    weight: int
    """number of the weight"""
    first: int
    """its first row"""
    last: int
    """the row after the last"""


Fragment = tuple[Piece, ...]
"""rows of neighbouring weights"""


def cut(shapes: Sequence[Sequence[int]], count: int) -> list[Fragment]:
    """Fragments of equal size, as far as rows allow; the large shared matrix is cut, too.

    Args:
        shapes: of the weights, one dimension or more each.
        count: wanted number of fragments; less where there are not so many rows.
    """
    row_sizes = [int(np.prod(shape[1:])) for shape in shapes]
    starts = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    edges = [round(int(starts[-1]) * number / count) for number in range(count + 1)]
    fragments = []
    for low, high in itertools.pairwise(edges):
        rows = (
            Piece(weight, *(
                # Rounded alike at the end of one fragment and the beginning of the next.
                int(np.clip(round((edge - start) / size), 0, shape[0])) for edge in (low, high)
            ))
            for weight, (shape, size, start) in enumerate(zip(shapes, row_sizes, starts[:-1],
                                                              strict=True))
        )  # fmt: skip
        fragment = tuple(piece for piece in rows if piece.first < piece.last)
        if fragment:
            fragments.append(fragment)
    return fragments


def read(weights: Sequence[tf.Variable], fragment: Fragment) -> tf.Tensor:
    """The values of a fragment as one vector."""
    return tf.concat(
        [tf.reshape(weights[piece.weight][piece.first : piece.last], [-1]) for piece in fragment], 0
    )


def write(weights: Sequence[tf.Variable], fragment: Fragment, values_N: tf.Tensor) -> None:
    """Give a fragment the values of a vector."""
    for (number, first, last), part in zip(
        fragment, _split(weights, fragment, values_N), strict=True
    ):
        weight, rows = weights[number], part
        # Not `weight[first:last].assign`: after it each reading of the weight would be a copy.
        if last - first < weight.shape[0]:
            rows = tf.concat([weight[:first], part, weight[last:]], 0)
        weight.assign(rows)


def _split(
    weights: Sequence[tf.Variable], fragment: Fragment, values_N: tf.Tensor
) -> Iterator[tf.Tensor]:
    shapes = [[piece.last - piece.first, *weights[piece.weight].shape[1:]] for piece in fragment]
    parts = tf.split(values_N, [int(np.prod(shape)) for shape in shapes])
    return (tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True))

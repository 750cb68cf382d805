"""Stateless dropout: every mask is a pure function of (seed, step, rank, site)."""

from typing import Any

import tensorflow as tf

SITES_PER_STEP = 1024
_LEVELS = 1 << 16
_PHILOX = tf.random.Algorithm.PHILOX.value  # what TensorFlow takes on a CPU and on a GPU
_UNITS_PER_WORD = 4
_UNITS_PER_COUNT = 8  # Philox makes 128 bits of each value of its counter (Salmon et al. 2011)
_SITES_AT_ONCE = 32
"""sites whose keys and counters travel to a GPU together"""


class Dropout:
    """Hands each dropout site of one training step its own random bits.

    Bits are drawn as 64-bit words and read as four 16-bit numbers, a quarter of the random
    numbers that one float per unit costs. The share dropped is a multiple of 2^-16.

    Sizes and the like, which TensorFlow needs on the host, are never computed on a GPU.

    Args:
        seed_2: int32 [2], different for each training step and rank; the second number is spaced
            by `SITES_PER_STEP`, because sites count up from it.
        rows: of a slice of a batch its first row and their number, int64 scalars: it gets these
            rows of the masks that the whole batch gets. None: it is the whole.
    """

    def __init__(self, seed_2: tf.Tensor, rows: tuple[tf.Tensor, tf.Tensor] | None = None) -> None:
        self._seed_2, self._rows = seed_2, rows
        self._sites = 0
        self._keys_counters: list[tuple[tf.Tensor, tf.Tensor]] = []
        """Philox's key and counter of each site, for some sites ahead"""

    def __call__(self, x: tf.Tensor, rate: float) -> tf.Tensor:
        """Drop a share of the units of x, any shape and floating dtype; scale up the others."""
        dropped = min(round(rate * _LEVELS), _LEVELS - 1)
        if dropped == 0:
            return x
        site = self._sites
        self._sites += 1
        if site >= SITES_PER_STEP:
            raise ValueError(f"More than {SITES_PER_STEP} dropout sites in one step.")
        if self._rows is None:
            numbers = self._numbers(x, site)
        else:
            numbers = self._numbers_of_rows(x, site, *self._rows)
        scale = tf.constant(_LEVELS / (_LEVELS - dropped), x.dtype)
        kept = tf.where(numbers >= tf.constant(dropped, tf.uint16), scale, tf.zeros([], x.dtype))
        return _times(x, kept)

    def _numbers(self, x: tf.Tensor, site: int) -> tf.Tensor:
        """A uint16 for each unit."""
        while site >= len(self._keys_counters):
            self._keys_counters += self._some_keys_counters(len(self._keys_counters))
        key, counter = self._keys_counters[site]
        shape = tf.shape(x)
        if x.shape.rank and (x.shape[-1] or 1) % _UNITS_PER_WORD == 0:
            words = tf.concat([shape[:-1], [x.shape[-1] // _UNITS_PER_WORD]], 0)
            return tf.reshape(_drawn(words, key, counter), shape)
        units = tf.size(x)
        numbers = _drawn([(units + _UNITS_PER_WORD - 1) // _UNITS_PER_WORD], key, counter)
        return tf.reshape(tf.reshape(numbers, [-1])[:units], shape)

    def _numbers_of_rows(
        self, x: tf.Tensor, site: int, first: tf.Tensor, rows: tf.Tensor
    ) -> tf.Tensor:
        """The same numbers from the middle on: Philox counts, so that any of them can be had."""
        shape = tf.shape(x)  # not in the scope below, which would bring all of x to the host
        with tf.device("CPU:0"):
            units = tf.reduce_prod(tf.cast(shape, tf.int64))
            skipped = first * (units // rows)
            key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=self._seed_of(site))
            counts = tf.stack([skipped // _UNITS_PER_COUNT, tf.zeros([], tf.int64)])
            counter = tf.bitcast(tf.bitcast(counter, tf.int64) + counts, tf.uint64)
            start = skipped % _UNITS_PER_COUNT
            end = start + units
            words = tf.stack([(end + _UNITS_PER_WORD - 1) // _UNITS_PER_WORD])
            start_1, end_1 = tf.stack([start]), tf.stack([end])
        numbers = tf.reshape(_drawn(words, key, counter), [-1])
        return tf.reshape(tf.strided_slice(numbers, start_1, end_1), shape)

    def _some_keys_counters(self, first: int) -> list[tuple[tf.Tensor, tf.Tensor]]:
        with tf.device("CPU:0"):
            keys, counters = zip(*(
                tf.raw_ops.StatelessRandomGetKeyCounter(seed=self._seed_of(first + site))
                for site in range(_SITES_AT_ONCE)
            ), strict=True)  # fmt: skip
            # As float64, because nothing splits whole numbers of 64 bits on a GPU.
            together = [tf.bitcast(tf.concat(words, 0), tf.float64) for words in (keys, counters)]
        pieces = (
            [tf.bitcast(piece, tf.uint64) for piece in tf.split(words, _SITES_AT_ONCE)]
            for words in together
        )
        return list(zip(*pieces, strict=True))

    def _seed_of(self, site: int) -> tf.Tensor:
        return self._seed_2 + tf.constant([0, site])


def no_dropout(x: tf.Tensor, rate: float) -> tf.Tensor:
    """What evaluation and decoding use instead of `Dropout`."""
    return x


def step_seed(seed: int, step: tf.Tensor, rank: int) -> tf.Tensor:
    """The seed of a step (an int64 scalar) on one rank, int32 [2]: ranks need different masks."""
    with tf.device("CPU:0"):
        first = tf.constant((seed * 1_000_003 + rank) % (1 << 31), tf.int32)
        second = tf.cast(step % ((1 << 31) // SITES_PER_STEP), tf.int32) * SITES_PER_STEP
        return tf.stack([first, second])


def _drawn(words: Any, key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
    """uint16 [..., 4]: the parts of 64-bit words of this shape."""
    drawn = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=words, key=key, counter=counter, alg=_PHILOX, dtype=tf.uint64
    )
    return tf.bitcast(drawn, tf.uint16)


@tf.custom_gradient
def _times(x: tf.Tensor, kept: tf.Tensor) -> Any:
    """x times kept, of equal shape. The automatic gradient would see whether one is broadcast."""
    return x * kept, lambda dy: (dy * kept, None)

"""Stateless dropout: every mask is a pure function of (seed, step, rank, site)."""

import tensorflow as tf

SITES_PER_STEP = 1024
_LEVELS = 1 << 16
_PHILOX = tf.random.Algorithm.PHILOX.value  # what TensorFlow takes on a CPU and on a GPU
_UNITS_PER_COUNT = 8  # Philox makes 128 bits of each value of its counter (Salmon et al. 2011)


class Dropout:
    """Hands each dropout site of one training step its own random bits.

    Bits are drawn as 64-bit words and read as four 16-bit numbers, a quarter of the random
    numbers that one float per unit costs. The share dropped is a multiple of 2^-16 and the kept
    units are scaled by exactly its inverse, so the expectation is unchanged.

    Args:
        seed_2: int32 [2], different for each training step and rank; the second number is spaced
            by `SITES_PER_STEP`, because sites count up from it.
        rows: the first row and the number of rows, int64 scalars, of which a slice of a batch is
            made: it gets these rows of the masks that the whole batch gets. None: it is the whole.
    """

    def __init__(self, seed_2: tf.Tensor, rows: tuple[tf.Tensor, tf.Tensor] | None = None) -> None:
        self._seed_2, self._rows = seed_2, rows
        self._sites = 0

    def __call__(self, x: tf.Tensor, rate: float) -> tf.Tensor:
        """Drop a share of the units of x, any shape and floating dtype; scale up the others."""
        dropped = min(round(rate * _LEVELS), _LEVELS - 1)
        if dropped == 0:
            return x
        site = self._sites
        self._sites += 1
        if site >= SITES_PER_STEP:
            raise ValueError(f"More than {SITES_PER_STEP} dropout sites in one step.")
        units = tf.size(x, out_type=tf.int64)
        numbers = self._numbers(units, self._seed_2 + tf.constant([0, site]))
        scale = tf.constant(_LEVELS / (_LEVELS - dropped), x.dtype)
        kept = tf.where(numbers >= tf.constant(dropped, tf.uint16), scale, tf.zeros([], x.dtype))
        return x * tf.reshape(kept, tf.shape(x))

    def _numbers(self, units: tf.Tensor, seed_2: tf.Tensor) -> tf.Tensor:
        if self._rows is None:
            words = tf.random.stateless_uniform(
                [(units + 3) // 4], seed_2, minval=None, maxval=None, dtype=tf.uint64
            )
            return tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:units]
        first, rows = self._rows
        # The same numbers from the middle on: Philox counts, so that any of them can be had.
        skipped = first * (units // rows)
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed_2)
        counts = tf.stack([skipped // _UNITS_PER_COUNT, tf.zeros([], tf.int64)])
        start = skipped % _UNITS_PER_COUNT
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[(start + units + 3) // 4],
            key=key,
            counter=tf.bitcast(tf.bitcast(counter, tf.int64) + counts, tf.uint64),
            alg=_PHILOX,
            dtype=tf.uint64,
        )
        return tf.reshape(tf.bitcast(words, tf.uint16), [-1])[start : start + units]


def no_dropout(x: tf.Tensor, rate: float) -> tf.Tensor:
    """What evaluation and decoding use in place of `Dropout`."""
    del rate
    return x


def step_seed(seed: int, step: tf.Tensor, rank: int) -> tf.Tensor:
    """The seed of one training step on one rank, int32 [2].

    Args:
        seed: of the run.
        step: int64 scalar, optimizer steps done.
        rank: of this process; ranks see different sentences and need different masks.
    """
    first = tf.constant((seed * 1_000_003 + rank) % (1 << 31), tf.int32)
    second = tf.cast(step % ((1 << 31) // SITES_PER_STEP), tf.int32) * SITES_PER_STEP
    return tf.stack([first, second])

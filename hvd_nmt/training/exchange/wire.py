"""Float32 numbers as float16 on their way between hosts, with a scale for each block.

float16 ends at 65,504, and below 6e-5 it loses digits: gradients, and the steps of weights, lie far
outside. So each block of neighbours is scaled by a power of two that puts its largest number just
below 2^15, and the inverse travels with it, as the bits of two more float16. A number arrives to 11
bits, if it is not 2^29 times smaller than one of its neighbours. NaN and Inf stay.

N numbers, K blocks of `BLOCK` numbers.
"""

from __future__ import annotations

import tensorflow as tf

BLOCK = 1024
"""numbers that have a scale in common; it adds two to them"""
PAYLOAD = BLOCK + 2

# The exponent of a float32 is stored as 8 bits, with 127 for 2^0.
_MANTISSA_BITS = 23
_LARGEST = 127 + 14
"""stored exponent of the numbers from 2^14 up to 2^15, where the largest of a block is brought"""
_MOST_SCALE = 253
"""stored exponent of the largest scale whose inverse is a normal number"""


def encoded(x_N: tf.Tensor) -> tf.Tensor:
    """Numbers, float32 [N], N a multiple of `BLOCK`, as they travel: float16 [K, PAYLOAD].

    That is to be moved as it is, not to be calculated with.
    """
    x_KxB = tf.reshape(x_N, [-1, BLOCK])
    largest_Kx1 = tf.reduce_max(tf.abs(x_KxB), 1, keepdims=True)
    exponent = tf.bitwise.right_shift(tf.bitcast(largest_Kx1, tf.int32), _MANTISSA_BITS)
    scale = tf.clip_by_value(127 + _LARGEST - exponent, 1, _MOST_SCALE)
    numbers_KxB = tf.cast(x_KxB * _power_of_two(scale), tf.float16)
    inverse_Kx2 = tf.reshape(tf.bitcast(_power_of_two(254 - scale), tf.float16), [-1, 2])
    return tf.concat([numbers_KxB, inverse_Kx2], 1)


def decoded(payload_KxP: tf.Tensor) -> tf.Tensor:
    """What `encoded` was given, rounded to 11 bits: float32 [K * BLOCK]."""
    numbers_KxB, inverse_Kx2 = payload_KxP[:, :BLOCK], payload_KxP[:, BLOCK:]
    inverse_Kx1 = tf.reshape(tf.bitcast(inverse_Kx2, tf.float32), [-1, 1])
    return tf.reshape(tf.cast(numbers_KxB, tf.float32) * inverse_Kx1, [-1])


def _power_of_two(stored_exponent: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tf.bitwise.left_shift(stored_exponent, _MANTISSA_BITS), tf.float32)

#!/usr/bin/env bash
# tf_keras 2.21.0, Keras 3.15.1: Adam never changes a bfloat16 weight, and Nadam makes it NaN.
#
# Guess: with a gradient of ones each of Adam's steps is about the learning rate, in bfloat16 as in float32: three steps
#   of 0.125 take a weight from 1 to about 0.625. Rounding costs a digit, and no more.
# Seen:  Adam leaves the weight at 1.0, with no warning, and Nadam gives NaN. Both round beta_2 = 0.999, the default,
#   to the type of the variable, where it is 1. So the correction of the bias, 1 - beta_2^t, is 0. It is a factor of
#   Adam's step and a divisor of Nadam's. beta_2 = 0.98, the Transformer's, is less than 1 in bfloat16 and learns.
# What follows: a model whose weights are bfloat16 (dtype policy "bfloat16", not "mixed_bfloat16") learns with Adam
#   only where beta_2 is below 0.998; its loss is the only sign.
#
# Needs Python 3.11 or 3.12 and PyPI; installs into a temporary folder. Ends with 1 if this is no longer so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip=("$work/venv/bin/pip" install -q)
"${pip[@]}" tensorflow-cpu==2.21.0 keras==3.15.1 2>/dev/null || "${pip[@]}" tensorflow==2.21.0 keras==3.15.1
"${pip[@]}" --no-deps tf_keras==2.21.0
CUDA_VISIBLE_DEVICES='' "$work/venv/bin/python" - 2>/dev/null <<'END'
import keras
import tensorflow as tf
import tf_keras


def weight_after(optimizer, weight, dtype):
    """The value of a weight, 1 before, after three steps with a gradient of 1."""
    for _ in range(3):
        optimizer.apply_gradients([(tf.ones([1], dtype), weight)])
    return round(float(tf.cast(tf.convert_to_tensor(weight), "float32")[0]), 2)


for library, variable in ((tf_keras, tf.Variable), (keras, keras.Variable)):
    optimizers = library.optimizers
    weights = {}
    for dtype in ("float32", "bfloat16"):
        weights[dtype] = [
            weight_after(optimizer, variable(tf.ones([1], dtype), dtype=dtype), dtype)
            for optimizer in (
                optimizers.Adam(0.125),
                optimizers.Adam(0.125, beta_2=0.98),
                optimizers.Nadam(0.125),
            )
        ]
    print(library.__name__, library.__version__, "Adam, Adam with 0.98, Nadam:", weights)
    assert weights["float32"] == [0.63, 0.63, 0.68], "it has changed"
    adam, adam_98, nadam = weights["bfloat16"]
    assert adam == 1.0 and nadam != nadam, "it has changed"
    assert 0.6 < adam_98 < 0.66, "it has changed"
END

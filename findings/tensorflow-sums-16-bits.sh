#!/usr/bin/env bash
# TensorFlow 2.21.0 on a CPU: which sum of 16-bit numbers stands still depends on the operation and the type.
#
# Guess: the gradient of tf.nn.bias_add and tf.reduce_sum over the same axis add the same rows, so they are wrong
#   together: both stop at 256 in bfloat16 and at 2,048 in float16, or neither does.
# Seen:  of 65,536 rows of ones, in bfloat16 the gradient of bias_add is 512 and reduce_sum 65,536; in float16 it is
#   the other way round: reduce_sum is 8,192, and bias_add adds in float32 (65,504, the most, is passed: inf). For
#   8,192 rows bfloat16's bias_add gives 256, float16's reduce_sum is right.
# What follows: a bias that is added with bias_add learns from a wrong gradient in bfloat16 on CPUs; with the operator
#   + it does in float16, once there are enough rows.
#
# Needs Python 3.11 or 3.12 and PyPI; installs into a temporary folder. Ends with 1 if this is no longer so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q tensorflow-cpu==2.21.0 2>/dev/null || "$work/venv/bin/pip" install -q tensorflow==2.21.0
CUDA_VISIBLE_DEVICES='' "$work/venv/bin/python" - 2>/dev/null <<'END'
import tensorflow as tf

found = {}
for dtype in ("bfloat16", "float16"):
    for rows in (8192, 65_536):
        ones, bias = tf.ones([rows, 8], dtype), tf.zeros([8], dtype)
        with tf.GradientTape() as tape:
            tape.watch(bias)
            y = tf.nn.bias_add(tf.zeros([rows, 8], dtype), bias)
        gradient = tape.gradient(y, bias)
        found[dtype, rows] = float(gradient[0]), float(tf.reduce_sum(ones, 0)[0])
print("TensorFlow", tf.__version__, "bias_add's gradient and reduce_sum:", found)
assert found == {
    ("bfloat16", 8192): (256.0, 8192.0),
    ("bfloat16", 65_536): (512.0, 65_536.0),
    ("float16", 8192): (8192.0, 8192.0),
    ("float16", 65_536): (float("inf"), 8192.0),
}, "it has changed"
END

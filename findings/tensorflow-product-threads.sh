#!/usr/bin/env bash
# TensorFlow 2.21 on a processor: the bits of ones @ matrix depend on the number of threads, those of reduce_sum do not.
#
# Guess: each column of the product is summed by one thread, in one order; the sum splits the rows over its threads.
# Seen:  with 1, 2, 3 and 4 threads float32 products of 4,096 and 20,000 rows have other bits; the sums of the same
#   matrices are equal. oneDNN splits the rows, TensorFlow's own sum does not split by threads.
# What follows: who takes the product, which is faster, as the gradient of a bias or of a layer norm gets other weights
#   with two ranks of one thread than with one rank of two.
#
# Needs Python 3 and PyPI; installs into a temporary folder. Ends with 1 if this is no longer so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q tensorflow-cpu==2.21.0 2>/dev/null || "$work/venv/bin/pip" install -q tensorflow==2.21.0
cat >"$work/bits.py" <<'END'
import hashlib
import sys

import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))


@tf.function
def sums(x):
    return tf.matmul(tf.ones([1, tf.shape(x)[0]]), x)[0], tf.reduce_sum(x, 0)


draws = np.random.default_rng(1)
for rows in (4096, 20_000):
    found = sums(tf.constant(draws.normal(size=(rows, 256)).astype(np.float32)))
    print(rows, *(hashlib.sha256(x.numpy().tobytes()).hexdigest()[:8] for x in found))
END
for threads in 1 2 3 4; do
    CUDA_VISIBLE_DEVICES='' "$work/venv/bin/python" "$work/bits.py" "$threads" 2>/dev/null >"$work/$threads"
    echo "$threads threads: rows, product, sum:" $(cat "$work/$threads")
done
products=$(cut -d' ' -f1,2 "$work"/[1-4] | sort -u | wc -l)
sums=$(cut -d' ' -f1,3 "$work"/[1-4] | sort -u | wc -l)
echo "different products: $products of 2 matrices, different sums: $sums"
[ "$products" -gt 2 ] && [ "$sums" = 2 ] || { echo "it has changed"; exit 1; }

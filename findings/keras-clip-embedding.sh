#!/usr/bin/env bash
# tf_keras 2.21.0, Keras 3.15.1: clipping does not bound the gradient of an embedding whose token is repeated.
#
# Guess: clipnorm=1 and global_clipnorm=1 bound the norm of the gradient that is applied, and clipvalue=1 its values,
#   the same for a table that is read by tf.gather, as the layer Embedding does, and by a product with one-hot rows:
#   the gradients are equal.
# Seen:  the gradient of tf.gather has a row for each token, repeated ones too, and is clipped before rows of the same
#   token are added. A token that stands 64 times in a batch moves by 8, the root of 64, with either norm, and by 64
#   in each value with clipvalue. By one-hot rows the norm is 1 and the value 1.
# What follows: frequent tokens (and padding, unless it is masked) pass the bound, by more in larger batches. Tied
#   embeddings do not, as their gradient is dense. Where rows cancel, global_clipnorm shortens all gradients too much.
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

tokens = [1] * 64
lookups = {
    "gather": lambda table: tf.gather(table, tokens),
    "one-hot": lambda table: tf.one_hot(tokens, 4) @ table,
}
for library, variable in ((tf_keras, tf.Variable), (keras, keras.Variable)):
    steps = {}
    for option in ("clipnorm", "global_clipnorm", "clipvalue"):
        for name, lookup in lookups.items():
            table = variable(tf.zeros([4, 4]))
            optimizer = library.optimizers.SGD(1.0, **{option: 1.0})
            weights = table if library is tf_keras else table.value
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(lookup(weights))
            optimizer.apply_gradients([(tape.gradient(loss, weights), table)])
            step = tf.convert_to_tensor(table)
            size = tf.reduce_max(tf.abs(step)) if option == "clipvalue" else tf.norm(step)
            steps[name, option] = round(float(size), 3)
    print(library.__name__, library.__version__, steps)
    assert list(steps.values()) == [8, 1, 8, 1, 64, 1], "it has changed"
END

"""A script: steps in four slices, then in one; prints the peak of its memory before and after."""

import json
from pathlib import Path

import tensorflow as tf

from hvd_nmt.config import ModelConfig, TrainingConfig
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import devices, horovod, optimizer
from hvd_nmt.training.step import TrainingModel

ROWS, LENGTH = 512, 16
MODEL = ModelConfig(
    encoder_layers=1, decoder_layers=1, width=128, heads=2, feed_forward_width=512
)  # fmt: skip


def peak_bytes():
    """Of this program alone: getrusage tells what was there before it, too."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main():
    rank = horovod.init()
    devices.keep_freed_memory()
    ids = 4 + tf.reshape(tf.range(ROWS * LENGTH), [ROWS, LENGTH]) % 490
    tokens = tf.fill([2], float(ROWS * LENGTH))
    peaks = []
    for slices in (4, 1):
        config = TrainingConfig(micro_batches=slices)
        transformer = Transformer(MODEL, 500, "float32", seed=1)
        model = TrainingModel(transformer, config, rank)
        model.compile(optimizer=optimizer.build(config, "float32", model.trained, model.exchange))
        step = model.make_train_function()
        for rows in (2, ROWS):  # first the graph and TensorFlow's own memory
            batch = {"source": ids[:rows], "target": ids[:rows], "tokens": tokens}
            step(iter([batch | {"sentences": tf.zeros([1])}]))
            if rows == ROWS or not peaks:
                peaks.append(peak_bytes())
    print(json.dumps(peaks))


if __name__ == "__main__":
    main()

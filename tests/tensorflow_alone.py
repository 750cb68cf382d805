"""Restores checkpoints by their `.meta`, in a process that has TensorFlow but not this package."""

import sys

import numpy as np

import toy

SOURCE = np.array([[5, 9, 30, 1, 0, 0], [7, 8, 50, 61, 12, 1]], np.int32)
TARGET = np.array([[40, 33, 1, 0], [6, 77, 71, 1]], np.int32)

# Run with -I (no PYTHONPATH, no current directory), and any import of the package is an error.
_SCRIPT = """
import sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hvd_nmt", "horovod"):
            raise ImportError(name)

sys.meta_path.insert(0, Forbid())
import numpy as np
import tensorflow as tf

folder, *prefixes = sys.argv[1:]
for number, prefix in enumerate(prefixes):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        saver = tf.compat.v1.train.import_meta_graph(prefix + ".meta")
        saver.restore(session, prefix)
        feed = {name + ":0": np.load(f"{folder}/{name}.npy") for name in ("source", "target")}
        variables = {v.op.name: v for v in tf.compat.v1.global_variables()}
        np.savez(f"{folder}/{number}.npz", **session.run({"logits": "logits:0", **variables}, feed))
assert not {"hvd_nmt", "horovod"} & {name.split(".")[0] for name in sys.modules}
"""


def restored(prefixes, folder, python=sys.executable):
    """What TensorFlow alone has after `saver.restore`, and computes of SOURCE and TARGET.

    Args:
        prefixes: of the checkpoints.
        folder: an existing empty folder.
        python: the interpreter, which may have another TensorFlow than this one.

    Returns:
        For each prefix its logits (BxTxV), and the values of its variables by their names.
    """
    np.save(folder / "source.npy", SOURCE)
    np.save(folder / "target.npy", TARGET)
    words = "-I", "-c", _SCRIPT, folder, *prefixes
    toy.python(*words, program=python, cwd=folder, env=toy.environment(folder))
    return [dict(np.load(folder / f"{number}.npz")) for number in range(len(prefixes))]

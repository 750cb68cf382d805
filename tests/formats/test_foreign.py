"""A run directory made of another program's model, whatever that program was."""

import os

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints import contents

# A model with Adam's moments, each value of them its own, written where Horovod cannot be imported.
WITHOUT_HOROVOD = """
import sys
sys.modules["horovod"] = None
import numpy as np
from pathlib import Path
from hvd_nmt import config
from hvd_nmt.checkpoints.state import weights_by_path
from hvd_nmt.formats import foreign
from hvd_nmt.model.transformer import Transformer

model = config.ModelConfig(1, 1, 16, 2, 32)
weights = {path: x.numpy() for path, x in weights_by_path(Transformer(model, 40)).items()}
moments = foreign.Moments(
    {path: x + 1 for path, x in weights.items()}, {path: x + 2 for path, x in weights.items()})
made = foreign.ForeignModel(model, weights, moments, 7, b"pieces", {"what": "a test"})
foreign.write(made, config.presets()["demo"][1], Path("run"))
"""


def test_moments_are_written_without_horovod(toy_commands, tmp_path):
    done = toy_commands.run(WITHOUT_HOROVOD, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = contents.read(tmp_path / "run" / "model.ckpt-7")
    assert (found.step, found.predicted_bytes) == (7, found.model_bytes)
    reader = tf.train.load_checkpoint(os.fspath(found.prefix))
    keys = [v.name for v in found.variables if v.group in contents.WEIGHTS]
    for key in keys:
        for number, kind in enumerate("mv", start=1):
            moment = reader.get_tensor(key.replace("model", f"optimizer/{kind}", 1))
            np.testing.assert_array_equal(moment, reader.get_tensor(key) + number)

"""Train a Keras Transformer for machine translation with Horovod, and explain the run."""

import os

__version__ = "0.1.0"

# Horovod's Keras support needs Keras 2, and TensorFlow decides between Keras 2 and 3 when it is
# first imported. Every rank imports this package before TensorFlow, so this is the one safe place.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

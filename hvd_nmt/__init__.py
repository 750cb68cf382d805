"""Train a Keras Transformer for machine translation with Horovod, and explain the run."""

import hashlib
import os
from pathlib import Path

__version__ = "0.2.0"

# Horovod's Keras support needs Keras 2, and TensorFlow decides between Keras 2 and 3 when it is
# first imported. Every rank imports this package before TensorFlow, so this is the one safe place.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def code_hash() -> str:
    """Give the sha256 over all modules of the package and their paths, equal where the code is."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()

"""TensorFlow's import without the lines that its C++ code prints whatever one asks of it."""

from __future__ import annotations

import os


def import_tensorflow() -> None:
    """Import TensorFlow while standard error goes nowhere.

    Its CUDA libraries complain about each other on every import, GPU or not, before any log level
    applies. An import that fails raises as ever.
    """
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import tensorflow  # noqa: F401
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)

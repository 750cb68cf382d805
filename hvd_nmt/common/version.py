"""Which hvd_nmt this is: its version, and a hash of its code."""

import hashlib
from pathlib import Path

__version__ = "0.2.0"
_PACKAGE = Path(__file__).parents[1]


def code_hash() -> str:
    """Give the sha256 over all modules of the package and their paths, equal where the code is."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()

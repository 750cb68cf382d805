"""Which weights a pattern names, such as "encoder" or "decoder/0/*".

A weight is known by its path in the model, as in a checkpoint: `encoder/0/attention/qkv`.
"""

import fnmatch
import re
from collections.abc import Sequence

from hvd_nmt.common.errors import ConfigError

# A stack ends with a layer normalisation of its own, which is of no use without it.
_STACKS = {
    "encoder": ("encoder", "encoder_norm"), "decoder": ("decoder", "decoder_norm"),
    "embedding": ("embedding", "source_embedding"),
}  # fmt: skip


def frozen(paths: Sequence[str], patterns: str) -> set[str]:
    """The paths, of those of all weights of a model, that stay as they are.

    `patterns` is `training.freeze`: separated by commas or spaces, each is a glob in which `*` also
    stands for slashes, and names what is below it too. `encoder` and `decoder` include their last
    normalisation, `embedding` the source's own matrix, if there is one.

    Raises:
        ConfigError: a pattern names no weight, or together they leave none to train.
    """
    found: set[str] = set()
    for pattern in patterns.replace(",", " ").split():
        globs = [glob for part in _STACKS.get(pattern, (pattern,)) for glob in (part, f"{part}/*")]
        named = {path for path in paths for glob in globs if fnmatch.fnmatchcase(path, glob)}
        if not named:
            kinds = dict.fromkeys(re.sub(r"/\d+/", "/*/", path) for path in paths)
            raise ConfigError(
                f"training.freeze: no weight is called {pattern!r}; the weights are "
                f"{', '.join(kinds)}."
            )
        found |= named
    if len(found) == len(paths):
        raise ConfigError(
            f"training.freeze {patterns!r} leaves no weight to train: name fewer of them."
        )
    return found

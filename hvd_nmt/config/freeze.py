"""Which weights a pattern names, such as "encoder" or "decoder/0/*". No TensorFlow here.

A weight is known by its path in the model, as in a checkpoint: `encoder/0/attention/qkv`.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Collection, Sequence

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
    for pattern in re.split(r"[,\s]+", patterns.strip(", \t\n")) if patterns else ():
        named = _named(paths, pattern)
        if not named:
            raise ConfigError(
                f"training.freeze: no weight is called {pattern!r}{_nearest(pattern, paths)}; "
                f"the weights are {', '.join(_kinds(paths))}."
            )
        found |= named
    if len(found) == len(paths):
        raise ConfigError(
            f"training.freeze {patterns!r} leaves no weight to train: name fewer of them."
        )
    return found


def _named(paths: Collection[str], pattern: str) -> set[str]:
    globs = [glob for part in _STACKS.get(pattern, (pattern,)) for glob in (part, f"{part}/*")]
    return {path for path in paths for glob in globs if fnmatch.fnmatchcase(path, glob)}


def _nearest(pattern: str, paths: Collection[str]) -> str:
    """Of whole paths and of their beginnings, such as encoder/0."""
    known = {path[: match.start()] for path in paths for match in re.finditer("/|$", path)}
    near = difflib.get_close_matches(pattern, sorted(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _kinds(paths: Collection[str]) -> list[str]:
    """The paths with `*` for the number of a layer, each once."""
    return list(dict.fromkeys(re.sub(r"/\d+/", "/*/", path) for path in paths))

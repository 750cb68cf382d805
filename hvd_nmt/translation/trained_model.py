"""The Python interface to a trained model: text in, text or scores out; made by `hvd_nmt.load`."""

import warnings
from collections.abc import Iterable
from typing import final

import numpy as np

from hvd_nmt.translation.engine import Engine


@final
class TrainedModel:
    """Translates and scores text as `hvd_nmt.translate` does.

    Args:
        engine: models, tokenizers and settings.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def translate(self, lines: Iterable[str]) -> list[str]:
        """The best translation of each line.

        Args:
            lines: one sentence each, or text of any length; a blank line has an empty translation.

        Returns:
            As many lines, in the same order. What happened to a line (it was split or cut, or the
            model gave nothing) is a UserWarning.

        Raises:
            TypeError: it is one string, whose letters would be translated one by one.
            ConfigError: it needs more memory than there is.
        """
        if isinstance(lines, str):
            raise TypeError("lines is one string: give a list of lines.")
        return list(self.engine.stream(lines, warn=_warn))

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[float]:
        """How probable the model finds given translations.

        Args:
            pairs: source and translation.

        Returns:
            For each pair the natural logarithm of the probability of the translation, summed over
            its tokens and its end. A text longer than the model reads is cut, with a UserWarning.

        Raises:
            ConfigError: it needs more memory than there is, or the backend cannot score.
        """
        both = list(pairs)
        scored = self.engine.score([pair[0] for pair in both], [pair[1] for pair in both])
        for index, text in scored.warnings:
            _warn(index + 1, text)
        return [float(np.sum(logps_T, dtype=np.float64)) for logps_T in scored.logps]


def _warn(number: int, text: str) -> None:
    warnings.warn(f"line {number}: {text}", stacklevel=3)

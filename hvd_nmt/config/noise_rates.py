"""Noise in the training sentences: how often which."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from hvd_nmt.common.errors import ConfigError


@dataclass(frozen=True)
class NoiseConfig:
    """Noise in training sentences, drawn anew each time a pair comes; each is a share in [0, 1).

    Web and e-mail addresses, numbers and all that is no word of letters stays as it is.
    """

    upper_case: float = 0.0
    """share of the pairs that are written in capitals, on both sides"""
    title_case: float = 0.0
    """share of the pairs in which each word gets a capital, on both sides"""
    no_punctuation: float = 0.0
    """share of the pairs that lose their last punctuation mark, on both sides"""
    typos: float = 0.0
    """share of the words of a source with a typing error: two letters change places, one is missing
    or doubled, or is that of the key beside it"""
    spaces: float = 0.0
    """share of the words of a source that are written as one with the next, or as two"""
    copies: float = 0.0
    """share of the pairs that get an emoji or a web address at one end, the same on both sides, so
    that the model learns to copy it"""

    def __post_init__(self) -> None:
        for name, rate in vars(self).items():
            if not 0 <= rate < 1:
                raise ConfigError(f"data.noise.{name} is {rate}: give a share in [0, 1).")
        if self.upper_case + self.title_case > 1:
            raise ConfigError(
                "data.noise.upper_case and data.noise.title_case share the pairs: together they "
                "must be at most 1."
            )

    @property
    def is_on(self) -> bool:
        """Whether any sentence is changed."""
        return any(astuple(self))

"""The options of a search for translations. No TensorFlow here: they become command-line flags."""

import dataclasses
import math
from typing import Any, Literal

from hvd_nmt.common.errors import ConfigError

# A translation may be this much longer than its source (Vaswani et al. 2017, section 6.1).
EXTRA_TOKENS = 50
_LEAST = {
    "beam_size": 1, "n_best": 1, "length_penalty": 0, "coverage_penalty": 0, "min_length": 0,
    "max_length": 0, "no_repeat_ngram": 0, "top_k": 0, "seed": 0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How translations are searched for. Lengths are in tokens, eos included."""

    beam_size: int = 4
    """hypotheses kept per sentence, 1: greedy and fastest"""
    normalization: Literal["auto", "gnmt", "marian"] = "auto"
    """form of the length penalty; gnmt: ((5+length)/6)^alpha; marian: length^alpha, and the end of
    Hugging Face's generate(). auto: marian for a model imported from Marian, else gnmt"""
    length_penalty: float | None = None
    """alpha, more gives longer lines (default: 0.6, with marian 1); 0 is no penalty"""
    coverage_penalty: float = 0.0
    """beta, the weight of source tokens that got too little attention; 0: off"""
    n_best: int = 1
    """translations of each sentence, best first; at most the beam size"""
    min_length: int = 0
    """fewest tokens of a translation; 0: any"""
    max_length: int = 0
    """most tokens of a translation, 0: 50 above the source"""
    no_repeat_ngram: int = 0
    """tokens in a row that no translation repeats, 0: off"""
    sample: bool = False
    """draw translations at random, by their probability; --beam-size is then unused"""
    temperature: float = 1.0
    """divisor of the logits before a draw; below 1 the probable becomes more probable"""
    top_k: int = 0
    """draw among so many most probable tokens, 0: all"""
    top_p: float = 1.0
    """draw among tokens with this share of probability; they are the most probable (nucleus)"""
    seed: int = 1
    """seed of the draws; a sentence's draws depend on it and on the sentence's number only"""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:  # NaN fails every comparison
                raise ConfigError(
                    f"{_flag(name)} is {value}: give a finite number of at least {least}."
                )
        least, most = self.min_length, self.max_length
        if 0 < most < least:
            raise ConfigError(f"--min-length {least} is above --max-length {most}: swap them.")
        if self.seed >= 1 << 64:
            raise ConfigError(f"--seed is {self.seed}: give a number below 2^64.")
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"--temperature is {self.temperature}: give a number above 0.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"--top-p is {self.top_p}: give a share above 0 and up to 1.")
        if self.sample:
            return
        if self.n_best > self.beam_size:
            raise ConfigError(
                f"--n-best {self.n_best} is above --beam-size {self.beam_size}: a beam has no"
                " more translations than hypotheses, so raise the beam size."
            )
        for name, neutral in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0)):
            if getattr(self, name) != neutral:
                raise ConfigError(f"{_flag(name)} {getattr(self, name)} needs --sample: add it.")

    @property
    def alpha(self) -> float:
        """The length penalty, whether it was given or not."""
        if self.length_penalty is not None:
            return self.length_penalty
        return 1.0 if self.normalization == "marian" else 0.6

    def penalty(self, length: Any) -> Any:
        """What the log-probability of a hypothesis of this length is divided by.

        The length in tokens, eos included, at least 1, is a number or a tensor of float32.

        Source: Wu et al. 2016 (arXiv 1609.08144), equation 14, for gnmt.
        """
        if self.normalization == "marian":
            return length**self.alpha
        return ((5.0 + length) / 6.0) ** self.alpha

    @property
    def hypotheses(self) -> int:
        """Hypotheses of a sentence that are extended side by side."""
        return self.n_best if self.sample else self.beam_size


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"

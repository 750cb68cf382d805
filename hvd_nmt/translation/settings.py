"""How to translate, as options of a command line. No TensorFlow here."""

import dataclasses
from typing import Any, Literal

from tyro.conf import OmitArgPrefixes

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import Precision
from hvd_nmt.formats import Quantization
from hvd_nmt.model.decoding import Decoding

Backend = Literal["tensorflow", "ctranslate2"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to translate."""

    to: str = ""
    """language to translate to, with a model of several: puts its tag, such as <2de>, in front of
    each line that begins with none"""
    batch_tokens: int = 4096
    """source tokens, padding included, translated at once; less needs less memory"""
    long_lines: Literal["split", "cut"] = "split"
    """a line with more tokens than the model reads: split, at the end of a sentence or word if
    there is one, and its parts translated one by one; or cut, and the rest left out"""
    backend: Backend = "tensorflow"
    """what computes; ctranslate2 is faster and is made from the checkpoint when first asked for"""
    precision: Precision = "auto"
    """arithmetic of --backend tensorflow; auto: to translate, bfloat16 or float16 on GPUs that are
    good at it; float32 on processors, and wherever scores are wanted"""
    quantization: Quantization = "float32"
    """how --backend ctranslate2 stores weights; int8 is faster and a little less exact"""
    threads: int = 0
    """processor threads; 0: one per core, shared among the ranks of a host"""
    decoding: OmitArgPrefixes[Decoding] = dataclasses.field(default_factory=Decoding)

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise ConfigError(f"--batch-tokens is {self.batch_tokens}: give 1 or more.")
        if self.threads < 0:
            raise ConfigError(f"--threads is {self.threads}: give 1 or more, or 0 for all cores.")
        if self.quantization != "float32" and self.backend != "ctranslate2":
            raise ConfigError(
                f"--quantization {self.quantization} needs --backend ctranslate2; for TensorFlow "
                "there is --precision."
            )
        if self.precision != "auto" and self.backend != "tensorflow":
            raise ConfigError(
                f"--precision {self.precision} is for --backend tensorflow; for "
                f"{self.backend} there is --quantization."
            )

    def exact(self) -> "Settings":
        """The same for scores: float32 where it was left open."""
        if self.precision != "auto" or self.backend != "tensorflow":
            return self
        return dataclasses.replace(self, precision="float32")

    def output_options(self) -> dict[str, Any]:
        """Option -> value, of the options that the translations depend on."""
        own: dict[str, Any] = {
            "long_lines": self.long_lines,
            "backend": self.backend,
            "precision": self.precision,
        }
        own |= {"to": self.to} if self.to else {}
        return own | {"quantization": self.quantization} | dataclasses.asdict(self.decoding)

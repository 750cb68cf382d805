"""Which class of model a configuration asks for."""

from hvd_nmt.config import ModelConfig
from hvd_nmt.model.openseq2seq_model import OpenSeq2SeqTransformer
from hvd_nmt.model.transformer import Transformer

ARCHITECTURES = {"bos": Transformer, "openseq2seq": OpenSeq2SeqTransformer}
"""class of each `model.start`"""


def build(
    config: ModelConfig, vocabulary_size: int, compute_dtype: str = "float32", seed: int = 1,
    *, source_vocabulary_size: int = 0,
) -> Transformer:  # fmt: skip
    """The model of a run, with fresh weights; arguments as of `Transformer`."""
    return ARCHITECTURES[config.start](
        config, vocabulary_size, compute_dtype, seed, source_vocabulary_size=source_vocabulary_size
    )

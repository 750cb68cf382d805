"""Other systems' model files, out and in.

    saved_model        out: text in, text out, for any process with TensorFlow and tensorflow_text
    ctranslate2        out: for CTranslate2, with a translator that stands in for our own
    ctranslate2_spec   out: the weights by CTranslate2's names
    openseq2seq        in: checkpoints of NVIDIA OpenSeq2Seq, the recipe's own program
    marian             in: Hugging Face Marian weights, such as OPUS-MT's
    marian_vocabulary  in: their two SentencePiece models as one vocabulary
    foreign            the run directory that an imported model becomes

`hvd_nmt.export` and `hvd_nmt.convert` are their commands.
"""

from typing import Literal

Quantization = Literal["float32", "int8", "int8_float32", "float16", "bfloat16"]
"""how the weights of an exported CTranslate2 model are stored"""

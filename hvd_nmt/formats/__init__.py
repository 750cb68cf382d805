"""Other systems' model files, out and in."""

from typing import Literal

Quantization = Literal["float32", "int8", "int8_float32", "float16", "bfloat16"]
"""how the weights of an exported CTranslate2 model are stored"""

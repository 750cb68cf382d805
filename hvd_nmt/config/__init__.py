"""The configuration of a run: one tree of frozen dataclasses, presets, and YAML files.

config.yaml of a run directory is itself a valid `--config`. No TensorFlow here.
"""

from hvd_nmt.config.mixture import AS_IS, END, Stage, Stages, Weight, weight_of
from hvd_nmt.config.presets import presets
from hvd_nmt.config.schema import (
    BOS,
    EOS,
    PAD,
    UNK,
    CheckpointConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    Precision,
    TelemetryConfig,
    TrainingConfig,
)
from hvd_nmt.config.serialization import (
    as_plain,
    differences,
    load,
    nearest,
    read_yaml,
    save,
)

__all__ = [
    "AS_IS",
    "BOS",
    "END",
    "EOS",
    "PAD",
    "UNK",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "EvaluationConfig",
    "ModelConfig",
    "Precision",
    "Stage",
    "Stages",
    "TelemetryConfig",
    "TrainingConfig",
    "Weight",
    "as_plain",
    "differences",
    "load",
    "nearest",
    "presets",
    "read_yaml",
    "save",
    "weight_of",
]

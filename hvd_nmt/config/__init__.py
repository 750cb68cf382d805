"""The configuration of a run: one tree of frozen dataclasses, presets, and YAML files.

config.yaml of a run directory is itself a valid `--config`. No TensorFlow here.
"""

# ruff: noqa: F401
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
from hvd_nmt.config.serialization import as_plain, differences, load, save

"""The configuration of a run: one tree of frozen dataclasses, presets, and YAML files.

schema         the dataclasses, every field with meaning and unit
presets        the named configurations
unique_keys    YAML in which each name has one value
serialization  YAML files, differences, wrong names
command_line   the command line of a run, and of any other command
schedule       the learning rate of each step
exchange       how hosts share what their ranks learn, decided
mixture        how much of each corpus the steps of a run hold, stage by stage
precision      the arithmetic that suits some hardware
compute_capability  which GPUs a library's CUDA code runs on
freeze         which weights `training.freeze` means

The values of a run are written to `config.yaml` in the run directory, which is itself a valid
`--config`. No TensorFlow here.
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

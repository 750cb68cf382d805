"""The named configurations."""

import dataclasses
from pathlib import Path

from hvd_nmt.config import schema
from hvd_nmt.config.schema import Config, ModelConfig, TrainingConfig

_MUON = TrainingConfig(
    max_steps=2000, learning_rate=0.006, decay="linear", warmup_steps=50, optimizer="muon",
    muon_rate_factor=3.3, adam_beta2=0.98, weight_decay=0.1,
)  # fmt: skip
"""docs/speedrun.md"""


def presets() -> dict[str, tuple[str, Config]]:
    """The named configurations: name -> (one line of explanation, configuration)."""
    demo = Config(
        # Less than an epoch: dropout would have nothing to prevent.
        model=ModelConfig(2, 2, 128, 4, 512, max_length=96, positions="rotary", dropout=0.0),
        training=dataclasses.replace(
            _MUON, max_steps=450, tokens_per_step=1024, learning_rate=0.01, warmup_steps=40
        ),
        # Five evaluations at least: with fewer, no report can tell whether a run overfits.
        evaluation=schema.EvaluationConfig(every_steps=90, sentences=200),
        checkpoints=schema.CheckpointConfig(every_steps=200),
    )
    small = dataclasses.replace(
        demo,
        run_dir=Path("runs/small"),
        data=schema.DataConfig(directory=Path("data/embedded-en-de-8k"), vocabulary_size=8000),
        model=ModelConfig(positions="rotary"),
        training=_MUON,
        evaluation=schema.EvaluationConfig(every_steps=200, sentences=200),
    )
    multi30k = dataclasses.replace(
        small,
        run_dir=Path("runs/multi30k"),
        data=schema.DataConfig(Path("data/multi30k"), corpus="files", vocabulary_size=8000),
        model=ModelConfig(2, 2, positions="rotary"),
        training=dataclasses.replace(_MUON, max_steps=2450, tokens_per_step=1024),
    )
    base = dataclasses.replace(
        small,
        run_dir=Path("runs/base"),
        data=schema.DataConfig(Path("data/wmt16-en-de"), corpus="files", vocabulary_size=32768),
        model=ModelConfig(
            6, 6, 512, 8, 2048, max_length=256, attention_dropout=0.1, feed_forward_dropout=0.1
        ),
        training=TrainingConfig(max_steps=300_000, tokens_per_step=31_200, log_every=100),
        evaluation=schema.EvaluationConfig(every_steps=4000, sentences=0, beam_size=4),
        checkpoints=schema.CheckpointConfig(every_steps=1000),
    )
    big = dataclasses.replace(
        base,
        run_dir=Path("runs/big"),
        model=dataclasses.replace(
            base.model, width=1024, heads=16, feed_forward_width=4096, dropout=0.3
        ),
    )
    return {
        "demo": ("2+2 layers, 128 wide, Muon, embedded corpus: minutes on two CPU cores", demo),
        "small": ("3+3 layers, 256 wide, vocabulary 8,000, Muon, embedded corpus", small),
        "multi30k": ("2+2 layers, 256 wide, Muon, Multi30k prepared in data/multi30k", multi30k),
        "base": ("the recipe: transformer-base, 6+6 layers, 512 wide, vocabulary 32,768", base),
        "big": ("transformer-big, 6+6 layers, 1024 wide", big),
        "base-muon": ("base with Muon and rotary positions; not tried at scale", _with_muon(base)),
        "big-muon": ("big with Muon and rotary positions; not tried at scale", _with_muon(big)),
    }


def _with_muon(recipe: Config) -> Config:
    """A recipe with Muon; lower rates and decay than `_MUON`, for it has many more steps."""
    return dataclasses.replace(
        recipe,
        run_dir=Path(f"{recipe.run_dir}-muon"),
        model=dataclasses.replace(recipe.model, positions="rotary"),
        training=dataclasses.replace(
            recipe.training, optimizer="muon", muon_rate_factor=3.3, decay="linear",
            learning_rate=0.002, warmup_steps=2000, adam_beta2=0.98, weight_decay=0.01,
        ),
    )  # fmt: skip

"""Turn a model that another program trained into a run directory.

    python -m hvd_nmt.convert --from openseq2seq --vocabulary m_common.model --heads 8 \\
        --checkpoint 'logs/best_models/val_loss=1.5943-step-44012' --out runs/imported
    python -m hvd_nmt.convert --from marian --model opus-mt-en-de --out runs/opus
    python -m hvd_nmt.translate --run runs/imported < in.txt > out.txt

openseq2seq: a checkpoint of NVIDIA OpenSeq2Seq's Transformer. Its sizes are read from its weights,
but for the number of attention heads (num_heads in the configuration it was trained with; 8 in
transformer-base): give --heads, for a wrong number makes a model that translates, only worse.
Weights and Adam's moments are
imported in float32, also those of a run in mixed precision, so `hvd_nmt.train --config
runs/imported/config.yaml` goes on with it, in float32 or bfloat16, on data that `hvd_nmt.prepare
--vocabulary runs/imported/spm.model` has encoded. Of another optimizer than Adam only the weights
are imported; a new run can begin with them (--init-from).

marian: a folder with config.json, model.safetensors, vocab.json, source.spm and target.spm, as
Hugging Face keeps OPUS-MT models, and target_vocab.json where source and target have embeddings of
their own. What cannot be imported is refused: a softmax that is not tied to the embedding of the
target, and whatever else Hugging Face's MarianMTModel itself does not compute. A new run can begin
with its weights (`hvd_nmt.train --init-from`). Where source and target have different SentencePiece
models the run has both, and its data are prepared with both.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.run_files import CONFIG, prepare_options
from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import command_line

if TYPE_CHECKING:
    from hvd_nmt.formats.foreign import ForeignModel


@dataclass(frozen=True)
class Options:
    """What to convert, and where it goes."""

    program: Annotated[Literal["openseq2seq", "marian"], arg(name="from")]
    """the program that trained the model"""
    out: Path
    """run directory to make"""
    checkpoint: Path | None = None
    """openseq2seq: prefix of the checkpoint's files, or its .index file"""
    vocabulary: Path | None = None
    """openseq2seq: the SentencePiece model it was trained with, m_common.model"""
    heads: int = 0
    """openseq2seq: attention heads, num_heads of its configuration"""
    model: Path | None = None
    """marian: folder with the model's files"""
    config: Path | None = None
    """YAML file with values of training and data, for going on with the model; what it does not
    name is that of preset base"""

    def __post_init__(self) -> None:
        own = {"openseq2seq": ("checkpoint", "vocabulary"), "marian": ("model",)}
        for name in own[self.program]:
            if getattr(self, name) is None:
                raise ConfigError(f"--from {self.program} needs --{name}.")
        for program, names in own.items():
            for name in names:
                if program != self.program and getattr(self, name) is not None:
                    raise ConfigError(f"--{name} belongs to --from {program}: leave it out.")
        if self.heads < 0 or (self.program != "openseq2seq" and self.heads):
            raise ConfigError("--heads, at least 1, is for --from openseq2seq.")
        if self.program == "openseq2seq" and not self.heads:
            raise ConfigError(
                "A checkpoint of OpenSeq2Seq does not say how many attention heads its model has: "
                "give --heads, num_heads of its configuration."
            )
        if not self.out.name:
            raise ConfigError("--out is the working directory: give a directory of its own.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return command_line.run("hvd_nmt.convert", Options, convert, str(__doc__), argv)


def convert(options: Options) -> None:
    """Writes the run directory and says what is in it."""
    defaults = configuration.presets()["base"][1]
    if options.config is not None:
        defaults = configuration.load(options.config, defaults)
    # TensorFlow takes seconds to import: not for --help, nor for a mistyped option.
    tensorflow_import.import_tensorflow()
    from hvd_nmt.formats import foreign

    model = _read(options)
    prefix = foreign.write(model, defaults, options.out)
    print("\n".join(_lines(model, prefix)))


def _read(options: Options) -> "ForeignModel":
    if options.program == "marian":
        from hvd_nmt.formats import marian

        assert options.model is not None
        return marian.read(options.model)
    from hvd_nmt.formats import openseq2seq

    assert options.checkpoint is not None
    assert options.vocabulary is not None
    return openseq2seq.read(options.checkpoint, options.vocabulary, options.heads)


def _lines(model: "ForeignModel", prefix: Path) -> list[str]:
    config, run = model.config, prefix.parent
    data = f"data        python -m hvd_nmt.prepare {prepare_options(run)} --out DATA ..."
    train = f"python -m hvd_nmt.train --config {run / CONFIG} --data.directory DATA"
    begin = f"begin with  {train} --run-dir {run}-tuned --init-from {run}"
    own = model.source_vocabulary_size
    return [
        f"model       {model.parameters:,} parameters, {config.encoder_layers}+"
        f"{config.decoder_layers} layers, {config.width} wide, {config.heads} heads, vocabulary "
        f"{f'{own:,} (source) + ' if own else ''}{model.vocabulary_size:,}",
        f"step        {f'{model.step:,}' if model.step else 'unknown'}, "
        f"{'with' if model.moments else 'without'} Adam's moments",
        f"written     {prefix}",
        f"translate   python -m hvd_nmt.translate --run {run} < in.txt > out.txt",
        data,
        f"go on       {train}" if model.moments else begin,
    ]


if __name__ == "__main__":
    sys.exit(main())

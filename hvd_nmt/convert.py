"""Turn a model that another program trained into a run directory.

    python -m hvd_nmt.convert --from openseq2seq --vocabulary m_common.model --heads 8 \\
        --checkpoint 'logs/best_models/val_loss=1.5943-step-44012' --out runs/imported
    python -m hvd_nmt.convert --from marian --model opus-mt-en-de --out runs/opus
    python -m hvd_nmt.translate --run runs/imported < in.txt > out.txt

Options: --from --out --config --checkpoint --vocabulary --heads --model

openseq2seq: its sizes are read from the weights, except the attention heads (8 in
transformer-base). A wrong number makes a model that translates worse. Weights and Adam's moments
are imported in float32. `hvd_nmt.train --config runs/imported/config.yaml` continues, on data of
`hvd_nmt.prepare --vocabulary runs/imported/spm.model`. Of another optimizer than Adam only the
weights are imported; a new run can begin with them (--init-from).

marian: a folder as of OPUS-MT at Hugging Face: config.json, model.safetensors, vocab.json,
source.spm, target.spm, and target_vocab.json for separate embeddings. A new run can begin with the
weights (--init-from), on data prepared with both SentencePiece models.
"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.files import require_free
from hvd_nmt.config import command_line

if TYPE_CHECKING:
    from hvd_nmt.formats.foreign import ForeignModel


@dataclass(frozen=True)
class ConvertOptions:
    """What to convert, and where it goes."""

    program: Annotated[Literal["openseq2seq", "marian"], arg(name="from")]
    """the program that trained the model"""
    out: Path
    """run directory to make"""
    checkpoint: Path | None = None
    """openseq2seq: prefix of the checkpoint's files, or its .index file"""
    vocabulary: Path | None = None
    """openseq2seq: its SentencePiece model, such as m_common.model"""
    heads: int | None = None
    """openseq2seq: attention heads, num_heads of its configuration"""
    model: Path | None = None
    """marian: folder with the model's files"""
    config: Path | None = None
    """YAML file with values of training and data, to train on; others are those of preset base"""

    def __post_init__(self) -> None:
        needed = {"openseq2seq": ("checkpoint", "vocabulary", "heads"), "marian": ("model",)}
        for program, names in needed.items():
            for name in names:
                given = getattr(self, name) is not None
                if program == self.program and not given:
                    raise ConfigError(f"--from {program} needs --{name}.")
                if program != self.program and given:
                    raise ConfigError(f"--{name} belongs to --from {program}: remove it.")
        if not self.out.name:
            raise ConfigError("--out is the working directory: give another directory.")


@command_line.command("hvd_nmt.convert", ConvertOptions, __doc__)
def main(options: ConvertOptions) -> None:
    """Writes the run directory and says what is in it."""
    require_free(options.out)
    base = configuration.presets()["base"][1]
    defaults = configuration.load(options.config, base) if options.config else base
    tensorflow_import.import_tensorflow()
    from hvd_nmt.formats import foreign, marian, openseq2seq

    if options.model is not None:
        model = marian.read(options.model)
    else:
        assert options.checkpoint is not None
        assert options.vocabulary is not None
        assert options.heads is not None
        model = openseq2seq.read(options.checkpoint, options.vocabulary, options.heads)
    print(*_lines(model, foreign.write(model, defaults, options.out)), sep="\n")


def _lines(foreign: "ForeignModel", prefix: Path) -> list[str]:
    model, config, run = foreign.model, foreign.model.config, prefix.parent
    files, rows = RunDirectory(run), model.source_vocabulary_size
    quoted, tuned, config_file = map(shlex.quote, map(str, (run, f"{run}-tuned", files.config)))
    train = f"python -m hvd_nmt.train --config {config_file} --data.directory DATA"
    begin = f"begin with  {train} --run-dir {tuned} --init-from {quoted}"
    return [
        f"model       {model.count_params():,} parameters, {config.encoder_layers}+"
        f"{config.decoder_layers} layers, {config.width} wide, {config.heads} heads, vocabulary "
        f"{f'{rows:,} (source) + ' if rows else ''}{model.vocabulary_size:,}",
        f"step        {f'{foreign.step:,}' if foreign.step else 'unknown'}, "
        f"{'with' if foreign.adam else 'without'} Adam's moments",
        f"written     {prefix}",
        f"translate   python -m hvd_nmt.translate --run {quoted} < in.txt > out.txt",
        f"data        python -m hvd_nmt.prepare {files.prepare_options()} --out DATA ...",
        f"continue    {train}" if foreign.adam else begin,
    ]


if __name__ == "__main__":
    sys.exit(main())

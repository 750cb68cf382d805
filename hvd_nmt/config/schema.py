"""The tree of frozen dataclasses that is the configuration of a run. No TensorFlow here."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from tyro.conf import Fixed

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.mixture import Stages

PAD, EOS, BOS, UNK = 0, 1, 2, 3
"""ids with a meaning, in every vocabulary (the recipe's)"""
ExchangeKind = Literal["float32", "float16", "islands"]
Precision = Literal["auto", "float32", "bfloat16", "float16"]
Decay = Literal[
    "transformer_policy", "inverse_sqrt", "constant", "linear", "cosine", "warmup_stable_decay"
]
Tokenizer = Literal["auto", "13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "none"]
AUTO: Literal["auto"] = "auto"
Count = int | Literal["auto"]
"""a number, or left to the program"""


class Limit(NamedTuple):
    """What a number must be; stands in the type of its field."""

    holds: Callable[[Any], bool]
    wanted: str


_ABOVE_0 = Limit(lambda value: value > 0, "it must be above 0")
_NOT_BELOW_0 = Limit(lambda value: value >= 0, "it must be at least 0")
PositiveInt = Annotated[int, _ABOVE_0]
Size = Annotated[int, Limit(lambda value: 0 < value <= 65_536, "it must be 1 to 65,536")]
PositiveCount = Annotated[Count, _ABOVE_0]
PositiveFloat = Annotated[float, _ABOVE_0]
NaturalInt = Annotated[int, _NOT_BELOW_0]
NaturalCount = Annotated[Count, _NOT_BELOW_0]
NaturalFloat = Annotated[float, _NOT_BELOW_0]
Share = Annotated[float, Limit(lambda value: 0 <= value < 1, "give a share in [0, 1)")]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the prepared data are, and what `train` may prepare by itself."""

    directory: Path = Path("data/embedded-en-de")
    """directory made by hvd_nmt.prepare"""
    corpus: Literal["embedded", "files"] = "embedded"
    """the package's, or files of hvd_nmt.prepare; the package's is prepared where it is missing"""
    vocabulary_size: PositiveInt = 4000
    """joint SentencePiece pieces, for preparing the embedded corpus"""
    allow_change: bool = False
    """resume on other data than those of the checkpoint; the best models then start again"""
    stages: Fixed[Stages] = ()
    """shares of several corpora by step, in a file only, such as [{until: 50000, weights: {clean:
    1, crawled: 3}}, {until: end, weights: {clean: 1}}]; empty: the weights of the data"""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A Transformer (Vaswani et al. 2017) with one matrix for source, target and softmax.

    Where the data have a vocabulary for each side, the source has a matrix of its own.
    The last five fields are for weights from elsewhere, see `hvd_nmt.convert`.
    """

    encoder_layers: Size = 3
    """number of encoder layers"""
    decoder_layers: Size = 3
    """number of decoder layers"""
    width: Size = 256
    """width of the residual stream (d_model), units"""
    heads: Size = 4
    """attention heads; must divide the width"""
    feed_forward_width: Size = 1024
    """hidden width of the feed-forward blocks, units"""
    positions: Literal["sinusoidal", "learned", "marian", "rotary"] = "sinusoidal"
    """position signal; learned needs weights, marian is sinusoidal with Marian's wavelengths,
    rotary turns queries and keys of self-attention instead"""
    max_length: Size = 128
    """longest sentence the model reads or writes, tokens"""
    dropout: Share = 0.1
    """share dropped of embeddings and sub-layer outputs"""
    attention_dropout: Share = 0.0
    """share dropped of the attention weights"""
    feed_forward_dropout: Share = 0.0
    """share dropped of the hidden units of the feed-forward blocks"""
    norm: Literal["pre", "post"] = "pre"
    """layer normalisation; pre: before each sub-layer and at a stack's end; post: after each"""
    norm_epsilon: PositiveFloat = 1e-6
    """small number added to the variance in layer normalisation"""
    activation: Literal["relu", "swish", "gelu"] = "relu"
    """activation function of the hidden units of the feed-forward blocks"""
    biases: Literal["feed-forward", "all"] = "feed-forward"
    """linear maps with a bias; feed-forward: in those blocks; all: in attention and softmax, too"""
    start: Literal["bos", "openseq2seq"] = "bos"
    """tokens before a sentence; openseq2seq: bos before the source, 0 and bos before the target"""

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width % (2 * self.heads):
            raise ConfigError(
                f"model.width {self.width} does not divide evenly among model.heads {self.heads}: "
                f"make the width a multiple of {2 * max(self.heads, 1)}."
            )
        if self.start == "openseq2seq" and self.positions == "learned":
            raise ConfigError(
                "model.start openseq2seq needs more positions than model.positions learned has: "
                "use sinusoidal positions."
            )


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Batches, optimizer and schedule."""

    max_steps: PositiveInt = 1000
    """optimizer steps in all; a resumed run continues to this number"""
    tokens_per_step: PositiveInt = 4096
    """target tokens per step, summed over all ranks"""
    learning_rate: PositiveFloat = 2.0
    """factor of transformer_policy, or the highest rate; 5e-4 is usual with any other decay"""
    decay: Decay = "transformer_policy"
    """how the rate falls after warm-up; transformer_policy, inverse_sqrt: with the root of the
    step; constant: never; linear, cosine: to 0; warmup_stable_decay: only in cooldown_steps"""
    warmup_steps: PositiveInt = 8000
    """steps over which the rate rises"""
    cooldown_steps: NaturalInt = 0
    """last steps, in which the rate falls to 0 in a line; 0: none, as in the recipe"""
    optimizer: Literal["adam", "muon"] = "adam"
    """muon: orthogonal updates for the matrices inside the layers, and Adam for the rest"""
    muon_rate_factor: PositiveFloat = 3.0
    """muon: rate of these matrices, times the learning rate"""
    adam_beta1: Share = 0.9
    """decay of Adam's first moment, and of Muon's momentum"""
    adam_beta2: Share = 0.997
    """decay of Adam's second moment"""
    adam_epsilon: PositiveFloat = 1e-9
    """small number added to the root of Adam's second moment"""
    weight_decay: NaturalFloat = 0.0
    """AdamW: share of each matrix lost in a step, times its learning rate; 0: plain Adam"""
    label_smoothing: Share = 0.1
    """probability mass spread over all wrong tokens"""
    clip_norm: NaturalFloat = 0.0
    """global norm that gradients are scaled down to; 0: never"""
    precision: Precision = "auto"
    """arithmetic: auto, float32, bfloat16 or float16; auto: picked from the hardware"""
    device: Literal["auto", "cpu"] = "auto"
    """auto: the GPUs of a host, else its processor; cpu: the processor"""
    deterministic: bool = False
    """use slower kernels that give the same bits each time on GPUs; processors always do"""
    seed: NaturalInt = 1
    """seed of weights, order of sentences and dropout"""
    log_every: PositiveInt = 25
    """steps between two logged values"""
    micro_batches: PositiveCount = "auto"
    """slices of a rank's batch, to save memory; auto: as many as the fullest GPU asks for, or 1"""
    jit_compile: bool = False
    """let XLA compile for each shape of a batch; pads lengths to multiples of 8, rows by 1/8"""
    exchange: ExchangeKind = "float32"
    """between hosts: float32, float16 or islands. float32, float16: gradients in each step, float16
    half the bytes; islands: hosts train alone and join their weights every sync_every steps"""
    sync_every: PositiveInt = 32
    """islands: steps between two exchanges of weights"""
    stuck_after_s: NaturalCount = "auto"
    """seconds without a sign of life before a rank is killed, 0: never; twice as many where it
    waits. auto: 2 to 30 minutes, learned; 30 for a checkpoint and before anything is learned"""
    max_hours: NaturalFloat = 0.0
    """hours of training over all starts, 0: no limit. After them the run saves, evaluates, ends"""
    ema_decay: Share = 0.0
    """decay of a moving average of the weights, 0: none, 0.999: usual; all but training uses it"""
    init_from: str = ""
    """run or checkpoint whose weights a new run begins with; also --init-from. A run gives its
    best. The optimizer is new; with another vocabulary the pieces that both know keep their rows"""
    freeze: str = ""
    """weights that stay, between commas: encoder, decoder, embedding, patterns like encoder/0/*"""

    def __post_init__(self) -> None:
        if self.exchange == "islands" and self.sync_every == 1:
            raise ConfigError(
                "training.sync_every 1 makes islands exchange in each step, and they then learn "
                "worse than without islands: use 4 or more."
            )
        if self.decay != "transformer_policy" and self.learning_rate >= 0.1:
            raise ConfigError(
                f"training.learning_rate {self.learning_rate:g} is too high. With training.decay "
                f"{self.decay} it is the highest rate, not a factor as with transformer_policy: "
                "use a small number, such as 5e-4."
            )
        if self.decay in ("linear", "cosine") and self.cooldown_steps:
            raise ConfigError(
                f"training.decay {self.decay} already falls to 0 at training.max_steps: set "
                "training.cooldown_steps to 0."
            )
        if self.decay == "warmup_stable_decay" and not self.cooldown_steps:
            raise ConfigError(
                "training.decay warmup_stable_decay needs training.cooldown_steps, the last steps "
                "over which the rate falls to 0: a tenth of training.max_steps is usual."
            )


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Validation loss and BLEU on the dev set, shared by all ranks."""

    every_steps: PositiveInt = 500
    """steps between evaluations; with fewer than 5 after warm-up the report sees no overfitting.
    The last step is always evaluated"""
    sentences: NaturalInt = 500
    """dev sentences translated for BLEU, 0: all; the loss always uses all"""
    beam_size: PositiveInt = 1
    """hypotheses kept while decoding; 1 is greedy and fast"""
    length_penalty: NaturalFloat = 0.6
    """alpha of the length penalty ((5+length)/6)^alpha, by which a score is divided"""
    best_by: Literal["val_loss", "bleu", "chrf"] = "val_loss"
    """best models by val_loss, bleu or chrf; the lowest loss or highest score of the dev set"""
    tokenize: Tokenizer = "auto"
    """how sacreBLEU finds words for BLEU; auto: by the target language, as the run begins"""
    ter: bool = False
    """compute TER, too; it takes seconds of each evaluation, because TER looks for moved words"""
    stop_after: NaturalInt = 0
    """evaluations without gain that end the run, 0: never. They are counted in a row; a gain in
    best_by is more than the half width of BLEU's or chrF's 95 % interval, or 0.01 % of the loss"""
    stop_when_trained: bool = False
    """end the run when twice the steps bring less than 0.5 BLEU; the report's judgement, if sure"""


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written and how many are kept."""

    every_steps: PositiveInt = 500
    """steps between two checkpoints; evaluations and the last step save one, too"""
    keep: PositiveInt = 3
    """newest checkpoints that are kept, model.ckpt-N"""
    keep_best: PositiveInt = 5
    """best checkpoints that are kept, by best_by; such as best_models/val_loss=X-step-N"""


@dataclasses.dataclass(frozen=True)
class TelemetryConfig:
    """Samples of GPUs, network cards and host while training, and the report after it."""

    interval_s: NaturalFloat = 1.0
    """seconds between two samples; 0: no telemetry"""
    report: bool = True
    """write report.html and report.md when the run ends, however it ends"""
    tracker: Literal["none", "mlflow", "wandb"] = "none"
    """show the run in MLflow or Weights & Biases; MLFLOW_TRACKING_URI, WANDB_PROJECT say where"""


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    run_dir: Path = Path("runs/demo")
    """run directory, with all that a run writes; the same command resumes in it"""
    ranks: NaturalInt = 0
    """ranks that the run must have, 0: as many as started"""
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    checkpoints: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    telemetry: TelemetryConfig = dataclasses.field(default_factory=TelemetryConfig)

    def __post_init__(self) -> None:
        require_limits(self)
        if not self.run_dir.name:
            raise ConfigError("run_dir is the working directory: give another --run-dir.")


def require_limits(config: Any, prefix: str = "") -> None:
    """See that numbers are within the limits of their types; `prefix` is that of their names."""
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            require_limits(value, f"{prefix}{name}.")
        for limit in getattr(hint, "__metadata__", ()):
            if not isinstance(limit, Limit) or value == AUTO:
                continue
            if not (limit.holds(value) and value < math.inf):  # NaN fails every comparison
                raise ConfigError(f"{prefix}{name} is {value}: {limit.wanted} and finite.")

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
    """directory written by hvd_nmt.prepare"""
    corpus: Literal["embedded", "files"] = "embedded"
    """embedded: the package's own corpus, prepared on each host where it is missing; files: data
    that hvd_nmt.prepare has written"""
    vocabulary_size: PositiveInt = 4000
    """joint SentencePiece pieces, for preparing the embedded corpus"""
    allow_change: bool = False
    """resume although these are other data than the checkpoint was trained on; the best models then
    start anew"""
    stages: Fixed[Stages] = ()
    """data of several corpora (prepare --corpora), in a file only: how much of each one the steps
    hold, and until which step, such as [{until: 50000, weights: {clean: 1, crawled: 3}}, {until:
    end, weights: {clean: 1}}]; empty: the weights of the data, all the time"""


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
    positions: Literal["sinusoidal", "learned", "marian"] = "sinusoidal"
    """position signal; learned needs weights, marian is sinusoidal with Marian's wavelengths"""
    max_length: Size = 128
    """longest source or target the model reads, subword tokens with eos"""
    dropout: Share = 0.1
    """share dropped of embeddings and of each sub-layer's output"""
    attention_dropout: Share = 0.0
    """share dropped of the attention weights"""
    feed_forward_dropout: Share = 0.0
    """share dropped of the hidden units of the feed-forward blocks"""
    norm: Literal["pre", "post"] = "pre"
    """layer normalisation before each sub-layer and at the end of a stack (pre), or after each
    sub-layer (post)"""
    norm_epsilon: PositiveFloat = 1e-6
    """small number added to the variance in layer normalisation"""
    activation: Literal["relu", "swish", "gelu"] = "relu"
    """activation function of the hidden units of the feed-forward blocks"""
    biases: Literal["feed-forward", "all"] = "feed-forward"
    """linear maps with a bias: those of the feed-forward blocks, or attention and softmax too"""
    start: Literal["bos", "openseq2seq"] = "bos"
    """tokens before a sentence: bos before the target; or, as OpenSeq2Seq has it, bos before the
    source, and a zero vector and bos before the target"""

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width % (2 * self.heads):
            raise ConfigError(
                f"model.width {self.width} cannot be shared evenly by model.heads {self.heads}: "
                f"make the width a multiple of {2 * max(self.heads, 1)}."
            )
        if self.start == "openseq2seq" and self.positions == "learned":
            raise ConfigError(
                "model.start openseq2seq reads more tokens than model.positions learned has "
                "places for: use sinusoidal positions."
            )


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Batches, optimizer and schedule."""

    max_steps: PositiveInt = 1000
    """optimizer steps in all; a resumed run goes on to this number"""
    tokens_per_step: PositiveInt = 4096
    """target tokens per optimizer step, summed over all ranks"""
    learning_rate: PositiveFloat = 2.0
    """factor of the transformer_policy schedule: rate = factor x width^-0.5 x min((s+1)
    warmup^-1.5, (s+1)^-0.5); of the other schedules the highest rate, such as 5e-4"""
    decay: Decay = "transformer_policy"
    """how the learning rate falls after warmup_steps. transformer_policy: as one over the root of
    the step, see learning_rate; inverse_sqrt: the same, from learning_rate itself; constant: not at
    all; linear, cosine: to 0 at max_steps; warmup_stable_decay: not before cooldown_steps"""
    warmup_steps: PositiveInt = 8000
    """steps over which the rate rises"""
    cooldown_steps: NaturalInt = 0
    """last steps, over which the rate falls to 0 in a straight line; 0: none, as in the recipe"""
    adam_beta1: Share = 0.9
    """decay of Adam's first moment"""
    adam_beta2: Share = 0.997
    """decay of Adam's second moment"""
    adam_epsilon: PositiveFloat = 1e-9
    """small number added to the root of Adam's second moment"""
    weight_decay: NaturalFloat = 0.0
    """decoupled weight decay (AdamW): in each step every matrix loses this share of itself times
    the learning rate; norms and biases do not. 0: plain Adam"""
    label_smoothing: Share = 0.1
    """probability mass spread over all wrong tokens"""
    clip_norm: NaturalFloat = 0.0
    """scale gradients down to this global norm; 0: never"""
    precision: Precision = "auto"
    """arithmetic of the forward and backward pass; auto: picked from the hardware"""
    device: Literal["auto", "cpu"] = "auto"
    """auto: the GPUs of a host, and the processor of one that has none; cpu: the processor"""
    deterministic: bool = False
    """use kernels that give the same bits each time on GPUs, too, which is slower; on processors a
    run has the same bits anyway"""
    seed: NaturalInt = 1
    """seed of the initial weights, the order of sentences and dropout"""
    log_every: PositiveInt = 25
    """steps between two logged values"""
    micro_batches: PositiveCount = "auto"
    """slices in which a rank computes its share of a step, one after another, to need less memory;
    auto: as many as the fullest GPU asks for, most often 1; 1 without GPUs"""
    jit_compile: bool = False
    """let XLA compile forward and backward pass, a program for each shape of a batch; lengths are
    then padded to multiples of 8, and rows to at most an eighth more"""
    exchange: ExchangeKind = "float32"
    """what travels between hosts: float32 gradients in each step; float16: the same with half the
    bytes, summed within each host first; islands: each host trains by itself, and the hosts join
    their weights every sync_every steps. After 20 steps a run says what each would give"""
    sync_every: PositiveInt = 32
    """islands: steps from one exchange of weights to the next"""
    stuck_after_s: NaturalCount = "auto"
    """seconds without a sign of life after which a rank is killed, in any section of a run that has
    ended once, before that 30 minutes; twice as long where it waits for others. auto: learned from
    the run, 2 to 30 minutes, 30 for a checkpoint; 0: never"""
    max_hours: NaturalFloat = 0.0
    """hours of training, over all starts, after which the run saves, evaluates and ends; 0: no
    limit"""
    ema_decay: Share = 0.0
    """decay of a moving average of the weights, such as 0.999; 0: none. Validation, BLEU, the best
    models, and all that loads a checkpoint then take the averaged weights"""
    init_from: str = ""
    """run directory (its best checkpoint), or the path of a checkpoint, whose weights a new run
    begins with, at step 0 and with a fresh optimizer; also --init-from. With another vocabulary the
    pieces that both know keep their rows. Empty: random weights"""
    freeze: str = ""
    """weights that stay as they are, separated by commas: encoder, decoder, embedding, or patterns
    such as encoder/0/* and */attention/*; empty: all are trained"""

    def __post_init__(self) -> None:
        if self.exchange == "islands" and self.sync_every == 1:
            raise ConfigError(
                "training.exchange islands with training.sync_every 1 exchanges in each step, and "
                "learns worse than without islands: use 4 or more."
            )
        if self.decay != "transformer_policy" and self.learning_rate >= 0.1:
            raise ConfigError(
                f"training.learning_rate {self.learning_rate:g} is the highest rate with "
                f"training.decay {self.decay}, not a factor as with transformer_policy: use a "
                "small number, such as 5e-4."
            )
        if self.decay in ("linear", "cosine") and self.cooldown_steps:
            raise ConfigError(
                f"training.decay {self.decay} falls to 0 at training.max_steps by itself: leave "
                "training.cooldown_steps at 0."
            )
        if self.decay == "warmup_stable_decay" and not self.cooldown_steps:
            raise ConfigError(
                "training.decay warmup_stable_decay needs training.cooldown_steps, the last steps "
                "over which the rate falls to 0: a tenth of training.max_steps is usual."
            )

    @property
    def stuck_limit_s(self) -> float | None:
        """`stuck_after_s` as a number; None: it is learned."""
        return None if self.stuck_after_s == AUTO else float(self.stuck_after_s)


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Validation loss and BLEU on the dev set, shared by all ranks."""

    every_steps: PositiveInt = 500
    """steps between two evaluations; the last step is always evaluated"""
    sentences: NaturalInt = 500
    """dev sentences translated for BLEU; 0: all (the loss always uses all)"""
    beam_size: PositiveInt = 1
    """hypotheses kept while decoding; 1 is greedy and fast"""
    length_penalty: NaturalFloat = 0.6
    """alpha of the length penalty ((5+length)/6)^alpha, by which a score is divided"""
    best_by: Literal["val_loss", "bleu", "chrf"] = "val_loss"
    """what decides which models are the best: the lowest validation loss, or the highest BLEU or
    chrF of the dev sentences"""
    ter: bool = False
    """compute TER, too: seconds for each evaluation, shared by the ranks, because TER looks for
    moved words"""
    stop_after: NaturalInt = 0
    """end the run when so many evaluations in a row brought no gain in best_by: BLEU and chrF
    by more than the half width of their 95 % interval, the loss by 0.01 %; 0: never"""
    stop_when_trained: bool = False
    """end the run when an evaluation shows that twice the steps would surely bring less than 0.5
    BLEU, as the report judges it"""


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written and how many are kept."""

    every_steps: PositiveInt = 500
    """steps between two checkpoints; the last step is always saved"""
    keep: PositiveInt = 3
    """number of the newest checkpoints model.ckpt-N that are kept"""
    keep_best: PositiveInt = 5
    """number of the best checkpoints best_models/val_loss=X-step-N (bleu=X and so on with
    evaluation.best_by) that are kept"""


@dataclasses.dataclass(frozen=True)
class TelemetryConfig:
    """Samples of GPUs, network cards and host beside the training, and the report after it."""

    interval_s: NaturalFloat = 1.0
    """seconds between two samples; 0: no telemetry"""
    report: bool = True
    """write report.html and report.md when the run ends, however it ends"""
    tracker: Literal["none", "mlflow", "wandb"] = "none"
    """show the run in MLflow or Weights & Biases, too, while it trains; where, their own
    environment variables say, such as MLFLOW_TRACKING_URI or WANDB_PROJECT"""


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    run_dir: Path = Path("runs/demo")
    """run directory: checkpoints, metrics, telemetry; the same command resumes in it"""
    ranks: NaturalInt = 0
    """number of Horovod ranks this run must have; 0: as many as were started"""
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    checkpoints: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    telemetry: TelemetryConfig = dataclasses.field(default_factory=TelemetryConfig)

    def __post_init__(self) -> None:
        require_limits(self)
        if not self.run_dir.name:
            raise ConfigError("run_dir is the working directory: give a directory of its own.")


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

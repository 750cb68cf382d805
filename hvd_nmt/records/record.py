"""A run as the analysis sees it, of this or another program, and the lines that a run records.

What a source does not have is None or empty, and every answer must live with that.
"""

import itertools
from bisect import bisect_left, bisect_right
from dataclasses import KW_ONLY, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from hvd_nmt.config.exchange import Exchange
from hvd_nmt.config.schema import ExchangeKind
from hvd_nmt.data import bleu

Sample = dict[str, Any]
Number = float | None


class Name(NamedTuple):
    """A field's name in metrics.jsonl, and its tag in TensorBoard; NAME/ is one of each corpus."""

    name: str
    tag: str = ""


@dataclass(frozen=True)
class Record:
    """A line of metrics.jsonl, its values in the order of the fields."""

    kind: ClassVar[str]
    time_s: Annotated[Number, Name("time_s")] = field(default=None, kw_only=True)
    """unix time, of an interval that of its end; None: now, or where the log has no clock"""


@dataclass(frozen=True)
class Start(Record):
    """A start of the run, by which its steps were done."""

    kind = "start"
    _: KW_ONLY
    first_step: Annotated[int, Name("first_step")] = 1
    hosts: Annotated[tuple[str, ...], Name("hosts")] = field(default=(), kw_only=False)
    """host of each rank"""
    parameters: Annotated[int | None, Name("parameters")] = None
    gradient_bytes: Annotated[Number, Name("gradient_bytes")] = None
    """bytes of all gradients of a step as they travel"""
    exchange_kind: Annotated[ExchangeKind, Name("exchange")] = field(
        default="float32", kw_only=False
    )
    sync_every: Annotated[int, Name("sync_every")] = field(default=1, kw_only=False)
    all_reduce_s: Annotated[Number, Name("all_reduce_s")] = field(default=None, kw_only=False)
    """seconds of one plain all-reduce of all gradients in float32, as measured before it"""
    tokenizers: Annotated[dict[str, str] | None, Name("tokenizers")] = None
    """tokenizers of BLEU by corpus, "" for all text; None: not recorded"""
    process_started_s: Annotated[Number, Name("process_started_s")] = None
    """unix time of the start of rank 0's process"""
    clock_ahead_s: Annotated[float, Name("clock_ahead_s")] = 0.0
    """seconds by which its times are later than the clock, which was set back"""
    trained_s: Annotated[Number, Name("trained_s")] = None
    """seconds from the first to the last record of each start before, all together"""
    lost_steps: Annotated[int, Name("lost_steps")] = 0
    """number of steps that were logged before and are done again"""
    start_id: Annotated[str | None, Name("start_id")] = None
    """the launcher's name of it"""
    has_end: bool = False
    """whether it ended by itself or by a signal, not by a failure; of a `Run`'s starts"""

    @property
    def exchange(self) -> Exchange:
        """Exchange between the hosts."""
        return Exchange(self.exchange_kind, self.sync_every)


@dataclass(frozen=True)
class Interval(Record):
    """Means over the steps since the interval before; parts of a step are means of the ranks."""

    kind = "train"
    step: Annotated[int, Name("step")]
    """the last step of the interval"""
    _: KW_ONLY
    loss: Annotated[Number, Name("train_loss", "train/loss")] = None
    """training loss per target token, nats, as the program defines it"""
    nll: Annotated[Number, Name("train_nll", "train/nll")] = None
    """cross-entropy per target token, nats"""
    learning_rate: Annotated[Number, Name("learning_rate", "train/learning_rate")] = None
    gradient_norm: Annotated[
        Number, Name("Loss_Optimization/global_gradient_norm", "train/gradient_norm")
    ] = None
    steps_per_s: Annotated[Number, Name("global_step/sec", "train/steps_per_s")] = None
    epoch: Annotated[Number, Name("epoch", "train/epoch")] = None
    tokens_per_s: Annotated[Number, Name("tokens_per_s", "train/tokens_per_s")] = None
    """real source and target tokens of all ranks per second"""
    model_flop_per_s: Annotated[Number, Name("model_flop_per_s", "train/model_flop_per_s")] = None
    """operations of all ranks per second that the model's products need"""
    input_wait_s: Annotated[
        Number, Name("step_time/input_wait_s", "train/step_time/input_wait_s")
    ] = None
    """seconds of waiting for a batch"""
    compute_s: Annotated[Number, Name("step_time/compute_s", "train/step_time/compute_s")] = None
    """seconds of computing"""
    straggler_wait_s: Annotated[
        Number, Name("step_time/straggler_wait_s", "train/step_time/straggler_wait_s")
    ] = None
    """seconds of waiting, its gradients ready, for the slowest rank"""
    communication_s: Annotated[
        Number, Name("step_time/communication_s", "train/step_time/communication_s")
    ] = None
    """seconds of exposed communication: all ranks are ready, the sum is not yet there"""
    step_s: Annotated[Number, Name("step_time/total_s", "train/step_time/total_s")] = None
    """wall time of a step, seconds; the four before are its parts"""
    corpora: Annotated[dict[str, float], Name("corpus/", "train/corpus/")] = field(
        default_factory=dict
    )
    """shares of the sentences, by corpus, where there are several"""
    loss_scale: Annotated[Number, Name("Loss_Optimization/loss_scale", "train/loss_scale")] = None
    """in float16; as OpenSeq2Seq calls it"""
    skipped_steps: Annotated[
        Number, Name("Loss_Optimization/skipped_steps", "train/skipped_steps")
    ] = None
    """number of steps of the run, in float16, that changed no weights"""
    exchange_s: Annotated[Number, Name("step_time/exchange_s", "train/step_time/exchange_s")] = None
    """seconds of exposed exchanges of weights between hosts, a part of `communication_s`"""
    rank_ready_s: Annotated[tuple[float, ...], Name("rank_ready_s")] = ()
    """seconds of each rank from the start of a step to its gradients, input wait included"""
    rank_input_wait_s: Annotated[tuple[float, ...], Name("rank_input_wait_s")] = ()
    """seconds of a step in which each rank waited for a batch"""
    rank_paused_s: Annotated[tuple[float, ...], Name("rank_paused_s")] = ()
    """seconds of a step for which each rank was kept from running; counted one step later"""
    steps: Annotated[int, Name("steps")] = field(default=0, kw_only=False)
    """number of steps that it covers"""
    sentences: Annotated[int | None, Name("sentences")] = None
    """number of sentences that all ranks were fed in these steps"""
    start: int = field(default=0, kw_only=True)
    """number of the run's start in which these steps were done, from 0"""

    @property
    def span_s(self) -> tuple[float, float] | None:
        """Unix times between which its steps ran; None where it has no clock."""
        if self.time_s is None or self.step_s is None:
            return None
        return self.time_s - self.steps * self.step_s, self.time_s


@dataclass(frozen=True)
class Evaluation(Record):
    """Scores after a step; a margin is the half width of a 95 % interval by bootstrap."""

    kind = "eval"
    step: Annotated[int, Name("step")]
    loss: Annotated[Number, Name("eval_loss", "dev/loss")] = None
    """validation loss, nats per target token: smoothed cross-entropy minus the label's entropy"""
    _: KW_ONLY
    nll: Annotated[Number, Name("eval_nll", "dev/nll")] = None
    """cross-entropy per target token, nats"""
    perplexity: Annotated[Number, Name("eval_perplexity", "dev/perplexity")] = None
    pseudo_bleu: Annotated[Number, Name("Eval_BLEU_Score", "dev/pseudo_bleu")] = None
    """the recipe's BLEU, 0 to 1, over subword pieces of arg-max predictions made with the right
    prefix at hand: comparable with the recipe's old curves, no measure of translation quality"""
    bleu: Annotated[Number, Name("sacrebleu", "dev/sacrebleu")] = field(default=None, kw_only=False)
    """sacreBLEU of beam or greedy translations, 0 to 100"""
    chrf: Annotated[Number, Name("chrf", "dev/chrf")] = None
    seconds: Annotated[Number, Name("eval_seconds", "dev/seconds")] = None
    by_corpus: Annotated[
        dict[str, tuple[Number, Number, Number]],
        Name("eval_loss/", "dev/loss/"),
        Name("sacrebleu/", "dev/sacrebleu/"),
        Name("chrf/", "dev/chrf/"),
    ] = field(default_factory=dict)
    """validation loss, BLEU and chrF by corpus, where there are several; None: none was
    translated"""
    ter: Annotated[Number, Name("ter", "dev/ter")] = None
    bleu_margin: Annotated[Number, Name("sacrebleu_margin", "dev/sacrebleu_margin")] = None
    chrf_margin: Annotated[Number, Name("chrf_margin", "dev/chrf_margin")] = None
    """where chrF decides which models are the best"""
    tokenizer: Annotated[str | None, Name("tokenizer")] = None
    """that of BLEU of all text"""
    keep_s: Annotated[Number, Name("keep_s")] = None
    """seconds after it, in which the best models were kept"""
    goodput: Annotated[Number, Name("goodput", "dev/goodput")] = None
    """that of the run before it, see `explain.goodput`"""


@dataclass(frozen=True)
class Samples(Record):
    """First translations of an evaluation."""

    kind = "text"
    step: Annotated[int, Name("step")]
    samples: Annotated[str, Name("samples", "dev/samples")] = ""
    """table of source, reference and translation, in Markdown"""


@dataclass(frozen=True)
class Save(Record):
    """A checkpoint that was written."""

    kind = "save"
    step: Annotated[int, Name("step")]
    wait_s: Annotated[float, Name("wait_s")]
    """seconds on the slowest of those hosts"""
    copies: Annotated[int, Name("copies")]
    """number of hosts that have it, each on another disk"""
    join_s: Annotated[float, Name("join_s")] = 0.0
    """seconds before it, for hosts that train alone to make equal what it holds"""
    others_s: Annotated[float, Name("others_s")] = 0.0
    """seconds after it, until all ranks knew: long where a link is cut"""


@dataclass(frozen=True)
class End(Record):
    """The end of a run, after its last step or before."""

    kind = "end"
    step: Annotated[int, Name("steps")]
    option: Annotated[str | None, Name("reason")] = None
    """dotted name of the value of the configuration that ended it"""
    value: Annotated[Any, Name("value")] = None
    """that value"""
    because: Annotated[str, Name("because")] = ""
    """reason to end before the last step, in words; "": it did not"""


@dataclass(frozen=True)
class Stop(Record):
    """The end of a start that a signal stopped."""

    kind = "stop"


@dataclass(frozen=True)
class HostSamples:
    """What a host's sampler wrote into telemetry/<host>.jsonl."""

    host: str
    header: Sample
    """the newest line of kind "host": what the host is"""
    samples: list[Sample]
    """lines of kind "sample", each with its sampler's `start`, at which counters begin again"""

    def neighbours(self) -> list[tuple[Sample, Sample]]:
        """Neighbouring samples of one start of the sampler."""
        pairs = itertools.pairwise(self.samples)
        return [pair for pair in pairs if pair[0].get("start") == pair[1].get("start")]

    def during(self, interval: Interval) -> list[Sample]:
        """The samples that were taken while the steps of an interval ran."""
        begin_s, end_s = interval.span_s or (0.0, 0.0)
        first = bisect_left(self.samples, begin_s, key=itemgetter("time_s"))
        return self.samples[first : bisect_right(self.samples, end_s, key=itemgetter("time_s"))]


@dataclass(frozen=True)
class Launch:
    """A start of the ranks by `hvd_nmt.launch`; what is not known of it is None."""

    ranks_by_host: dict[str, int]
    resumed_step: int | None = None
    """number of steps done before it; None: it came to no step"""
    last_step: int | None = None
    """last step that it logged, also where a later start made it again"""
    exit_code: int | None = None
    """exit code; None: it continues, or its launcher was killed"""
    sentence: str = ""
    """last message"""
    ended_s: float | None = None
    """unix time of its end"""


@dataclass(frozen=True)
class Run:
    """Everything known about a run."""

    name: str
    """short: the directory's or file's name"""
    path: Path
    source: str
    """"hvd_nmt" or "OpenSeq2Seq" """
    hosts: tuple[str, ...] = ()
    """host of each rank in the newest start"""
    starts: tuple[Start, ...] = ()
    """starts in their order, like all that follows; () where that is not recorded"""
    parameters: int | None = None
    gradient_bytes: float | None = None
    """bytes of all gradients of a step as they travel"""
    max_steps: int | None = None
    saved_step: int | None = None
    """the step of its newest checkpoint"""
    finished: bool = False
    """whether the run recorded its end"""
    stopped: bool = False
    """whether a signal stopped it, without a start since"""
    early_end: End | None = None
    """its end, if it ended itself before its last step"""
    locked: bool | None = None
    """whether its process lives and holds the run directory; None: unknown on this host"""
    started_s: float | None = None
    """unix time of the start of rank 0's process, or else of the first record"""
    startup_s: float | None = None
    """seconds from the start of rank 0's process to its first record, all starts together"""
    pauses: tuple[tuple[float, float, int], ...] = ()
    """unix time of the last record of each start but the newest, seconds to the next process of
    rank 0, steps that the next start did again"""
    ended_s: float | None = None
    """unix time of the last record"""
    config: dict[str, Any] = field(default_factory=dict)
    """the resolved configuration, nested; {} if unknown"""
    environment: dict[str, Any] = field(default_factory=dict)
    """environment.json"""
    manifest: dict[str, Any] = field(default_factory=dict)
    """manifest of the training data: lines, bytes, tokens, truncated; {} if not here"""
    intervals: tuple[Interval, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    tokenizers: dict[str, str] = field(default_factory=dict)
    """tokenizers of BLEU by corpus, "" for all text"""
    saves: tuple[Save, ...] = ()
    not_finite: tuple[int, ...] = ()
    """steps that changed no weight, because of NaN or Inf"""
    telemetry: tuple[HostSamples, ...] = ()
    launches: tuple[Launch, ...] = ()
    """starts by `hvd_nmt.launch`; () where it was started otherwise"""
    problems: tuple[str, ...] = ()
    """sentences on what is missing or damaged"""

    def start_of(self, interval: Interval) -> Start:
        """The start in which the steps of an interval were done."""
        known = self.starts[interval.start : interval.start + 1]
        return known[0] if known else Start(self.hosts)

    def hosts_of(self, interval: Interval) -> tuple[str, ...]:
        """Host of each rank while the steps of an interval were done."""
        return self.start_of(interval).hosts or self.hosts

    def bleu(self, corpus: str = "") -> str:
        """Name of BLEU of a corpus, or of all text."""
        return bleu.name(self.tokenizers.get(corpus, bleu.USUAL))

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return max(1, len(self.hosts))

    @property
    def steps_done(self) -> int:
        """The last step that was recorded; where none was, that of the newest checkpoint."""
        return self.intervals[-1].step if self.intervals else self.saved_step or 0

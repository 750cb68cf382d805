"""A run as the analysis sees it, of this or another program.

What a source does not have is None or empty, and every answer must live with that.
"""

import itertools
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from hvd_nmt.config.exchange import PLAIN, Exchange
from hvd_nmt.data import bleu

Sample = dict[str, Any]


@dataclass(frozen=True)
class Interval:
    """Means over the steps since the interval before; parts of a step are means of the ranks."""

    step: int
    """the last step of the interval"""
    steps: int
    """number of steps that it covers"""
    time_s: float | None
    """unix time of its end; None where the log has no clock"""
    step_s: float | None = None
    """wall time of a step, seconds; the next four are its parts"""
    input_wait_s: float | None = None
    """seconds of waiting for a batch"""
    compute_s: float | None = None
    """seconds of computing"""
    straggler_wait_s: float | None = None
    """seconds of waiting, its gradients ready, for the slowest rank"""
    communication_s: float | None = None
    """seconds of exposed communication: all ranks are ready, the sum is not yet there"""
    exchange_s: float | None = None
    """seconds of exposed exchanges of weights between hosts, a part of `communication_s`"""
    rank_ready_s: tuple[float, ...] = ()
    """seconds of each rank from the start of a step to its gradients, input wait included"""
    rank_input_wait_s: tuple[float, ...] = ()
    """seconds of a step in which each rank waited for a batch"""
    rank_paused_s: tuple[float, ...] = ()
    """seconds of a step for which each rank was kept from running; counted one step later"""
    loss: float | None = None
    """training loss per target token, nats, as the program defines it"""
    learning_rate: float | None = None
    gradient_norm: float | None = None
    tokens_per_s: float | None = None
    """real source and target tokens of all ranks per second"""
    model_flop_per_s: float | None = None
    """operations of all ranks per second that the model's products need"""
    epoch: float | None = None
    start: int = 0
    """number of the run's start in which these steps were done, from 0"""
    sentences: int | None = None
    """number of sentences that all ranks were fed in these steps"""
    corpora: dict[str, float] = field(default_factory=dict)
    """shares of the sentences, by corpus, where there are several"""

    @property
    def span_s(self) -> tuple[float, float] | None:
        """Unix times between which its steps ran; None where it has no clock."""
        if self.time_s is None or self.step_s is None:
            return None
        return self.time_s - self.steps * self.step_s, self.time_s


@dataclass(frozen=True)
class Evaluation:
    """Scores after a step; a margin is the half width of a 95 % interval by bootstrap."""

    step: int
    time_s: float | None
    loss: float | None = None
    """validation loss, nats per target token"""
    bleu: float | None = None
    """sacreBLEU of beam or greedy translations, 0 to 100"""
    bleu_margin: float | None = None
    chrf: float | None = None
    pseudo_bleu: float | None = None
    """the recipe's teacher-forced arg-max BLEU, 0 to 1: no measure of translation quality"""
    seconds: float | None = None
    chrf_margin: float | None = None
    by_corpus: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """validation loss and BLEU by corpus, where there are several; None: none was translated"""


@dataclass(frozen=True)
class Save:
    """A checkpoint that was written."""

    step: int
    wait_s: float
    """seconds on the slowest of those hosts"""
    copies: int
    """number of hosts that have it, each on another disk"""
    join_s: float = 0.0
    """seconds before it, for hosts that train alone to make equal what it holds"""
    others_s: float = 0.0
    """seconds after it, until all ranks knew: long where a link is cut"""


@dataclass(frozen=True)
class EarlyEnd:
    """A run that ended itself before its last step."""

    step: int
    because: str
    """reason, in words"""
    option: str
    """dotted name of the value of the configuration that ended it"""


@dataclass(frozen=True)
class Start:
    """A start of the run, by which its steps were done."""

    hosts: tuple[str, ...]
    """host of each rank"""
    exchange: Exchange = PLAIN
    """exchange between the hosts"""
    all_reduce_s: float | None = None
    """seconds of one plain all-reduce of all gradients in float32, as measured before it"""


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
    early_end: EarlyEnd | None = None
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

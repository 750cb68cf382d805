"""Validation loss and BLEU on the dev set, shared by all ranks."""

import dataclasses
import itertools
import json
import math
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sacrebleu
import tensorflow as tf
from sacrebleu.significance import PairedTest

from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common import progress
from hvd_nmt.common.units import duration
from hvd_nmt.config import EOS, Config
from hvd_nmt.data import bleu
from hvd_nmt.data.batches import evaluation_batches
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.explain.goodput import goodput
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.tokenizer import Tokenizer
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.model.translator import Translator
from hvd_nmt.records import metrics
from hvd_nmt.records.event_store import EventStore
from hvd_nmt.records.record import Evaluation, Number, Samples
from hvd_nmt.training import devices, horovod
from hvd_nmt.training.horovod import Rank

TOKENS_PER_BATCH = 4096
"""padded target tokens decoded at once on each rank"""
_SAMPLES = 5
"""translations kept of each evaluation; the log shows the first"""
BOOTSTRAP = 1000
"""resamples of the dev sentences behind the interval of BLEU"""


class Scores(NamedTuple):
    """One evaluation."""

    evaluation: Evaluation
    """losses of the whole dev set; BLEU, chrF2 and TER of detokenised translations. Of several
    corpora those that have dev sentences"""
    hypotheses: list[str]
    """translations, in the order of the dev set"""
    samples: list[tuple[str, ...]]
    """source, reference and translation of the first few"""
    tokenizers: Mapping[str, str] = {"": bleu.USUAL}
    """of BLEU: by corpus, and "" for all text"""


class Evaluator:
    """Evaluates a model, with the weights it has when called, on the dev set of prepared data.

    `scores`: whether this rank needs the scores. `tokenizers` of BLEU are by corpus, "" for all
    text, as `bleu.tokenizers` gives them.
    """

    def __init__(
        self, transformer: Transformer, data: DataDirectory, config: Config, rank: Rank,
        scores: bool = True, tokenizers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._transformer, self._data, self._config, self._rank = transformer, data, config, rank
        self._scores = scores
        wanted = config.evaluation.tokenize
        self._tokenizers = tokenizers or bleu.tokenizers(wanted, data.manifest)
        self._tokenizer = Tokenizer(data.spm_path)
        sources, references = data.text("dev")
        self._translated = data.manifest.sample("dev", config.evaluation.sentences)
        self.sources = [sources[index] for index in self._translated]
        self.references = [references[index] for index in self._translated]
        by_corpus = {name: of for name, of in data.manifest.by_corpus("dev").items() if of}
        self._corpora = by_corpus or {"": range(len(data.dev))}
        self._dev = {name: data.dev.part(pairs) for name, pairs in self._corpora.items()}
        self._places = {
            name: [place for place, index in enumerate(self._translated) if index in pairs]
            for name, pairs in self._corpora.items()
        }
        decoding = Decoding(
            beam_size=config.evaluation.beam_size, length_penalty=config.evaluation.length_penalty
        )
        self._translator = Translator(transformer, decoding)
        ids = tf.TensorSpec([None, None], tf.int32)
        self._teacher_forced = tf.function(
            tf.autograph.experimental.do_not_convert(self._teacher_forced_step),
            input_signature=[ids, ids],
        )

    def __call__(self, step: int, label: str = "") -> Scores | None:
        """Every rank takes its share, at the same `step`; None on ranks that need no scores.

        `label` is what a reader sees before the share of this rank that is done; "": nothing.
        """
        started_s = time.perf_counter()
        with devices.explain_memory(self._rank, "lower --evaluation.beam-size."):
            losses, pseudo_bleu = self._losses()
            hypotheses = self._translations(label)
        if not self._scores:
            return None
        loss, nll, tokens = np.sum(list(losses.values()), axis=0)
        options, texts = self._config.evaluation, (hypotheses, self.references)
        of_all = self._tokenizers[""]
        score, margin = _score(bleu.metric(of_all), *texts, BOOTSTRAP)
        by_chrf = options.best_by == "chrf"
        chrf, chrf_margin = _score(sacrebleu.CHRF(), *texts, BOOTSTRAP if by_chrf else 1)
        evaluation = Evaluation(
            step, loss / tokens, score,
            nll=nll / tokens,
            perplexity=math.exp(min(nll / tokens, 700)),
            pseudo_bleu=pseudo_bleu,
            chrf=chrf,
            by_corpus=self._by_corpus(losses, hypotheses) if len(self._corpora) > 1 else {},
            ter=_score(bleu.ter(of_all), *texts)[0] if options.ter else None,
            bleu_margin=margin,
            chrf_margin=chrf_margin if by_chrf else None,
            tokenizer=of_all,
            seconds=time.perf_counter() - started_s,
        )  # fmt: skip
        rows = zip(self.sources, self.references, hypotheses, strict=True)
        samples = itertools.islice(rows, _SAMPLES)
        return Scores(evaluation, hypotheses, [*samples], self._tokenizers)

    def _by_corpus(
        self, losses: dict[str, np.ndarray], hypotheses: list[str]
    ) -> dict[str, tuple[Number, Number, Number]]:
        scores = {}
        for name, places in self._places.items():
            loss, _, tokens = losses[name]
            ours, wanted = ([side[i] for i in places] for side in (hypotheses, self.references))
            score = chrf = None
            if places:
                score, _ = _score(bleu.metric(self._tokenizers[name]), ours, wanted)
                chrf, _ = _score(sacrebleu.CHRF(), ours, wanted)
            scores[name] = loss / tokens, score, chrf
        return scores

    def _losses(self) -> tuple[dict[str, np.ndarray], float]:
        """Of each dev corpus its loss, nll and tokens, summed over ranks; and the pseudo-BLEU."""
        rank = self._rank
        tokens_per_batch = TOKENS_PER_BATCH * rank.size
        sums = {name: np.zeros(3) for name in self._dev}
        predictions: dict[int, str] = {}
        for name, dev in self._dev.items():
            first = self._corpora[name].start
            for indices_B, source_BxS, target_BxT in evaluation_batches(
                dev, tokens_per_batch, rank.index, rank.size
            ):
                horovod.heartbeat.sign()
                *batch_sums, best_BxT = self._teacher_forced(source_BxS, target_BxT)
                sums[name] += [float(value) for value in batch_sums]
                for index, ids in zip(indices_B.tolist(), best_BxT.numpy(), strict=True):
                    if index >= 0:  # what is predicted beyond the reference depends on the padding
                        predictions[first + index] = _pieces(ids[: len(dev.target[index])])
        totals = horovod.sum_over_ranks(tf.constant([*sums.values()]), "evaluation").numpy()
        gathered = dict(itertools.chain(*horovod.gather(list(predictions.items()))))
        references = [_pieces(self._data.dev.target[index]) for index in gathered]
        pseudo_bleu = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
        score = pseudo_bleu.corpus_score([*gathered.values()], [references])
        return dict(zip(sums, totals, strict=True)), score.score / 100

    def _translations(self, label: str) -> list[str]:
        """That of each dev sentence that is to be translated."""
        rank, dev = self._rank, self._data.dev
        share = range(rank.index, len(self._translated), rank.size)
        sources = [dev.source[self._translated[place]] for place in share]
        ids = {}
        with progress.progress(len(sources), "sentences", label, shows=bool(label)) as bar:
            for position, hypotheses in self._translator.translate(sources, TOKENS_PER_BATCH):
                horovod.heartbeat.sign()
                ids[share[position]] = hypotheses[0].ids
                bar.update()
        texts = zip(ids, self._tokenizer.decode(ids.values()), strict=True)
        gathered = dict(itertools.chain(*horovod.gather(list(texts))))
        return [gathered[place] for place in range(len(self._translated))]

    def _teacher_forced_step(self, source_BxS: tf.Tensor, target_BxT: tf.Tensor) -> Any:
        transformer = self._transformer
        states_BxTxD = transformer.decode(target_BxT, transformer.encode(source_BxS))
        smoothing = self._config.training.label_smoothing
        loss = transformer.target_loss(states_BxTxD, target_BxT, smoothing)
        best_BxT = tf.argmax(transformer.logits(states_BxTxD), -1, output_type=tf.int32)
        return loss.smoothed, loss.nll, tf.math.count_nonzero(target_BxT), best_BxT


def write(
    scores: Scores, run_dir: Path, store: EventStore, prints: bool = True, keep_s: float = 0.0
) -> None:
    """Write one evaluation down: metrics, TensorBoard, the translations, and a line to read."""
    run, step = RunDirectory(run_dir), scores.evaluation.step
    before = goodput(metrics.run_of(run_dir, metrics.records(run.read_metrics())))
    share = before.share if before else None
    store.write(dataclasses.replace(scores.evaluation, keep_s=keep_s, goodput=share))
    lines = ["| source | reference | translation |", "|---|---|---|"]
    for row in scores.samples:
        cells = (textwrap.shorten(cell, 160).replace("|", "\\|") for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    store.write(Samples(step, "\n".join(lines)))
    run.hypotheses.mkdir(exist_ok=True)
    text = "".join(line + "\n" for line in scores.hypotheses)
    (run.hypotheses / f"dev.{step}.txt").write_text(text, encoding="utf-8")
    if prints:
        progress.say("\n".join(_lines(scores)))


def _lines(scores: Scores) -> Iterator[str]:
    of = scores.evaluation
    words = _words(scores.tokenizers[""], of.loss, of.bleu, of.chrf, f" ± {of.bleu_margin:.2f}")
    if of.ter is not None:
        words += f"  TER {of.ter:.2f}"
    yield f"evaluation  step {of.step:,}  {words}  in {duration(of.seconds or 0.0)}"
    width = max(map(len, of.by_corpus), default=0) + 1
    for corpus, values in of.by_corpus.items():
        yield f"  {corpus + ':':{width}} {_words(scores.tokenizers[corpus], *values)}"
    for sample in scores.samples[:1]:
        for name, text in zip(("source", "reference", "translation"), sample, strict=True):
            yield f"  {name:11}  {textwrap.shorten(text, progress.COLUMNS - 15)}"


def _words(
    tokenizer: str, loss: float | None, score: float | None, chrf: float | None, margin: str = ""
) -> str:
    words = f"validation loss {loss:.4f}"
    if score is not None:
        words += f"  {bleu.name(tokenizer)} {score:.2f}{margin}  chrF {chrf:.2f}"
    return words


def _score(
    metric: sacrebleu.metrics.base.Metric, hypotheses: list[str], references: list[str],
    resamples: int = 1,
) -> tuple[float, float]:  # fmt: skip
    """A score and half the width of its interval, which is 0 if all resamples score 0."""
    if resamples == 1:
        return metric.corpus_score(hypotheses, [references]).score, 0.0
    if isinstance(metric, sacrebleu.BLEU):
        score = metric.corpus_score(hypotheses, [references], n_bootstrap=resamples)
        fields = json.loads(score.format(signature=str(metric.get_signature()), is_json=True))
        return score.score, float(fields.get("confidence_var", 0.0))
    # `corpus_score` takes no mean of resamples where one has a chrF of 0.
    ours = [("", hypotheses)]
    test = PairedTest(ours, {"": metric}, [references], test_type="bs", n_samples=resamples)
    _, (result,) = test()[1].values()
    return float(result.score), float(result.ci)


def _pieces(ids: np.ndarray) -> str:
    """Ids up to the first eos as a line of words, which is all that BLEU looks at."""
    ends = np.flatnonzero(ids == EOS)
    return " ".join(map(str, ids[: ends[0]] if len(ends) else ids))

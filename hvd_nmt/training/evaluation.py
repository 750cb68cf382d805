"""Validation loss and BLEU on the dev set, shared by all ranks."""

import itertools
import json
import math
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sacrebleu
import tensorflow as tf

from hvd_nmt.common.units import duration
from hvd_nmt.config import EOS, Config
from hvd_nmt.data.batches import evaluation_batches
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.loss import cross_entropy
from hvd_nmt.model.tokenizer import Tokenizer
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.model.translator import Translator
from hvd_nmt.telemetry.events import HYPOTHESES_DIR, EventStore
from hvd_nmt.training import devices, horovod
from hvd_nmt.training.horovod import Rank

TOKENS_PER_BATCH = 4096
"""padded target tokens decoded at once on each rank"""
_SAMPLES = 5
"""translations shown after each evaluation"""
BOOTSTRAP = 1000
"""resamples of the dev sentences behind the interval of BLEU"""


class Scores(NamedTuple):
    """One evaluation."""

    val_loss: float
    """smoothed cross-entropy minus the label's entropy, nats per target token, whole dev set"""
    val_nll: float
    """negative log-likelihood, nats per target token; exp of it is the perplexity"""
    bleu: float
    """sacreBLEU of detokenised translations, 0 to 100"""
    bleu_margin: float
    """half width of BLEU's 95 % interval, by bootstrap over the sentences; 0 on ranks that do
    not write it down"""
    chrf: float
    """chrF2, 0 to 100"""
    pseudo_bleu: float
    """the recipe's number, 0 to 1: BLEU over subword pieces of arg-max predictions made with the
    right prefix at hand. It is not translation quality; it compares with the recipe's old curves"""
    hypotheses: list[str]
    """translations, in the order of the dev set"""
    seconds: float
    """wall time of the evaluation"""
    chrf_margin: float = 0.0
    """half width of chrF's 95 % interval where `evaluation.best_by` is chrf; else 0"""
    by_corpus: dict[str, dict[str, float]] = {}  # noqa: RUF012 - never changed
    """of each corpus with dev sentences, where the data have several: tag of metrics.jsonl ->
    value; no BLEU and chrF where no sentence of it was translated"""
    ter: float | None = None
    """translation edit rate, percent of the references' words, lower is better; None: not asked
    for"""


class Evaluator:
    """Evaluates a model, with the weights it has when called, on the dev set of prepared data.

    `writes`: whether this rank writes the scores down, with their intervals.
    """

    def __init__(
        self,
        transformer: Transformer,
        data: DataDirectory,
        config: Config,
        rank: Rank,
        writes: bool = True,
    ) -> None:
        self._transformer, self._data, self._config, self._rank = transformer, data, config, rank
        self._writes = writes
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

    def __call__(self) -> Scores:
        """Every rank takes its share, at the same step; every rank gets the scores."""
        started_s = time.perf_counter()
        with devices.explain_memory(self._rank, "lower --evaluation.beam-size."):
            losses, pseudo_bleu = self._losses()
            hypotheses = self._translations()
        loss, nll, tokens = np.sum(list(losses.values()), axis=0)
        by_chrf = self._config.evaluation.best_by == "chrf"
        texts = hypotheses, self.references
        bleu, bleu_margin = _score(sacrebleu.BLEU(), *texts, with_interval=self._writes)
        chrf, chrf_margin = _score(sacrebleu.CHRF(), *texts, with_interval=self._writes and by_chrf)
        return Scores(
            val_loss=loss / tokens,
            val_nll=nll / tokens,
            bleu=bleu,
            bleu_margin=bleu_margin,
            chrf=chrf,
            pseudo_bleu=pseudo_bleu,
            hypotheses=hypotheses,
            seconds=time.perf_counter() - started_s,
            chrf_margin=chrf_margin,
            by_corpus=self._by_corpus(losses, hypotheses) if self._writes else {},
            ter=_score(sacrebleu.TER(), *texts)[0] if self._config.evaluation.ter else None,
        )

    def samples(self, scores: Scores) -> str:
        """The first few translations, of each dev corpus in turn, as a Markdown table."""
        lines = ["| source | reference | translation |", "|---|---|---|"]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*self._places.values()))
        places = (place for place in turns if place is not None)
        for place in itertools.islice(places, _SAMPLES):
            row = self.sources[place], self.references[place], scores.hypotheses[place]
            cells = (textwrap.shorten(cell, 160).replace("|", "\\|") for cell in row)
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def _by_corpus(
        self, losses: dict[str, np.ndarray], hypotheses: list[str]
    ) -> dict[str, dict[str, float]]:
        """The scores of each dev corpus, if there are several."""
        if len(self._corpora) == 1:
            return {}
        found = {}
        for name, places in self._places.items():
            loss, _, tokens = losses[name]
            found[name] = {"eval_loss": float(loss / tokens)}
            if places:
                texts = [
                    [side[place] for place in places] for side in (hypotheses, self.references)
                ]
                found[name]["sacrebleu"], _ = _score(sacrebleu.BLEU(), *texts)
                found[name]["chrf"], _ = _score(sacrebleu.CHRF(), *texts)
        return found

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
        gathered = _merged(horovod.gather(list(predictions.items())))
        references = [_pieces(self._data.dev.target[index]) for index in gathered]
        pseudo_bleu = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
        score = pseudo_bleu.corpus_score([*gathered.values()], [references])
        return dict(zip(sums, totals, strict=True)), score.score / 100

    def _translations(self) -> list[str]:
        """That of each dev sentence that is to be translated."""
        rank, dev = self._rank, self._data.dev
        share = range(rank.index, len(self._translated), rank.size)
        sources = [dev.source[self._translated[place]] for place in share]
        ids = {}
        for position, hypotheses in self._translator.translate(sources, TOKENS_PER_BATCH):
            horovod.heartbeat.sign()
            ids[share[position]] = hypotheses[0].ids
        texts = zip(ids, self._tokenizer.decode(ids.values()), strict=True)
        gathered = _merged(horovod.gather(list(texts)))
        return [gathered[place] for place in range(len(self._translated))]

    def _teacher_forced_step(self, source_BxS: tf.Tensor, target_BxT: tf.Tensor) -> Any:
        transformer = self._transformer
        states_BxTxD = transformer.decode(target_BxT, transformer.encode(source_BxS))
        loss = cross_entropy(
            tf.reshape(states_BxTxD, [-1, transformer.config.width]),
            transformer.embedding,
            tf.reshape(target_BxT, [-1]),
            self._config.training.label_smoothing,
            transformer.logits_bias,
        )
        best_BxT = tf.argmax(transformer.logits(states_BxTxD), -1, output_type=tf.int32)
        return loss.smoothed, loss.nll, tf.math.count_nonzero(target_BxT), best_BxT


def write(
    scores: Scores, step: int, samples: str, run_dir: Path, store: EventStore, prints: bool = True
) -> None:
    """Write one evaluation down: metrics, TensorBoard, the translations, and a line to read.

    `samples`: see `Evaluator.samples`. The translations go to `hypotheses` of the run directory.
    """
    store.scalars(
        step,
        {
            "eval_loss": scores.val_loss,
            "eval_nll": scores.val_nll,
            "eval_perplexity": math.exp(min(scores.val_nll, 700)),
            "Eval_BLEU_Score": scores.pseudo_bleu,
            "sacrebleu": scores.bleu,
            "chrf": scores.chrf,
            "eval_seconds": scores.seconds,
        }
        | {
            f"{tag}/{name}": value
            for name, values in scores.by_corpus.items()
            for tag, value in values.items()
        }
        | ({} if scores.ter is None else {"ter": scores.ter}),
        kind="eval",
        more={"sacrebleu_margin": scores.bleu_margin}
        | ({"chrf_margin": scores.chrf_margin} if scores.chrf_margin else {}),
    )
    store.text(step, "samples", samples)
    folder = run_dir / HYPOTHESES_DIR
    folder.mkdir(exist_ok=True)
    text = "".join(line + "\n" for line in scores.hypotheses)
    (folder / f"dev.{step}.txt").write_text(text, encoding="utf-8")
    if not prints:
        return
    ter = "" if scores.ter is None else f"TER {scores.ter:.2f}  "
    print(
        f"step {step:,}  validation loss {scores.val_loss:.4f}  BLEU {scores.bleu:.2f} "
        f"+- {scores.bleu_margin:.2f}  "
        f"chrF {scores.chrf:.2f}  {ter}({len(scores.hypotheses)} sentences in "
        f"{duration(scores.seconds)}; pseudo-BLEU {scores.pseudo_bleu:.3f})\n"
        + "".join(
            f"  {name}: validation loss {values['eval_loss']:.4f}"
            + "".join(
                f"  {words} {values[tag]:.2f}"
                for tag, words in (("sacrebleu", "BLEU"), ("chrf", "chrF"))
                if tag in values
            )
            + "\n"
            for name, values in scores.by_corpus.items()
        )
        + samples,
        flush=True,
    )


def _score(
    metric: sacrebleu.metrics.base.Metric, hypotheses: list[str], references: list[str],
    *, with_interval: bool = False,
) -> tuple[float, float]:  # fmt: skip
    """A score and half the width of its interval; 0 if not wanted, or if all resamples score 0."""
    resamples = BOOTSTRAP if with_interval else 1
    score = metric.corpus_score(hypotheses, [references], n_bootstrap=resamples)
    fields = json.loads(score.format(signature=str(metric.get_signature()), is_json=True))
    return score.score, float(fields.get("confidence_var", 0.0))


def _pieces(ids: np.ndarray) -> str:
    """Ids up to the first eos as a line of words, which is all that BLEU looks at."""
    ends = np.flatnonzero(ids == EOS)
    return " ".join(map(str, ids[: ends[0]] if len(ends) else ids))


def _merged(parts: list[list[tuple[int, Any]]]) -> dict[int, Any]:
    return {index: value for part in parts for index, value in part}

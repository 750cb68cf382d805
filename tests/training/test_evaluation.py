"""Validation loss and BLEU: the same on any number of ranks, and equal to plain definitions."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import tensorflow as tf

from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.config import EOS
from hvd_nmt.model.loss import smoothing_entropy
from hvd_nmt.records.event_store import EventStore
from hvd_nmt.records.metrics import line_of
from hvd_nmt.training import evaluation, horovod
from hvd_nmt.training.evaluation import _score

HERE = Path(__file__).parent
LABEL_SMOOTHING = 0.1


@pytest.fixture(scope="module")
def worker():
    """evaluate_dev.py as a module."""
    spec = importlib.util.spec_from_file_location("evaluate_dev", HERE / "evaluate_dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(worker, toy_data):
    return worker.data_of(toy_data)


@pytest.fixture(scope="module")
def evaluator(worker, data):
    return worker.evaluator_of(data, horovod.init())[0]


@pytest.fixture(scope="module")
def alone(evaluator):
    """Scores of one rank."""
    return evaluator(7)


@pytest.fixture(scope="module")
def two_ranks(run_on_ranks, toy_data, tmp_path_factory):
    """What each of two ranks found."""
    out = tmp_path_factory.mktemp("evaluate_dev")
    return [lines[0] for lines in run_on_ranks("evaluate_dev.py", 2, out, toy_data)]


def numbers(line):
    return {name: value for name, value in line.items() if not isinstance(value, str)}


def test_two_ranks_give_the_scores_of_one(alone, two_ranks, data):
    """Every dev sentence is decoded once over both."""
    one = numbers(line_of(alone.evaluation, 0.0))
    assert len(set(alone.hypotheses)) > len(alone.hypotheses) / 2  # worth comparing
    for answer in two_ranks:
        assert answer["hypotheses"] == alone.hypotheses
        two = numbers(answer["values"]) | {"eval_seconds": one["eval_seconds"]}
        assert two == pytest.approx(one, rel=1e-6)
        assert answer["one_sentence"] == alone.hypotheses[:1]  # of fewer sentences than ranks
    shares = [answer["decoded"] for answer in two_ranks]
    wanted = sorted(data.dev.source[index].tolist() for index in range(len(data.dev)))
    assert sorted(shares[0] + shares[1]) == wanted
    assert abs(len(shares[0]) - len(shares[1])) <= 1


def test_bleu_and_chrf_are_sacrebleu_s_own(evaluator, alone, monkeypatch):
    """Against references made of the model's own translations, so that the scores are not 0."""
    references = [
        " ".join(word for at, word in enumerate(line.split()) if (at + number) % 6)
        for number, line in enumerate(alone.hypotheses)
    ]
    monkeypatch.setattr(evaluator, "references", references)
    score, scored = sacrebleu.BLEU.corpus_score, []

    def noted(*arguments, **options):
        scored.append(options)
        return score(*arguments, **options)

    monkeypatch.setattr(sacrebleu.BLEU, "corpus_score", noted)
    scores = evaluator(7)
    bleu, chrf, ter = (
        score(scores.hypotheses, [references])
        for score in (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf, sacrebleu.corpus_ter)
    )
    assert 5 < bleu.score < 95
    assert scores.evaluation.bleu == bleu.score
    assert len(scored) == 2 + 1  # pseudo-BLEU, BLEU with its interval; and the one above
    assert 0.1 < scores.evaluation.bleu_margin < 30
    assert scores.evaluation.chrf == chrf.score
    assert scores.evaluation.ter == ter.score


def test_scores_by_another_tokenizer_name_it(evaluator, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "_tokenizers", {"": "char"})
    scores, shown, told = evaluator(7), [], []
    right = sacrebleu.corpus_bleu(scores.hypotheses, [evaluator.references], tokenize="char")
    assert scores.evaluation.bleu == right.score
    monkeypatch.setattr(evaluation.progress, "say", told.append)
    with EventStore(
        RunDirectory(tmp_path), [], show=lambda step, values: shown.append(values)
    ) as store:
        evaluation.write(scores, tmp_path, store)
    assert f"  BLEU[char] {right.score:.2f} ± " in told[0]
    assert shown[0]["dev/sacrebleu"] == right.score
    line = RunDirectory(tmp_path).read_metrics()[0]
    assert (line["sacrebleu"], line["tokenizer"]) == (right.score, "char")


def test_losses_are_those_of_each_sentence_alone(worker, alone, data):
    """One sentence at a time, without padding, from the definition, in float64."""
    transformer = worker.model(data.manifest.vocabulary_size)
    vocabulary_size = data.manifest.vocabulary_size
    other = LABEL_SMOOTHING / (vocabulary_size - 1)
    smoothed = nll = tokens = 0.0
    for logits_TxV, target_T in teacher_forced(transformer, data):
        log_p = logits_TxV - np.log(np.exp(logits_TxV).sum(-1, keepdims=True))
        right = log_p[np.arange(len(target_T)), target_T]
        nll -= right.sum()
        smoothed -= ((1 - LABEL_SMOOTHING - other) * right + other * log_p.sum(-1)).sum()
        tokens += len(target_T)
    entropy = smoothing_entropy(LABEL_SMOOTHING, vocabulary_size)

    assert alone.evaluation.nll == pytest.approx(nll / tokens, rel=1e-6)
    assert alone.evaluation.loss == pytest.approx(smoothed / tokens - entropy, rel=1e-6)


def test_pseudo_bleu_is_bleu_of_the_pieces_predicted_with_the_right_prefix(worker, alone, data):
    """No smoothing. A prediction ends at its first eos, or with its reference: what the model says
    where the batch is padded belongs to no sentence, and depends on how many ranks share the batch.
    """
    transformer = worker.model(data.manifest.vocabulary_size)
    pairs = list(teacher_forced(transformer, data))
    predicted = [until_eos(logits_TxV.argmax(-1)) for logits_TxV, _ in pairs]
    right = [until_eos(target_T) for _, target_T in pairs]
    pieces = {"smooth_method": "none", "tokenize": "none", "force": True}
    wanted = sacrebleu.corpus_bleu(predicted, [right], **pieces).score / 100

    assert 0.02 < wanted < 0.98
    assert alone.evaluation.pseudo_bleu == pytest.approx(wanted, rel=1e-6)


def teacher_forced(transformer, data):
    """(logits_TxV float64, target_T) of each dev sentence alone."""
    for index in range(len(data.dev)):
        source_T, target_T = data.dev.source[index], data.dev.target[index]
        source_1xS, target_1xT = (
            tf.constant(ids[None].astype(np.int32)) for ids in (source_T, target_T)
        )
        states = transformer.decode(target_1xT, transformer.encode(source_1xS))
        yield transformer.logits(states)[0].numpy().astype(np.float64), target_T.astype(int)


def until_eos(ids):
    """Its pieces as words."""
    words = [str(int(i)) for i in ids]
    return " ".join(words[: words.index(str(EOS))] if str(EOS) in words else words)


def test_an_interval_of_chrf_where_some_resamples_match_nothing():
    hypotheses, references = ["A A A", "b c", "q"], ["A A A", "xyz", "xyz"]
    score, margin = _score(sacrebleu.CHRF(), hypotheses, references, resamples=1000)
    assert score == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert 20 < margin <= 50

"""Worker of test_evaluation.py: evaluates one fixed model on however many ranks it is started on.

    horovodrun -np 2 -H localhost:2 python evaluate_dev.py OUT DATA

Each rank writes OUT/RANK.jsonl: its scores, and the sources that it decoded itself.
"""

import dataclasses
import json
import sys
from pathlib import Path

import hvd_nmt  # noqa: F401 - first: picks tf_keras

# isort: split
import numpy as np

from hvd_nmt.config import EOS, Config, EvaluationConfig, ModelConfig, TrainingConfig
from hvd_nmt.data import corpus
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.model.translator import Translator
from hvd_nmt.records.metrics import line_of
from hvd_nmt.training import evaluation, horovod
from hvd_nmt.training.evaluation import Evaluator

CONFIG = Config(
    model=ModelConfig(2, 2, 32, 2, 64, max_length=32),
    training=TrainingConfig(precision="float32"),
    evaluation=EvaluationConfig(sentences=0, beam_size=2, ter=True),
)

evaluation.TOKENS_PER_BATCH = 60


def main(out, data):
    rank = horovod.init()
    directory = data_of(data)
    evaluator, decoded = evaluator_of(directory, rank)
    scores = evaluator(7)
    values = line_of(scores.evaluation, 0.0)
    answer = {"values": values, "hypotheses": scores.hypotheses, "decoded": decoded[:]}
    evaluator, _ = evaluator_of(directory, rank, sentences=1)
    answer["one_sentence"] = evaluator(7).hypotheses
    (out / f"{rank.index}.jsonl").write_text(json.dumps(answer))
    horovod.shutdown()


def evaluator_of(directory, rank, sentences=0):
    """The evaluator, and a list that is going to hold the sources which this rank decodes."""
    config = dataclasses.replace(
        CONFIG, evaluation=dataclasses.replace(CONFIG.evaluation, sentences=sentences)
    )
    evaluator = Evaluator(model(directory.manifest.vocabulary_size), directory, config, rank)
    translate, decoded = evaluator._translator.translate, []

    def noted(sources, tokens):
        decoded.extend(source.tolist() for source in sources)
        return translate(sources, tokens)

    evaluator._translator.translate = noted
    return evaluator, decoded


def data_of(path):
    """Prepared data whose dev targets the model half knows: what it says itself, every fourth
    token changed. Lengths are very different, so that batches hold padding.
    """
    directory = corpus.load(path)
    translator = Translator(model(directory.manifest.vocabulary_size), Decoding(beam_size=1))
    sources = [directory.dev.source[index] for index in range(len(directory.dev))]
    hypotheses = dict(translator.translate(sources))
    targets = []
    for index in range(len(sources)):
        ids = hypotheses[index][0].ids[: 4 + index % 16].copy()
        ids[index % 4 :: 4] = 4 + index
        targets.append(np.append(ids[ids != EOS], EOS))
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in targets])])
    target = corpus.Sentences(np.concatenate(targets).astype(np.int32), offsets)
    dev = corpus.ParallelCorpus(directory.dev.source, target)
    return dataclasses.replace(directory, dev=dev)


def model(vocabulary_size):
    """Untrained, with weights so large that what it says depends on what it reads."""
    transformer = Transformer(CONFIG.model, vocabulary_size, "float32", 5)
    for weight in transformer.trainable_variables:
        if len(weight.shape) > 1:
            weight.assign(2.5 * weight)
    return transformer


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

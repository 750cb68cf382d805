"""Worker of test_evaluation.py: evaluates one fixed model on however many ranks it is started on.

    horovodrun -np 2 -H localhost:2 python evaluate_dev.py OUT DATA

Each rank writes OUT/RANK.json: its scores, and the sources that it decoded itself.
"""

import dataclasses
import json
import sys
from pathlib import Path

import hvd_nmt  # noqa: F401 - first: picks tf_keras

# isort: split
from hvd_nmt.config import Config, EvaluationConfig, ModelConfig, TrainingConfig
from hvd_nmt.data import corpus
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import horovod
from hvd_nmt.training.evaluation import Evaluator

CONFIG = Config(
    model=ModelConfig(2, 2, 32, 2, 64, max_length=32),
    training=TrainingConfig(precision="float32"),
    evaluation=EvaluationConfig(sentences=0, beam_size=2, tokens_per_batch=60, samples=3),
)


def main(out, data):
    me = horovod.join()
    all_of_it, decoded = evaluate(data, me, CONFIG)
    (out / f"{me.rank}.json").write_text(
        json.dumps({
            "scores": all_of_it._asdict(),
            "decoded": decoded,
            "one_sentence": evaluate(data, me, with_sentences(1))[0].hypotheses,
        })
    )
    horovod.leave()


def evaluate(data, me, config):
    """Scores, and the source ids that this rank decoded."""
    directory = corpus.load(data)
    evaluator = Evaluator(
        model(directory.manifest.vocabulary_size), directory, config, me
    )
    decoded = []
    translate = evaluator._translator.translate

    def noted(sources, tokens):
        decoded.extend(source.tolist() for source in sources)
        return translate(sources, tokens)

    evaluator._translator.translate = noted
    return evaluator(), decoded


def with_sentences(count):
    evaluation = dataclasses.replace(CONFIG.evaluation, sentences=count)
    return dataclasses.replace(CONFIG, evaluation=evaluation)


def model(vocabulary_size):
    """Untrained, with weights so large that what it says depends on what it reads."""
    transformer = Transformer(CONFIG.model, vocabulary_size, "float32", 5)
    for weight in transformer.trainable_variables:
        if len(weight.shape) > 1:
            weight.assign(2.5 * weight)
    return transformer


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

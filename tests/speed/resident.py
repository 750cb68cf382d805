"""A process that does pieces of work when asked, and says what processor time each took.

    echo "train/float32/64 2" | python tests/speed/resident.py

Each line of the input is a workload and how often to do it; each line of the output is how many
units that were, and the CPU seconds. Everything runs on one thread, with ids and weights from fixed
seeds, so another commit does the same work. `guard.py` asks two of these in turn.
"""

import functools
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before TensorFlow counts the cores

import numpy as np  # noqa: E402

from hvd_nmt.common import tensorflow_import  # noqa: E402

tensorflow_import.import_tensorflow()

import tensorflow as tf  # noqa: E402

from hvd_nmt.checkpoints.run_files import write_record  # noqa: E402
from hvd_nmt.config import Config, ModelConfig, TrainingConfig  # noqa: E402
from hvd_nmt.data.batch_plan import BatchPlan, Position  # noqa: E402
from hvd_nmt.data.batches import batches  # noqa: E402
from hvd_nmt.data.corpus import ParallelCorpus, Sentences  # noqa: E402
from hvd_nmt.formats import ctranslate2  # noqa: E402
from hvd_nmt.model.decoding import Decoding  # noqa: E402
from hvd_nmt.model.scorer import Scorer  # noqa: E402
from hvd_nmt.model.transformer import Transformer  # noqa: E402
from hvd_nmt.model.translator import Translator  # noqa: E402
from hvd_nmt.training import devices, horovod, optimizer  # noqa: E402
from hvd_nmt.training.step import TrainingModel  # noqa: E402

CONFIG = Config(
    model=ModelConfig(),
    training=TrainingConfig(2000, learning_rate=0.7, warmup_steps=500, adam_beta2=0.98),
)
"""3+3 layers, 256 wide, and Adam, as the preset `small` once was: a preset may change"""
VOCABULARY = 8000
TOKENS = 4096
"""target tokens of a training step, and source tokens of a batch to decode or to score"""

Work = Callable[[], int]
"""does one piece and gives its units"""


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may write between the answers
    devices.set_up(rank())
    for line in sys.stdin:
        name, times = line.split()
        work = workload(name)
        started_s = time.process_time()
        units = sum(work() for _ in range(int(times)))
        print(units, time.process_time() - started_s, file=answers, flush=True)


@functools.cache
def rank() -> horovod.Rank:
    """This process, alone."""
    return horovod.init()


@functools.cache
def workload(name: str) -> Work:
    """What a name stands for, made and done once: KIND/PRECISION/LENGTH, or `input`."""
    if name == "input":
        work = reading()
    else:
        kind, precision, length = name.split("/")
        kinds = {"train": training, "decode": decoding, "score": scoring, "ctranslate2": exported}
        work = kinds[kind](precision, int(length))
    work()
    return work


def training(precision: str, length: int) -> Work:
    """Training steps; source and target tokens."""
    transformer = Transformer(CONFIG.model, VOCABULARY, precision)
    model = TrainingModel(transformer, CONFIG.training, rank())
    parts = model.trained, model.exchange
    model.compile(optimizer=optimizer.build(CONFIG.training, precision, *parts))
    rows = TOKENS // length
    batch = {
        "source": tf.constant(np.stack(sentences(rows, length, 1))),
        "target": tf.constant(np.stack(sentences(rows, length, 2))),
        "tokens": tf.constant([rows * length] * 3, tf.float32),
        "sentences": tf.constant([rows], tf.float32),
    }
    step = model.make_train_function()

    def work() -> int:
        step(iter([batch]))
        return 2 * rows * length

    return work


def decoding(precision: str, length: int) -> Work:
    """Beam searches by our own model."""
    model = Transformer(CONFIG.model, VOCABULARY, precision)
    return search(Translator(model, Decoding(min_length=length, max_length=length)), length)


def exported(precision: str, length: int) -> Work:
    """The same searches by CTranslate2."""
    model, pieces = Transformer(CONFIG.model, VOCABULARY), [*map(str, range(VOCABULARY))]
    given = {"min_decoding_length": length}
    with tempfile.TemporaryDirectory() as folder:
        ctranslate2.specification(model, pieces, pieces, precision).save(folder)
        write_record(Path(folder, ctranslate2.FACTS), {"max_length": length, "target_prefix": []})
        engine = ctranslate2.CTranslate2Translator(Path(folder), Decoding(max_length=length), given)
    return search(engine, length)


def search(translator: Translator | ctranslate2.CTranslate2Translator, length: int) -> Work:
    """Searches of as many positions as the source has; target positions of sentences."""
    sources = sentences(TOKENS // length // 4, length, 1)
    return lambda: sum(length for _ in translator.translate(sources, TOKENS))


def scoring(precision: str, length: int) -> Work:
    """Scores of given translations; target tokens."""
    scorer = Scorer(Transformer(CONFIG.model, VOCABULARY, precision))
    sources, targets = (sentences(TOKENS // length, length, seed) for seed in (1, 2))

    def work() -> int:
        return sum(length for _ in scorer.score(sources, targets, TOKENS))

    return work


def reading() -> Work:
    """Batches of an epoch of sentences of many lengths, its plan included; batches."""
    draws = np.random.default_rng(1)
    lengths = np.clip(draws.lognormal(2.6, 0.4, 20_000), 3, 100).astype(int)
    sides = []
    for more in (0, 2):
        counts = np.maximum(2, lengths + more)
        ids = draws.integers(4, VOCABULARY, counts.sum(), np.int32)
        sides.append(Sentences(ids, np.cumsum([0, *counts])))
    corpus = ParallelCorpus(*sides)
    seeds = itertools.count()

    def work() -> int:
        plan = BatchPlan(corpus.source.lengths, corpus.target.lengths, TOKENS, next(seeds))
        steps = plan.epoch(0).steps
        for _ in itertools.islice(batches(corpus, plan, Position(), 0, 1), steps):
            pass
        return steps

    return work


def sentences(number: int, length: int, seed: int) -> list[np.ndarray]:
    """Random ids that end with eos, int32."""
    ids = np.random.default_rng(seed).integers(4, VOCABULARY, [number, length], np.int32)
    ids[:, -1] = 1
    return list(ids)


if __name__ == "__main__":
    main()

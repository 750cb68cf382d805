"""The training step: the number of ranks changes nothing, and nothing changes unnoticed.

That it would see an average instead of the sum: ranks have different numbers of tokens.
"""

import functools
import itertools
import time

import numpy as np
import pytest
import tensorflow as tf

import toy
from hvd_nmt.config import Config, ModelConfig, TrainingConfig
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import batches
from hvd_nmt.data.corpus import ParallelCorpus, Sentences
from hvd_nmt.model import loss
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import horovod, optimizer
from hvd_nmt.training.callbacks import LearningRate
from hvd_nmt.training.step import TrainingModel

STEPS = 20
NO_DROPOUT = (
    "--model.dropout", "0", "--model.attention-dropout", "0", "--model.feed-forward-dropout", "0",
    "--training.learning-rate", "0.2", "--training.tokens-per-step", "160",
    "--evaluation.sentences", "2",
)  # fmt: skip

# Loss (nats per target token) and gradient norm of each step of `run_golden`, from an EPYC with
# AVX-512 and oneDNN. Kernels of other processors add in another order: without oneDNN and on one
# thread the losses differ by 2.4e-7. A change of the computation moves the first digits.
GOLDEN_LOSS = [
    4.1715345, 3.9251769, 3.8555405, 3.7017128, 3.5280182, 3.3838797, 3.2081082,
    3.4057529, 3.4854727, 3.3336852, 3.1077254, 3.3020465, 3.3026054, 3.3291109,
    3.3831279, 3.3031023, 3.2914515, 3.3559120, 3.3261373, 3.1484990,
]  # fmt: skip
GOLDEN_NORM = [
    1.8518317, 1.2910287, 1.0355986, 0.7793095, 0.6872429, 0.4430980, 0.8546678,
    0.6001988, 0.7026722, 0.4179997, 0.7575662, 0.3608376, 0.3009041, 0.3682585,
    0.4038173, 0.3139916, 0.2983562, 0.3258426, 0.3345448, 0.7745040,
]  # fmt: skip
MANY_RANKS = [
    pytest.param(2, marks=pytest.mark.both_tensorflows), pytest.param(4, marks=pytest.mark.long),
]  # fmt: skip
CURVES = ("train_loss", "train_nll", "Loss_Optimization/global_gradient_norm")


@pytest.fixture(scope="module")
def curves(toy_commands, toy_data, tmp_path_factory):
    """Runs, each made when it is asked for: ranks -> metrics of each step.

    That of one rank, with which others are compared, has no graph.
    """

    @functools.cache
    def curve(ranks):
        cwd = tmp_path_factory.mktemp(f"ranks{ranks}")
        options = toy.train_options(toy_data, "run", STEPS, *NO_DROPOUT)
        done = toy_commands.train(*options, ranks=ranks, cwd=cwd, eager=ranks == 1)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = toy.metrics(cwd / "run")
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
        return lines

    return curve


def values(curves, ranks, tag):
    return np.array([line[tag] for line in curves(ranks)])


@pytest.mark.parametrize("ranks", MANY_RANKS)
def test_one_rank_equals_many(curves, ranks):
    """1 x 4N = 4 x N: the same curve to rounding, over as many updates as it has steps."""
    for tag in CURVES:
        np.testing.assert_allclose(
            values(curves, ranks, tag), values(curves, 1, tag), rtol=1e-5, err_msg=tag
        )
    loss = values(curves, 1, "train_loss")
    assert loss[-3:].mean() < 0.9 * loss[:3].mean()  # one that stands still would agree too


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--training.micro-batches=3", "slices      3 of 26 target tokens a rank, one after"),
        ("--training.jit-compile", "XLA         a program for each shape"),
    ],
)
def test_ranks_that_compute_otherwise_take_the_same_curve(
    curves, toy_commands, toy_data, tmp_path, option, said
):
    """In slices, whose gradients are all summed over ranks, or by programs of XLA."""
    options = toy.train_options(toy_data, "run", 4, *NO_DROPOUT, option)
    done = toy_commands.train(*options, ranks=2, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
    lines = toy.metrics(tmp_path / "run")
    for tag in (*CURVES, "sentences"):
        found = [line[tag] for line in lines]
        np.testing.assert_allclose(found, values(curves, 1, tag)[:4], rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("precision", "pieces"), [("float32", "pieces"), ("float16", "one piece")])
def test_a_program_gives_the_gradients_of_the_graph(precision, pieces, monkeypatch):
    """With the dropout masks of the graph, to the bit the same."""
    if pieces == "pieces":  # 49 target positions in pieces of 20
        monkeypatch.setattr(loss, "ON_CPU", 20 * 64)
    config = TrainingConfig(jit_compile=True)
    sizes = {"attention_dropout": 0.1, "feed_forward_dropout": 0.1, "max_length": 32}
    made = TrainingModel(
        Transformer(ModelConfig(1, 1, 16, 2, 32, **sizes), 64, precision, 1), config, horovod.init()
    )
    made.compile(optimizer=optimizer.build(config, precision, made.trained, made.exchange))
    chance = np.random.default_rng(0)
    ids = {name: chance.integers(4, 64, [7, n]) for name, n in (("source", 6), ("target", 7))}
    ids["source"][0, 4:] = ids["target"][1, 3:] = 0
    tokens = [np.count_nonzero(ids[name]) for name in ("source", "target", "target")]
    batch = {name: tf.constant(side, tf.int32) for name, side in ids.items()}
    batch["tokens"] = tf.constant(tokens, tf.float32)
    graph = tf.function(lambda of: made.own_gradients(of, 1)[1], autograph=False)(batch)
    compiled = tf.function(lambda of: made.own_gradients(of, 1, compiled=True)[1], autograph=False)
    program = compiled(batch)
    for one, other, weight in zip(graph, program, made.trained, strict=True):
        scale = float(tf.reduce_max(abs(one)))
        assert scale > 0, weight.name
        largest = float(tf.reduce_max(abs(one - other)))
        # Processors that compute in float16 also sum in it.
        assert largest <= {"float32": 1e-5, "float16": 3e-2}[precision] * scale, weight.name


def test_the_parts_of_a_step_are_not_negative_and_sum_to_its_time(curves):
    names = ("input_wait", "compute", "straggler_wait", "communication")
    for ranks in (1, 2):
        parts = np.array([values(curves, ranks, f"step_time/{part}_s") for part in names])
        assert parts.min() >= 0 == (parts[3].max() if ranks == 1 else 0)  # it sums with nobody
        total_s = values(curves, ranks, "step_time/total_s")
        np.testing.assert_allclose(parts.sum(0), total_s, rtol=1e-6)


@pytest.mark.both_tensorflows
def test_golden_loss_curve(golden_curve):
    """With dropout. If this moves on purpose, say why in CHANGELOG.md and put the new digits."""
    loss, norm = golden_curve
    np.testing.assert_allclose(loss, GOLDEN_LOSS, rtol=1e-5, err_msg=repr(loss))
    np.testing.assert_allclose(norm, GOLDEN_NORM, rtol=1e-5, err_msg=repr(norm))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2}, {"label_smoothing": 0.1001}, {"adam_beta1": 0.91}, {"adam_beta2": 0.98},
        {"adam_epsilon": 1e-5}, {"learning_rate": 0.201}, {"tokens_per_step": 250},
        {"clip_norm": 1.0}, {"warmup_steps": 11}, "dropout", "attention_dropout",
        "feed_forward_dropout",
    ],
    ids=str,
)  # fmt: skip
def test_the_golden_curve_moves_when_anything_does(golden_curve, change):
    """A curve that nothing moves would guard nothing."""
    changes = {"model": {change: 0.11}} if isinstance(change, str) else {"training": change}
    loss, _ = run_golden(**changes, steps=4, eager=True)
    assert np.abs(np.array(loss) / golden_curve[0][:4] - 1).max() > 1e-5


def test_the_golden_curve_does_not_move_by_itself(golden_curve):
    """Without a change, and step by step in Python instead of a graph."""
    loss, norm = run_golden(steps=4, eager=True)
    np.testing.assert_allclose(loss, golden_curve[0][:4], rtol=1e-5)
    np.testing.assert_allclose(norm, golden_curve[1][:4], rtol=1e-5)


def test_a_clock_that_is_set_makes_no_step_longer(monkeypatch):
    """When it has begun by the old time; TensorFlow's own clock is the machine's."""
    hours = itertools.cycle([1, -1])
    monkeypatch.setattr(time, "time", lambda: time.clock_gettime(0) + 3600 * next(hours))
    started_s = time.perf_counter()
    results = run_golden(steps=4, whole=True)
    taken_s = time.perf_counter() - started_s
    for result in results:
        assert 0 <= result.rank_ready_s[0] < taken_s
        assert 0 <= result.step_time.communication_s < taken_s


def test_a_sum_that_fails_changes_no_weight(monkeypatch):
    """As when a host is lost, and the gradients of this one are there."""
    numbers, built, build = itertools.count(1), [], optimizer.build

    def fails_in_step_3(x):
        if next(numbers) == 3:
            time.sleep(0.2)  # in which an update that did not wait would be made
            raise RuntimeError("lost")
        return x

    def summed(x, name):
        return tf.ensure_shape(tf.py_function(fails_in_step_3, [x], x.dtype), x.shape)

    monkeypatch.setattr(horovod, "sum_over_ranks", summed)
    monkeypatch.setattr(optimizer, "build", lambda *all_: built.append(all_[2]) or build(*all_))
    with pytest.raises(tf.errors.UnknownError, match="lost"):
        run_golden(steps=3)
    run_golden(steps=2)
    for lost, whole in zip(*built, strict=True):
        np.testing.assert_array_equal(lost, whole)


@pytest.fixture(scope="module")
def golden_curve():
    return run_golden()


def run_golden(*, model=None, training=None, steps=STEPS, eager=False, whole=False):
    """Train a fixed tiny model on fixed ids, in float32, on one rank.

    Returns:
        loss and gradient norm of each step, with all digits; or all that is logged, if `whole`.
    """
    config = Config(
        model=ModelConfig(**{
            "encoder_layers": 2, "decoder_layers": 2, "width": 32, "heads": 2,
            "feed_forward_width": 64, "max_length": 32, **(model or {}),
        }),
        training=TrainingConfig(**{
            "max_steps": STEPS, "tokens_per_step": 300, "learning_rate": 0.2, "warmup_steps": 10,
            "precision": "float32", **(training or {}),
        }),
    )  # fmt: skip
    rank = horovod.init()
    corpus = fixed_corpus()
    batching = config.training.tokens_per_step, config.training.seed
    plan = BatchPlan(corpus.source.lengths, corpus.target.lengths, *batching)
    transformer = Transformer(config.model, 64, "float32", config.training.seed)
    training_model = TrainingModel(transformer, config.training, rank)
    parts = transformer.trainable_variables, training_model.exchange
    training_model.compile(optimizer=optimizer.build(config.training, "float32", *parts))
    learning_rate = LearningRate(Schedule.of(config))
    learning_rate.set_model(training_model)
    step = training_model.make_train_function()
    if eager:  # seconds sooner for a few steps: nothing is traced

        def step(stream):
            values = training_model.train_step(next(stream), tf.zeros([2], tf.float64))
            result = training_model._result(values.numpy().tolist(), time.perf_counter())
            return {"result": result}

    stream = (
        {
            "source": tf.constant(batch.source_BxS),
            "target": tf.constant(batch.target_BxT),
            "tokens": tf.constant([batch.source_tokens, batch.target_tokens], tf.float32),
            "sentences": tf.constant([len(batch.sentences)], tf.float32),
        }
        for batch in batches(corpus, plan, plan.position(0), 0, 1)
    )
    results = []
    for number in range(steps):
        learning_rate.on_train_batch_begin(number)
        results.append(step(stream)["result"])
    if whole:
        return results
    return [step.loss for step in results], [step.gradient_norm for step in results]


def fixed_corpus(sentences=150, vocabulary_size=64):
    """Pairs of 2 to 17 tokens whose ids are raw Philox numbers, which never change (NEP 19)."""
    sides = []
    for key in (7, 8):
        philox = np.random.Philox(key=np.array([key, 0], np.uint64))
        lengths = 2 + (philox.random_raw(sentences) % np.uint64(16)).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ids = 4 + philox.random_raw(int(offsets[-1])) % np.uint64(vocabulary_size - 4)
        ids[offsets[1:] - 1] = 1
        sides.append(Sentences(ids.astype(np.int32), offsets))
    return ParallelCorpus(*sides)

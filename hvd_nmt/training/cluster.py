"""Before step 1: data on every host, the same on every host, and gradients that add up."""

import collections
import hashlib
import platform
import statistics
import timeit
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_nmt.common.errors import ConfigError, DataError, DivergedError
from hvd_nmt.common.version import code_hash
from hvd_nmt.config import Config, DataConfig, as_plain
from hvd_nmt.data import corpus
from hvd_nmt.preparation import own_process
from hvd_nmt.training import horovod
from hvd_nmt.training.exchange.base import GradientExchange
from hvd_nmt.training.horovod import Rank

_LATENCY_ROUNDS = 9
_ALL_REDUCE_ROUNDS = 3


def prepared_data(config: DataConfig, rank: Rank) -> corpus.DataDirectory:
    """Open the data directory; where the embedded corpus is missing, make it first on each host.

    Raises DataError if the data are missing, damaged or others, or preparing them failed.
    """
    embedded = config.corpus == "embedded"
    with horovod.raise_on_all_ranks():
        is_there = (config.directory / corpus.MANIFEST).is_file()
        if embedded and rank.is_first_on_host and not is_there:
            wanted = {"dataset": "embedded", "vocabulary_size": config.vocabulary_size}
            own_process.prepare(config.directory, shows=rank.is_first, **wanted)
    with horovod.raise_on_all_ranks():
        data = corpus.load(config.directory, verify=rank.is_first_on_host)
        wanted = {"corpus": "embedded", "seed": 1, "pieces": config.vocabulary_size}
        if embedded and not wanted.items() <= data.manifest.request.items():
            raise DataError(
                f"{config.directory} has other data than the embedded corpus: add --data.corpus "
                "files to train on them, or give another --data.directory."
            )
    return data


def require_equal(facts: dict[str, Any], rank: Rank) -> list[dict[str, Any]]:
    """Compare facts, by name, that must be the same on all hosts; every rank's facts, by rank.

    Raises ConfigError if something differs, which names what, where, and both values.
    """
    facts_by_rank = horovod.gather({"host": rank.host, **facts})
    for name in facts:
        hosts = {str(of[name]): of["host"] for of in reversed(facts_by_rank)}
        if len(hosts) > 1:
            listed = ", ".join(f"{value[:60]} on {host}" for value, host in hosts.items())
            raise ConfigError(
                f"The {name} differs between hosts ({listed}): make them equal, then start again."
            ).of_all_ranks()
    return facts_by_rank


def facts(config: Config, data: corpus.DataDirectory, precision: str) -> dict[str, Any]:
    """What `require_equal` compares: data, vocabulary, configuration, code and versions.

    Where the run writes and what telemetry it records may differ.
    """
    settings = as_plain(config)
    del settings["run_dir"], settings["telemetry"]
    return {
        "data hash": data.manifest.hash,
        "vocabulary hash": data.manifest.vocabulary_hash,
        "configuration": hashlib.sha256(repr(settings).encode()).hexdigest(),
        "code of hvd_nmt": code_hash(),
        "Python version": platform.python_version(),
        "TensorFlow version": tf.__version__,
        "Horovod version": metadata.version("horovod"),
        "SentencePiece version": metadata.version("sentencepiece"),
        "precision": precision,
    }


def prove_sums(
    exchange: GradientExchange, weights: list[tf.Variable], rank: Rank,
    scale: tf.Tensor | None = None,
) -> float:  # fmt: skip
    """Prove that an exchange sums gradients over all ranks of `together`.

    There are many ways to sum after which each rank silently trains alone. So each offers a
    pattern, 1 to 4 times, and must get back exactly the sum, in every weight.

    `scale` is the optimizer's loss scale. Returns the seconds that one sum of all gradients takes.
    Raises DivergedError on all ranks if it is wrong on any.
    """
    patterns = [tf.constant(_pattern(weight.shape)) for weight in weights]

    @tf.function(autograph=False)
    def reduced() -> list[tf.Tensor]:
        factor = tf.constant(1.0) if scale is None else tf.convert_to_tensor(scale)
        offered = [_times(rank.index) * factor * pattern for pattern in patterns]
        return [gradient / factor for gradient in exchange.sum(offered)]

    summed = range(rank.size) if exchange.together is None else exchange.together
    total = sum(_times(index) for index in summed)
    sums = tf.autograph.experimental.do_not_convert(reduced)()
    wrong = [
        weight.name
        for weight, pattern, gradient in zip(weights, patterns, sums, strict=True)
        if not np.array_equal(gradient.numpy(), pattern.numpy() * total)
    ]
    wrong_by_rank = horovod.gather([rank.host, wrong[:1]])
    for index, (host, names) in enumerate(wrong_by_rank):
        if names:
            raise DivergedError(
                f"Gradients do not add up: on rank {index} ({host}) the gradient of {names[0]} is "
                f"not the sum over {len(summed)} ranks. Each rank would train another model."
            )
    return _median_s(reduced, _ALL_REDUCE_ROUNDS)


def _times(rank: int) -> float:
    """Small, so that float16 holds the sum of hundreds of ranks exactly."""
    return rank % 4 + 1.0


def latency_s() -> float:
    """Seconds that an all-reduce of one number takes; a collective."""
    one = tf.ones([1])
    return _median_s(lambda: float(horovod.sum_over_ranks(one, name="latency")[0]), _LATENCY_ROUNDS)


def _median_s(work: Callable[[], Any], rounds: int) -> float:
    """Seconds that it takes: one round may be held up."""
    return statistics.median(timeit.repeat(work, number=1, repeat=rounds))


def _pattern(shape: tf.TensorShape) -> np.ndarray:
    """Small whole numbers, so that sums over ranks are exact in float32."""
    size = int(np.prod(shape))
    return (np.arange(size, dtype=np.float32) % 7 - 3).reshape(shape)


def _checksum(weights: list[tf.Variable]) -> int:
    """A number from 0 to 2^64 - 1 that changes with any single bit of the weights."""
    parts = [
        tf.reduce_sum(tf.cast(tf.bitcast(weight, tf.int32), tf.int64)) * (2 * index + 1)
        for index, weight in enumerate(weights)
    ]
    return int(tf.add_n(parts)) % (1 << 64)


def require_equal_weights(
    weights: list[tf.Variable], step: int, rank: Rank, *, within_hosts: bool = False
) -> int:
    """Compare the weights of all ranks; `within_hosts`: hosts may differ from each other.

    Returns their checksum; of this rank's host, if hosts may differ. Raises DivergedError if they
    differ, which names the ranks in the minority, or all of them.
    """
    by_rank = horovod.gather([rank.host, _checksum(weights)])
    for place in sorted({host if within_hosts else "" for host, _ in by_rank}):
        among = {
            index: checksum for index, (host, checksum) in enumerate(by_rank) if place in ("", host)
        }
        ((commonest, ranks),) = collections.Counter(among.values()).most_common(1)
        if ranks == len(among):
            continue
        has_majority = ranks > len(among) / 2  # of two ranks either may be right
        differing = ", ".join(
            f"rank {index} ({by_rank[index][0]})"
            for index, checksum in among.items()
            if not has_majority or checksum != commonest
        )
        raise DivergedError(
            f"After step {step} the weights of {differing} differ from "
            f"{'the other ranks' if has_majority else 'each other'}: an update did not reach every "
            "rank, or memory failed. The same command continues from the last checkpoint."
        )
    return int(by_rank[rank.index][1])

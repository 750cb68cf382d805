"""Ranks, hosts and collectives. The only module that imports Horovod.

Everything sent between ranks is a tensor of fixed type or JSON in bytes: Horovod's own object
collectives unpickle what a peer sends.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf
import tf_keras as keras

from hvd_nmt.common import signals
from hvd_nmt.common.errors import BY_EXIT_CODE, ClusterError, RunError, UserError
from hvd_nmt.common.rank_environment import integer
from hvd_nmt.training import launcher, peers, terminate
from hvd_nmt.training.heartbeat import Heartbeat
from hvd_nmt.training.peers import Peers
from hvd_nmt.training.watchdog import Watchdog

try:
    import horovod.tensorflow as hvd
    from horovod.common.exceptions import HorovodInternalError

    # Horovod takes its backend from the package `keras`. That is Keras 3, which nobody here uses
    # and which takes a fifth of a rank's imports (with matplotlib); it gets the Keras in use.
    keras_3 = sys.modules.get("keras")
    sys.modules["keras"] = keras
    try:
        import horovod.tensorflow.keras as hvd_keras
    finally:
        del sys.modules["keras"]
        if keras_3 is not None:
            sys.modules["keras"] = keras_3
except ImportError as error:
    raise ClusterError(
        f"Horovod cannot be imported ({error}): `make install` builds it for this TensorFlow."
    ) from error

_NEWS_S = 5.0
"""from an error of Gloo, which may come of a host's silence, until that silence is noticed here"""

_WORD_S = 3.0
"""what the first rank has, of the 5 s until horovodrun kills it, to say that another is lost"""

heartbeat = Heartbeat()
"""of this rank"""
_peers: Peers | None = None
_watchdog: Watchdog | None = None
_hosts: list[str] = []


class Group(NamedTuple):
    """Some ranks; a group of one needs no collective."""

    ranks: tuple[int, ...]
    """their numbers among all ranks"""
    process_set: Any
    """Horovod's"""


@dataclasses.dataclass(frozen=True)
class Rank:
    """This process among all processes of the run."""

    index: int
    """number of this process among all ranks, from 0"""
    size: int
    """number of ranks"""
    local_rank: int
    """index of this process among the ranks of its host, from 0"""
    local_size: int
    """number of ranks on this host"""
    host: str
    """name of this process's host"""

    @property
    def is_first(self) -> bool:
        """The rank that writes checkpoints and speaks."""
        return self.index == 0

    @property
    def is_first_on_host(self) -> bool:
        """The rank that prepares data and samples telemetry on its host."""
        return self.local_rank == 0


def init(
    expected_ranks: int = 0, *, with_timeline: bool = False, with_groups: bool = False
) -> Rank:
    """Start Horovod, and see that it joins as many ranks as there must be.

    Args:
        expected_ranks: how many there must be; 0: as many as were started, or the number in
            HVD_NMT_RANKS, which launch/horovodrun.sh sets.
        with_timeline: whether `start_timeline` will be called.
        with_groups: whether `group` will be called.

    Raises:
        ClusterError: another number of ranks was started, or a launcher started several processes
            that Horovod does not know of, or some ranks did not come.
    """
    global _watchdog
    if with_timeline:
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    os.environ["HOROVOD_DISABLE_GROUP_FUSION"] = "1"  # see `sums_in`
    if not tf.config.list_physical_devices("GPU"):  # its own cycle of 1 ms costs a tenth of a core
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "5")  # ms
    if with_groups:
        launcher.let_ranks_group()
    if _watchdog is None and "HOROVOD_RANK" in os.environ:
        _watchdog = Watchdog(signals.grace_s())
        heartbeat.page = _watchdog.page
        heartbeat.who = f"Rank {integer('HOROVOD_RANK')} on {socket.gethostname()}"
        terminate.stay_alive_if(lambda: rank_is_gone(_NEWS_S))
    launcher.meet()
    hvd.init()
    rank = Rank(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), socket.gethostname())
    expected = expected_ranks or integer("HVD_NMT_RANKS")
    launcher.require_one_run(rank.size)
    if expected and rank.size != expected:
        raise ClusterError(
            f"{expected} ranks were asked for and {rank.size} were started: horovodrun fills every "
            "slot of its hosts, so give it as many slots (-H host:slots) as ranks (-np)."
        ).of_all_ranks()
    return rank


def meet_peers(rank: Rank) -> None:
    """From now on a rank that is lost has a name, see `peers`. A collective, so after `devices`."""
    global _peers, _hosts
    leave_peers()
    if rank.size == 1:
        return
    _hosts = gather(rank.host)
    found = peers.connect(rank.index, rank.size, gather)
    if isinstance(found, Peers):
        _peers = found
        if _watchdog is not None:
            _watchdog.watch(_peers.connections)
        # Before Horovod's own, which was registered in `hvd.init`.
        atexit.register(leave_peers)
    elif rank.is_first:
        without = ", ".join(f"{number} ({_hosts[number]})" for number in found)
        print(
            f"peers       rank {without} cannot connect to a port of {rank.host} (a firewall?): a "
            "rank that is lost will have no name, and others may wait for it",
            flush=True,
        )


def leave_peers() -> None:
    """Tell the other ranks that this one ends by itself, and has said why."""
    global _peers
    if _peers is not None:
        _peers.close()
        _peers = None


def shutdown() -> None:
    """Finish: no collective may follow."""
    if _watchdog is not None:
        _watchdog.watch([])  # the others finish too, and this process may live on
    leave_peers()
    hvd.shutdown()


def distributed_optimizer(
    optimizer: keras.optimizers.Optimizer,
    sums: Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor] | None] = lambda gradients: None,
) -> keras.optimizers.Optimizer:
    """The optimizer with gradients summed over ranks before they are applied.

    Sum, not average: each rank's loss is already divided by the token count of the whole step.
    The tied matrix gets a sparse and a dense gradient; `sparse_as_dense` keeps the sparse one from
    being gathered, which would grow with the number of ranks.

    Args:
        optimizer: what applies them.
        sums: gives the sums of gradients; None: Horovod is to sum them over all ranks.
    """
    wrapped = hvd_keras.DistributedOptimizer(optimizer, op=hvd.Sum, sparse_as_dense=True)
    # Horovod has AutoGraph convert its code, for seconds a rank, though nothing in it needs that.
    reduce = tf.function(wrapped._allreduce_grads.python_function, autograph=False)

    def all_reduce(gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> Any:
        done = sums(gradients)
        return reduce(gradients, variables) if done is None else done

    wrapped._allreduce_grads = all_reduce
    return wrapped


def everybody() -> Group:
    """All ranks."""
    return Group(tuple(range(hvd.size())), hvd.global_process_set)


def group(ranks: Sequence[int]) -> Group:
    """Ranks with collectives of their own; all ranks must make the same, in the same order."""
    if len(ranks) in (1, hvd.size()):
        return Group(tuple(ranks), hvd.global_process_set)
    return Group(tuple(ranks), hvd.add_process_set(list(ranks)))


def sum_in(group: Group, x: tf.Tensor, name: str) -> tf.Tensor:
    """Sum of a tensor over a group; the same bits each time, whatever else travels."""
    return sums_in(group, [x], name)[0]


def sums_in(group: Group, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
    """Sums of some tensors over a group, which travel as one and with nothing else.

    In a ring of three or more ranks the order of additions depends on where a number lies in the
    buffer that is sent. Horovod fills it with what is ready, which differs from step to step; what
    is grouped always travels alone and as a whole.
    """
    if len(group.ranks) == 1:
        return list(tensors)
    return list(
        hvd.grouped_allreduce(list(tensors), op=hvd.Sum, name=name, process_set=group.process_set)
    )


def deal_in(group: Group, x: tf.Tensor, name: str) -> tf.Tensor:
    """Equal parts of the first dimension, one to each rank of a group; what this one is dealt."""
    return hvd.alltoall(x, name=name, process_set=group.process_set)


def concatenated_in(group: Group, x: tf.Tensor, name: str) -> tf.Tensor:
    """The tensors of a group's ranks, one after the other in the first dimension."""
    if len(group.ranks) == 1:
        return x
    return hvd.allgather(x, name=name, process_set=group.process_set)


def of_first_in(group: Group, x: tf.Tensor, name: str) -> tf.Tensor:
    """The value that the first rank of a group has."""
    if len(group.ranks) == 1:
        return x
    return hvd.broadcast(x, group.ranks[0], name=name, process_set=group.process_set)


def start_timeline(path: Path) -> None:
    """Record what happens to each tensor from now on; rank 0 writes a file of trace events."""
    hvd.start_timeline(os.fspath(path))


def stop_timeline() -> None:
    """Stop recording and close the file."""
    hvd.stop_timeline()


def sum_over_ranks(x: tf.Tensor, name: str) -> tf.Tensor:
    """Sum of a tensor over all ranks; the name must be the same on all of them."""
    return hvd.allreduce(x, op=hvd.Sum, name=name)


def of_first_rank(x: tf.Tensor, name: str) -> tf.Tensor:
    """Rank 0's value of a tensor; the name must be the same on all ranks."""
    return hvd.broadcast(x, root_rank=0, name=name)


def broadcast(variables: Sequence[tf.Variable]) -> None:
    """Give every rank the values of rank 0."""
    with heartbeat.waiting():
        hvd.broadcast_variables(variables, root_rank=0)


def gather(value: Any) -> list[Any]:
    """Every rank's value, by rank; a JSON value of any length."""
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    # NCCL refuses two ranks on one GPU, which are found by gathering.
    with heartbeat.waiting(), tf.device("CPU:0"):
        lengths = hvd.allgather(tf.constant([len(data)], tf.int64), name="gather.lengths").numpy()
        joined = hvd.allgather(tf.constant(data), name="gather.bytes").numpy().tobytes()
    ends = np.cumsum(lengths)
    return [
        json.loads(joined[end - length : end]) for end, length in zip(ends, lengths, strict=True)
    ]


@contextlib.contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """Run a block that may fail on some ranks; a user's error there is raised on all of them.

    The block must contain no collective. Without this, the other ranks would wait for ever in
    their next collective for the one that failed.

    Raises:
        UserError: the error of the lowest rank that failed, with its host if it is another one.
    """
    failure: tuple[int, str] | None = None  # exit code and message
    try:
        yield
    except UserError as error:
        failure = (error.exit_code, str(error))
    except OSError as error:
        failure = (RunError.exit_code, f"The file system failed: {error}.")
    this_host = socket.gethostname()
    for host, failed in gather([this_host, failure]):
        if failed is not None:
            exit_code, message = failed
            prefix = "" if host == this_host else f"On {host}: "
            raise BY_EXIT_CODE.get(exit_code, UserError)(prefix + message).of_all_ranks()


@contextlib.contextmanager
def report_lost_peers(
    outlook: Callable[[], str] = lambda: "start the same command again.",
    leave: Callable[[ClusterError], NoReturn] | None = None,
) -> Iterator[None]:
    """Say in one sentence which rank is gone, where Horovod says a page, or nothing at all.

    Args:
        outlook: gives the end of the sentence, what follows from it.
        leave: ends this process with the error. Called in another thread where a collective waits
            for the lost rank all the same. None: the error is raised, and nothing ends a wait.

    Raises:
        ClusterError: a collective failed because a rank or its host is gone.
    """
    if _peers is not None and leave is not None:
        _peers.when_stuck = lambda: leave(ClusterError(peers.loss(_peers, _hosts) + outlook()))
    try:
        yield
    except (tf.errors.OpError, HorovodInternalError) as error:
        of_memory = isinstance(error, tf.errors.ResourceExhaustedError)
        if of_memory or not any(word in str(error) for word in ("Horovod", "gloo", "NCCL")):
            raise
        if _peers is not None:
            _peers.wait_for_news(_NEWS_S)
        loss = ClusterError(peers.loss(_peers, _hosts) + outlook())
        if leave is not None:
            leave(loss)
        raise loss.of_all_ranks() from error
    finally:
        if _peers is not None:
            _peers.when_stuck = None  # whoever has an error of its own says it, and is not stuck


def rank_is_gone(news_s: float = 0.3) -> bool:
    """Whether a rank has ended, however, as far as this one knows or hears in so many seconds."""
    if _peers is None:
        return False
    _peers.wait_for_news(news_s)
    return _peers.lost is not None or bool(_peers.left)


def speaks_for_lost_rank(rank: Rank) -> bool:
    """Whether this rank says what happened: the first, or the next if the first is gone, too.

    Gloo may abort the first because of a loss. The next waits until it took leave, having said it.
    """
    return rank.is_first or (
        rank.index == 1 and _peers is not None and _peers.died_silently(0, _WORD_S)
    )


def wait_until(done: Callable[[], bool], poll_s: float = 0.5) -> None:
    """Wait until something is done on every rank, talking all the while.

    Horovod has a time limit on silence between ranks, not on waiting: small collectives keep the
    ranks in touch, and a rank that dies is noticed at once.
    """
    while True:
        with heartbeat.waiting():
            count = int(sum_over_ranks(tf.constant(int(done()), tf.int32), name="wait_until"))
        if count == hvd.size():
            return
        time.sleep(poll_s)


def reduced_by() -> str:
    """What Horovod sums gradients with."""
    if tf.config.get_visible_devices("GPU") and hvd.nccl_built():
        return "NCCL"
    return "Gloo" if hvd.gloo_enabled() else "MPI"


def build_info() -> dict[str, Any]:
    """What this Horovod was built with."""
    return {
        "version": __import__("horovod").__version__,
        "nccl": bool(hvd.nccl_built()),
        "mpi": bool(hvd.mpi_built()),
        "gloo": bool(hvd.gloo_built()),
    }

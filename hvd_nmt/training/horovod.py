"""Ranks, hosts and collectives. The only module of a rank that imports Horovod.

What is sent is a tensor or JSON in bytes: Horovod's own object collectives unpickle what they get.
"""

import contextlib
import dataclasses
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from hvd_nmt.common import errors
from hvd_nmt.common.errors import ClusterError, ConfigError, UserError
from hvd_nmt.common.heartbeat import LOST, Heartbeat
from hvd_nmt.common.rank_environment import integer

try:
    import horovod.tensorflow as hvd
    from horovod.common.exceptions import HorovodInternalError

    # Horovod takes its backend from the package `keras`. That is Keras 3, which is unused here
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

_GLOO_TIMEOUT_S = "300"
"""Gloo's own 30 s are less than a busy or cold host takes, or a network that is away for a while"""
# Launchers that start processes by themselves say so in these; without Horovod's own variables
# each process would then train alone and believe that it is the whole run.
_OTHER_LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpiexec",
    "SLURM_STEP_NUM_TASKS": "srun",  # SLURM_NTASKS is also set inside of salloc and sbatch
}

heartbeat = Heartbeat()
"""of this rank"""


class RankGroup(NamedTuple):
    """Some ranks; a group of one needs no collective."""

    ranks: tuple[int, ...]
    """their numbers among all ranks"""
    process_set: Any
    """Horovod's"""


@dataclasses.dataclass(frozen=True)
class Rank:
    """This process among all processes of the run."""

    index: int
    """among all ranks, from 0"""
    size: int
    """number of all ranks"""
    local_rank: int
    """among the ranks of its host, from 0"""
    local_size: int
    """number of ranks on its host"""
    host: str

    @property
    def is_first(self) -> bool:
        """The rank that writes checkpoints and speaks."""
        return self.index == 0

    @property
    def is_first_on_host(self) -> bool:
        """The rank that prepares data and samples telemetry on its host."""
        return self.local_rank == 0


def init(expected_ranks: int = 0, *, with_groups: bool = False) -> Rank:
    """Start Horovod, and see that it joins as many ranks as there must be.

    `expected_ranks` 0: as many as were started, or the number in HVD_NMT_RANKS, which
    `hvd_nmt.launch` sets. `with_groups`: whether `group` will be called.

    Raises ClusterError if another number of ranks was started, or Horovod does not know of them;
    ConfigError if this machine's name has no address.
    """
    heartbeat.begin()
    _require_own_address()
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", _GLOO_TIMEOUT_S)
    os.environ["HOROVOD_DISABLE_GROUP_FUSION"] = "1"  # see `sums_in`
    if not tf.config.list_physical_devices("GPU"):  # its own cycle of 1 ms costs a tenth of a core
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "5")  # ms
    one_a_host = integer("HOROVOD_LOCAL_SIZE") == 1
    one_a_host &= integer("HOROVOD_SIZE") == integer("HOROVOD_CROSS_SIZE")
    if with_groups and not one_a_host:  # groups have each rank ask more of the others
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    with heartbeat.waiting():
        hvd.init()
    rank = Rank(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), socket.gethostname())
    for variable, program in _OTHER_LAUNCHERS.items():
        started = integer(variable, 1)
        if rank.size == 1 < started and "HOROVOD_SIZE" not in os.environ:
            raise ClusterError(
                f"{program} started {started} processes, but this Horovod was built without MPI, "
                "so each would train alone: start with hvd_nmt.launch, or build Horovod with MPI."
            )
    expected = expected_ranks or integer("HVD_NMT_RANKS")
    if expected and rank.size != expected:
        raise ClusterError(
            f"The number of ranks is {rank.size} instead of {expected}: start with hvd_nmt.launch, "
            "or give horovodrun as many slots (-H host:slots) as ranks (-np)."
        ).of_all_ranks()
    return rank


def _require_own_address() -> None:
    """See that this machine's name resolves, which Gloo asks for: it would end the process."""
    name = os.uname().nodename
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        raise ConfigError(  # which no second start corrects
            f"{name}, the name of this machine, has no address: add the line `127.0.1.1 {name}` to "
            "/etc/hosts."
        ) from None


def shutdown() -> None:
    """Finish: no collective may follow."""
    hvd.shutdown()


def distributed_optimizer(
    optimizer: keras.optimizers.Optimizer, groups: int = 1
) -> keras.optimizers.Optimizer:
    """The optimizer with gradients, dense ones, summed over ranks before they are applied.

    Sum, not average: each rank's loss is already divided by the token count of the whole step. The
    `groups` of gradients are fixed, so that sums are equal to the bit: see `sums_in`.
    """
    return hvd_keras.DistributedOptimizer(optimizer, op=hvd.Sum, groups=groups)


def sums_of(
    distributed: keras.optimizers.Optimizer, weights: Sequence[tf.Variable]
) -> Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]:
    """What Horovod's optimizer sums gradients of these weights with."""
    if hvd.size() == 1:
        return list
    # Horovod has AutoGraph convert its code, for seconds a rank, though nothing in it needs that.
    reduce = tf.function(distributed._allreduce_grads.python_function, autograph=False)
    return lambda gradients: reduce(gradients, weights)


def group(ranks: Sequence[int]) -> RankGroup:
    """Ranks with separate collectives; all ranks must make the same groups, in the same order."""
    if len(ranks) in (1, hvd.size()):
        return RankGroup(tuple(ranks), hvd.global_process_set)
    return RankGroup(tuple(ranks), hvd.add_process_set(list(ranks)))


def sums_in(group: RankGroup, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
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


def deal_in(group: RankGroup, x: tf.Tensor, name: str) -> tf.Tensor:
    """Equal parts of the first dimension, one to each rank of a group; what this one is dealt."""
    return hvd.alltoall(x, name=name, process_set=group.process_set)


def concatenated_in(group: RankGroup, x: tf.Tensor, name: str) -> tf.Tensor:
    """The tensors of a group's ranks, one after the other in the first dimension."""
    return hvd.allgather(x, name=name, process_set=group.process_set)


def of_first_in(group: RankGroup, x: tf.Tensor, name: str) -> tf.Tensor:
    """The value that the first rank of a group has."""
    if len(group.ranks) == 1:
        return x
    return hvd.broadcast(x, group.ranks[0], name=name, process_set=group.process_set)


def sum_over_ranks(x: tf.Tensor, name: str) -> tf.Tensor:
    """Sum of a tensor over all ranks; the name must be the same on all of them."""
    return hvd.allreduce(x, op=hvd.Sum, name=name)


def of_first_rank(x: tf.Tensor, name: str) -> tf.Tensor:
    """Rank 0's value of a tensor; the name must be the same on all ranks."""
    return hvd.broadcast(x, root_rank=0, name=name)


def broadcast(variables: Sequence[tf.Variable], source: int = 0) -> None:
    """Give every rank the values of one."""
    if hvd.size() == 1:
        return

    @tf.function(autograph=False)  # see `sums_of`
    def send() -> None:
        for index, variable in enumerate(variables):
            variable.assign(hvd.broadcast(variable, source, name=f"variable_{index}"))

    with heartbeat.waiting():
        send()


def gather(value: Any) -> list[Any]:
    """Every rank's value, by rank; a JSON value of any length."""
    line = np.frombuffer(json.dumps(value).encode() + b"\n", np.uint8)
    with heartbeat.waiting(), tf.device("CPU:0"):
        lines = hvd.allgather(tf.constant(line), name="gather").numpy().tobytes()
    return [json.loads(line) for line in lines.splitlines()]


@contextlib.contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """Run a block that may fail on some ranks; a user's error there is raised on all of them.

    It is that of the lowest rank that failed, with its host if it is another one. The block must
    contain no collective. Without this, the others would wait for ever in their next one.
    """
    failure: UserError | None = None
    try:
        yield
    except UserError as error:
        failure = error
    except OSError as error:
        failure = errors.unwritten(f"The file system failed: {error}.", error)
    this_host = socket.gethostname()
    for host, failed in gather([this_host, failure and (failure.exit_code, str(failure))]):
        if failed is not None:
            exit_code, message = failed
            prefix = "" if host == this_host else f"On {host}: "
            raise errors.BY_EXIT_CODE.get(exit_code, UserError)(prefix + message).of_all_ranks()


def is_loss(error: BaseException) -> bool:
    """Whether a collective failed, as each does once any rank is gone.

    Where there are groups of ranks no error comes: Horovod 0.28.1 ends the process, for its thread
    asks all ranks once more, to remove the groups.
    """
    of_memory = isinstance(error, tf.errors.ResourceExhaustedError)
    of_collective = isinstance(error, (tf.errors.OpError, HorovodInternalError)) and not of_memory
    return of_collective and any(word in str(error) for word in ("Horovod", "gloo", "NCCL"))


@contextlib.contextmanager
def end_when_ranks_are_lost(command: str) -> Iterator[None]:
    """Where a collective in the block fails, another rank is gone: this process ends with code 5.

    At once, for Horovod waits at its end for the other ranks. Without `hvd_nmt.launch`, which says
    who was lost, rank 0 says so for `command`.
    """
    try:
        yield
    except (tf.errors.OpError, HorovodInternalError) as error:
        if not is_loss(error):
            raise
        heartbeat.enter(LOST)
        with errors.reported(command, speak=hvd.rank() == 0 and not heartbeat.is_read):
            raise ClusterError(
                "Another rank ended, with its message above: run the same command again."
            ).of_all_ranks() from error
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(ClusterError.exit_code)


def reduced_by() -> str:
    """What Horovod sums gradients with."""
    if tf.config.get_visible_devices("GPU") and hvd.nccl_built():
        return "NCCL"
    return "Gloo" if hvd.gloo_enabled() else "MPI"

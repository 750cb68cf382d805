"""What launchers tell the processes that they start, where it is less than Horovod needs."""

from __future__ import annotations

import os

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.common.rank_environment import integer

# Launchers that start processes by themselves say so in these; without Horovod's own variables
# each process would then train alone and believe that it is the whole run.
_OTHER_LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpiexec",
    "SLURM_STEP_NUM_TASKS": "srun",  # SLURM_NTASKS is also set inside of salloc and sbatch
}
_GROUPS = "HOROVOD_DYNAMIC_PROCESS_SETS"


def require_one_run(ranks: int) -> None:
    """See that processes which were started together are one run, of so many Horovod ranks.

    Raises ClusterError if another launcher started several, of which this Horovod does not know.
    """
    for variable, program in _OTHER_LAUNCHERS.items():
        count = integer(variable, 1)
        if ranks == 1 and count > 1 and "HOROVOD_SIZE" not in os.environ:
            raise ClusterError(
                f"{program} started {count} processes, but this Horovod was built without MPI, so "
                "each would train alone: start with hvd_nmt.launch, or build Horovod with MPI."
            )


def let_ranks_group() -> None:
    """Have Horovod form groups of ranks, where ranks of a host may need one; before it starts.

    Without need not: each rank then asks more of the others.
    """
    if _hosts_are_shared():
        os.environ[_GROUPS] = "1"


def ranks_can_group() -> bool:
    """Whether Horovod was started so."""
    return os.environ.get(_GROUPS) == "1"


def _hosts_are_shared() -> bool:
    """Whether there are several hosts, one at least with several ranks; alike on all ranks.

    Launchers other than horovodrun tell less: with them several hosts, or ranks, are enough.
    """
    size, local_size = integer("HOROVOD_SIZE"), integer("HOROVOD_LOCAL_SIZE", 1)
    if not size:
        size = max(integer(name) for name in _OTHER_LAUNCHERS)
        local_size = integer("OMPI_COMM_WORLD_LOCAL_SIZE", 1)
    # Horovod's own number is right on the first rank of a host; others have more beside them.
    return size > local_size and (local_size > 1 or size > integer("HOROVOD_CROSS_SIZE", 1))

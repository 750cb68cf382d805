"""The horovodrun that started this rank: what it was asked for, and where ranks meet at first.

Horovod gives its ranks 30 s to start together, and a host that reads TensorFlow from a cold disk
takes longer. So ranks meet before: each writes to the key-value server of horovodrun, in which
Horovod itself looks for the ranks, that it is there, and rank 0 writes when all are. The server is
open to everybody on its network (SECURITY.md), so little is said there.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, final

import psutil

from hvd_nmt.common.errors import ClusterError, reported
from hvd_nmt.common.rank_environment import gpus_of_all_hosts, integer
from hvd_nmt.common.units import duration

_LIMIT_S = 600.0
"""how long a rank waits for another"""
_NOTICE_S = 30.0
"""after which a line says who is waited for"""
_SILENCE_S = 30.0
"""without an answer of horovodrun, after which it is gone"""
# Launchers that start processes by themselves say so in these; without Horovod's own variables
# each process would then train alone and believe that it is the whole run.
_OTHER_LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpiexec",
    "SLURM_STEP_NUM_TASKS": "srun",  # SLURM_NTASKS is also set inside of salloc and sbatch
}
_GROUPS = "HOROVOD_DYNAMIC_PROCESS_SETS"
_PATH, _ALL = "/hvd_nmt/", "all"


def option(*names: str) -> str | None:
    """The value of an option on the command line of the horovodrun above this process.

    Returns:
        None where there is no horovodrun, as on other hosts than its own, or no such option.
    """
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().parents():
            words = process.cmdline()
            # Under its own name, or as launching/horovodrun.py.
            programs = [os.path.basename(word).removesuffix(".py") for word in words[:2]]
            if "horovodrun" not in programs:
                continue
            for name, value in itertools.pairwise(words[programs.index("horovodrun") :]):
                if name in names:
                    return value
    return None


def require_one_run(ranks: int) -> None:
    """See that processes which were started together are one run.

    Args:
        ranks: of Horovod's.

    Raises:
        ClusterError: another launcher started several, of which this Horovod does not know.
    """
    for variable, program in _OTHER_LAUNCHERS.items():
        count = integer(variable, 1)
        if ranks == 1 and count > 1 and "HOROVOD_SIZE" not in os.environ:
            raise ClusterError(
                f"{program} started {count} processes, but this Horovod was built without MPI, so "
                "each would train alone: start with horovodrun, or build Horovod with MPI."
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


def asked_ranks() -> int | None:
    """The number after -np: horovodrun starts a rank in every slot, and tells none what -np was."""
    value = option("-np", "--num-proc")
    return int(value) if value is not None and value.isdecimal() else None


def meet(limit_s: float = _LIMIT_S) -> None:
    """Wait until every rank that horovodrun started has come this far.

    A rank without CUDA_VISIBLE_DEVICES gets that of rank 0, if it is numbers.

    Raises:
        ClusterError: on rank 0, some have not come within the limit.
        SystemExit: so it is, or rank 0 has not come; what there is to say has been said.
    """
    address = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    index, size = integer("HOROVOD_RANK"), integer("HOROVOD_SIZE")
    if address is None or size < 2:
        return  # alone, or started by mpirun, whose ranks wait for each other without a limit
    server = _Server(address, integer("HOROVOD_GLOO_RENDEZVOUS_PORT"))
    server.put(str(index), True)
    if index == 0:
        missing = _missing(server, range(1, size), limit_s)
        server.put(_ALL, {"missing": missing, "gpus": gpus_of_all_hosts(os.environ)})
        if missing:
            raise ClusterError(_absence(missing, limit_s))
    elif _answer(server, "0", limit_s) is None:
        _end(_absence([0], limit_s), speak=index == 1)
    else:
        found = _answer(server, _ALL, limit_s + _SILENCE_S)
        if not isinstance(found, dict) or found.get("missing") != []:
            _end("", speak=False)  # rank 0 says why
        gpus = gpus_of_all_hosts({"CUDA_VISIBLE_DEVICES": str(found.get("gpus"))})
        if gpus is not None:
            os.environ.setdefault("CUDA_VISIBLE_DEVICES", gpus)


def _missing(server: _Server, ranks: Sequence[int], limit_s: float) -> list[int]:
    """The ranks that do not come within the limit."""
    missing, noticed = list(ranks), False
    for waited_s in _polls(limit_s):
        missing = [rank for rank in missing if not server.get(str(rank))]
        if not missing:
            break
        if waited_s > _NOTICE_S and not noticed:
            noticed = True
            print(f"waiting     for rank {_named(missing)}, up to {duration(limit_s)}", flush=True)
    return missing


def _answer(server: _Server, key: str, limit_s: float) -> Any:
    """What a rank has written, None if it has not within the limit."""
    for _ in _polls(limit_s):
        if (value := server.get(key)) is not None:
            return value
    return None


def _polls(limit_s: float) -> Iterator[float]:
    """When to look again: the seconds waited so far, at first often."""
    started_s = time.monotonic()
    while (waited_s := time.monotonic() - started_s) < limit_s:
        yield waited_s
        time.sleep(min(1.0, 0.05 + waited_s / 20))


@final
class _Server:
    """The key-value server of horovodrun; keys are of this package, values JSON."""

    def __init__(self, address: str, port: int) -> None:
        self._address, self._port = address, port
        self._answered_s = time.monotonic()

    def put(self, key: str, value: Any) -> None:
        self._ask("PUT", key, json.dumps(value))

    def get(self, key: str) -> Any:
        """None where nobody has written it yet."""
        text = self._ask("GET", key)
        with contextlib.suppress(ValueError):
            return json.loads(text) if text else None
        return None

    def _ask(self, method: str, key: str, body: str | None = None) -> bytes:
        """The text of the answer, empty where there is none of that name."""
        while True:
            # Not urllib, which may go through a proxy.
            connection = http.client.HTTPConnection(self._address, self._port, timeout=5.0)
            try:
                connection.request(method, _PATH + key, body)
                response = connection.getresponse()
                text = response.read()
                self._answered_s = time.monotonic()
                return text if response.status == http.HTTPStatus.OK else b""
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() - self._answered_s > _SILENCE_S:
                    self._give_up(error)
                time.sleep(0.5)
            finally:
                connection.close()

    def _give_up(self, error: Exception) -> NoReturn:
        _end(
            f"{socket.gethostname()} does not reach horovodrun at {self._address} port "
            f"{self._port} ({error}): if it is still there, let the ports from 1024 upwards pass "
            "between the hosts, or name another network card.",
            speak=integer("HOROVOD_LOCAL_RANK") == 0,
        )


def _absence(missing: Sequence[int], limit_s: float) -> str:
    return (
        f"Rank {_named(missing)} did not come within {duration(limit_s)}: see what the host does "
        "(a cold disk, a folder that hangs, no memory left), then start the same command again."
    )


def _named(ranks: Sequence[int]) -> str:
    """Ranks with their hosts, as far as horovodrun was told them: 2, 3 (v100b)."""
    hosts: list[str] = []
    for host in (option("-H", "--hosts") or "").split(","):
        name, _, slots = host.partition(":")
        hosts += [name] * (int(slots) if slots.isdecimal() else 1)
    found = dict.fromkeys(hosts[rank] for rank in ranks if rank < len(hosts) and hosts[rank])
    numbers = ", ".join(map(str, ranks))
    return numbers + (f" ({', '.join(found)})" if found else "")


def _end(sentence: str, speak: bool) -> NoReturn:
    """End this process as by an error of the cluster, also where only rank 0 prints errors."""
    if speak:
        with reported("hvd_nmt"):
            raise ClusterError(sentence)
    raise SystemExit(ClusterError.exit_code)

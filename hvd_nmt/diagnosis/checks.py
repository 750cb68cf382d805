"""What must hold on each host, and be equal on all: from the facts of hosts to checks."""

import dataclasses
import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hvd_nmt.checkpoints import sizes
from hvd_nmt.common.units import count, data_size
from hvd_nmt.config import Config
from hvd_nmt.explain.exchange_cost import ring_bytes
from hvd_nmt.hosts.connection import Connections
from hvd_nmt.hosts.facts import HostFacts
from hvd_nmt.hosts.host_list import Host

OK, WARN, FAIL = "ok", "warn", "fail"
Judgement = tuple[str, str, str]
"""status, result ("": nothing worth a line) and remedy of a check"""
CLOCK_TOLERANCE_S = 1.0
SLOW_LINK_MBIT_PER_S = 1000
LOGS_BYTES = 200_000_000
"""room for logs and telemetry"""
_VIRTUAL_NICS = ("docker", "veth", "br-", "virbr", "tun", "tap", "cni", "flannel", "cali")
_MUST_BE_EQUAL = {
    "versions": "install the same on every host: make install there, from the same checkout",
    "code of hvd_nmt": "copy the same checkout to every host (git status, git log -1)",
    "data hash": "copy the data from one host to the others (rsync -a), whole",
}
"""name -> remedy where it differs"""
_SSH_REMEDY = (
    "check the name, and that ssh {host} asks no question (ssh-copy-id {host}). The host must be "
    "on, with the checkout and .venv under the same path as here. Its name server, file systems "
    "and GPU driver must answer"
)


@dataclass(frozen=True)
class Check:
    """A check of one host, or of all together, with its result."""

    name: str
    host: str
    """name of the host; "": all together"""
    status: str
    """ok; warn: a run works, but worse than it could; fail: it will not start or not be right"""
    result: str
    """what was seen, in words and numbers"""
    remedy: str = ""
    """what to do; "" where nothing has to be done"""


@dataclass(frozen=True)
class PlannedRun:
    """The run to come, on hosts that have been asked."""

    config: Config
    answers: Sequence[HostFacts]
    """facts of each host, in the order of their ranks"""

    @property
    def ranks(self) -> int:
        """Number of slots of all hosts."""
        return sum(answer.host.slots for answer in self.answers)

    @cached_property
    def checkpoint(self) -> sizes.CheckpointSize:
        """What the run will save, with the vocabulary of the data, else as it is configured."""
        of_hosts = (answer.facts.get("data", {}) for answer in self.answers)
        data: dict[str, Any] = next((data for data in of_hosts if data.get("hash")), {})
        config, training = self.config, self.config.training
        return sizes.predict(
            config.model, data.get("vocabulary_size", -(-config.data.vocabulary_size // 8) * 8),
            freeze=training.freeze, averaged=training.ema_decay > 0,
            source_vocabulary_size=data.get("source_vocabulary_size") or 0,
        )  # fmt: skip

    def others(self, answer: HostFacts) -> list[str]:
        """Names of all hosts but one."""
        return [other.host.name for other in self.answers if other is not answer]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of a step; frozen values have none."""
        return sizes.FLOAT_BYTES * self.checkpoint.trained


def ask(config: Config, hosts: Sequence[Host], connections: Connections) -> PlannedRun:
    """Ask the hosts of a run that is to come."""
    request = {
        "run_dir": str(config.run_dir), "data": str(config.data.directory),
        "device": config.training.device,
    }  # fmt: skip
    return PlannedRun(config, connections.ask(hosts, request))


def examine(run: PlannedRun) -> list[Check]:
    """Every check of every host, in the order in which one would fix them."""
    checks = [reached(answer) for answer in run.answers]
    known = [answer for answer in run.answers if answer.facts]
    if run.config.ranks not in (0, run.ranks):
        wanted = count(run.config.ranks, "rank")
        result = f"{count(run.ranks, 'slot')}, but the configuration wants {wanted}"
        checks.append(Check("ranks", "", FAIL, result, "make slots and --ranks agree"))
    for name in _MUST_BE_EQUAL:
        checks += _compare(name, known)
    for name, judge in _JUDGES.items():
        checks += [Check(name, answer.host.name, *judge(answer, run)) for answer in known]
    return [check for check in checks if check.result]


def reached(answer: HostFacts) -> Check:
    """Whether a host answers."""
    host, error = answer.host.name, answer.error
    if error is None:
        return Check("ssh", host, OK, "answers")
    return Check("ssh", host, FAIL, error, _SSH_REMEDY.format(host=host))


def table(checks: Sequence[Check]) -> str:
    """A line for each check, and the remedies; hosts with the same result share a line."""
    groups: dict[Check, list[str]] = {}
    for check in checks:
        groups.setdefault(dataclasses.replace(check, host=""), []).append(check.host)
    remedies = list(dict.fromkeys(check.remedy for check in groups if check.remedy))
    rows = []
    for check, hosts in groups.items():
        note = f"  [{remedies.index(check.remedy) + 1}]" if check.remedy else ""
        rows.append((check.status.upper(), check.name, ", ".join(hosts), check.result + note))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows]
    if remedies:
        lines += ["", *(f"[{number}] {text}" for number, text in enumerate(remedies, 1))]
    return "\n".join(lines)


def _compare(name: str, answers: Sequence[HostFacts]) -> Iterator[Check]:
    """A check per host: the values of most hosts are right, or else those of the first."""
    values = {answer.host.name: _compared(answer.facts)[name] for answer in answers}
    known = [value for value in values.values() if value]
    common = max(known, key=known.count, default={})
    holder = next((host for host, value in values.items() if value == common), "")
    for host, value in values.items():
        if differing := [key for key in value if value[key] != common.get(key)]:
            result = f"{_listed(value, differing)}, but {_listed(common, differing)} on {holder}"
            yield Check(name, host, FAIL, result, _MUST_BE_EQUAL[name])
        else:
            yield Check(name, host, OK, _listed(value, value))


def _compared(facts: dict[str, Any]) -> dict[str, dict[str, str | None]]:
    """Name in `_MUST_BE_EQUAL` -> what a host has, by names; None: nothing of that name."""
    built, data = facts["horovod"], facts["data"]
    built_with = ", ".join(name for name in built if built[name])
    return {
        "versions": facts["packages"] | {"Horovod with": built_with},
        "code of hvd_nmt": {"": facts["code"][:12]},
        "data hash": {"": data["hash"][:12]} if data.get("hash") else {},
    }


def _listed(values: dict[str, str | None], names: Iterable[str]) -> str:
    return ", ".join(f"{name} {values.get(name) or 'none'}".lstrip() for name in names)


def _names(answer: HostFacts, run: PlannedRun) -> Judgement:
    """Every host's name must lead to it, and that of another not back to this one."""
    others = run.others(answer)
    if not others:
        return OK, "", ""
    addresses = answer.facts["names"]
    unknown = [name for name in (*others, answer.facts["host"]) if not addresses[name]]
    remedy = "write the address of the fast network card into /etc/hosts of every host"
    if unknown:
        return FAIL, f"cannot resolve {', '.join(unknown)}", remedy
    for name in others:
        bare = [address.partition("%")[0] for address in addresses[name]]
        if all(ipaddress.ip_address(address).is_loopback for address in bare):
            return FAIL, f"resolves {name} to itself ({addresses[name][0]})", remedy
    return OK, "all hosts resolve", ""


def _clock(answer: HostFacts, run: PlannedRun) -> Judgement:
    if answer.clock_differs_s > CLOCK_TOLERANCE_S:
        result = f"{answer.clock_differs_s:.1f} s from the clock here"
        return WARN, result, "let chrony or systemd-timesyncd set the clocks"
    return OK, "as here", ""


def _horovod(answer: HostFacts, run: PlannedRun) -> Judgement:
    built = answer.facts["horovod"]
    if not built["tensorflow"]:
        return FAIL, "it is missing or was built without TensorFlow", "make install there"
    if answer.facts["gpu"]["gpus"] and not built["nccl"]:
        why = "without NCCL every gradient passes through the host's memory"
        return WARN, "there are GPUs, but it has no NCCL", f"GPU=1 make install there: {why}"
    return OK, "", ""


def _gpus(answer: HostFacts, run: PlannedRun) -> Judgement:
    gpu, slots, host = answer.facts["gpu"], answer.host.slots, answer.host.name
    visible, cores = visible_gpus(gpu), answer.facts["cores"]
    broken = [f"GPU {one['index']}: {one['error']}" for one in visible if one["error"]]
    if broken:
        return FAIL, "; ".join(broken), "reset or replace the GPU (nvidia-smi, dmesg), or reboot"
    if gpu["gpus"]:
        seen = f"{count(len(visible), 'GPU')} visible of {len(gpu['gpus'])}"
        result = f"{count(slots, 'slot')}, {seen}" + (f": {visible[0]['name']}" if visible else "")
        if len(visible) < slots:
            fewer = f"give {host} {count(len(visible), 'slot')}"
            return FAIL, result, f"{fewer}, or see nvidia-smi and CUDA_VISIBLE_DEVICES there"
        if len(visible) > slots:
            return WARN, result, f"{host}:{len(visible)} would use all of them"
        return OK, result, ""
    if any(other.facts and other.facts["gpu"]["gpus"] for other in run.answers):
        result = f"no GPU ({gpu['unavailable'] or 'NVML shows none'}), other hosts have some"
        return FAIL, result, f"install the NVIDIA driver on {host}, or remove it from the hosts"
    result = f"no GPU: {count(slots, 'slot')} on {count(cores, 'core')}"
    if slots > cores:
        enough = count(cores, "slot")
        return WARN, result, f"more ranks than cores only wait for each other: give {enough}"
    return OK, result, ""


def visible_gpus(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    """The GPUs of a fact that CUDA_VISIBLE_DEVICES leaves; a MIG slice counts as one."""
    if gpu["visible_devices"] is None:
        return gpu["gpus"]
    visible: list[dict[str, Any]] = []
    for word in gpu["visible_devices"].replace(" ", "").split(","):
        for one in gpu["gpus"]:
            is_named = word.startswith("GPU-") and one["uuid"].startswith(word)
            if is_named or word == str(one["index"]) or word.startswith("MIG-"):
                visible.append(one)
                break
    return visible


def _network(answer: HostFacts, run: PlannedRun) -> Judgement:
    """The card that leads to the other hosts, its speed, and what a step costs at that speed."""
    others, routes, nics = run.others(answer), answer.facts["routes"], answer.facts["nics"]
    if not others:
        return OK, "", ""
    lost = [name for name in others if routes.get(name) is None]
    if lost:
        return FAIL, f"no route to {', '.join(lost)}", "give the hosts addresses in one network"
    names = sorted(_nics_to_others(answer, run.answers))
    speed = nics.get(names[0], {}).get("link_mbit_per_s")
    result = f"{', '.join(names)} to the others, " + _speed_words(speed, run)
    if used_nic(run.answers) is None:
        remedy = "Horovod needs one interface name on all hosts: rename the cards"
        return FAIL, result + "; the other hosts use a card of another name", remedy
    faster = {
        name: nic["link_mbit_per_s"] for name, nic in nics.items()
        if nic["is_up"] and not name.startswith(_VIRTUAL_NICS)
        and speed and (nic["link_mbit_per_s"] or 0) > 1.5 * speed
    }  # fmt: skip
    if faster:
        best = max(faster, key=faster.__getitem__)
        remedy = f"in /etc/hosts of every host, give the names the addresses of {best}"
        return WARN, f"{result}; {best} has {faster[best]:,} Mbit/s", remedy
    if speed and speed < SLOW_LINK_MBIT_PER_S:
        return WARN, result, "a faster link, or more tokens per step (--training.tokens-per-step)"
    return OK, result, ""


def _speed_words(speed_mbit_per_s: int | None, run: PlannedRun) -> str:
    if not speed_mbit_per_s:
        return "of unknown speed"
    sent = ring_bytes(run.gradient_bytes, run.ranks)
    seconds = sent / (speed_mbit_per_s * 1e6 / 8)
    return f"{speed_mbit_per_s:,} Mbit/s: {data_size(sent)} a step take {seconds:.2f} s or more"


def _nics_to_others(answer: HostFacts, answers: Sequence[HostFacts]) -> set[str]:
    routes = answer.facts.get("routes", {})
    nics = {routes.get(other.host.name) for other in answers if other.host != answer.host}
    return {nic for nic in nics if nic}


def used_nic(answers: Sequence[HostFacts]) -> str | None:
    """The interface, of one name on all hosts, that leads from each to the others; else None."""
    names = {name for answer in answers for name in _nics_to_others(answer, answers)}
    return names.pop() if len(names) == 1 else None


def _disk(answer: HostFacts, run: PlannedRun) -> Judgement:
    """Room for the checkpoints, which each host keeps that shares no file system with others."""
    run_dir, kept = answer.facts["run_dir"], run.config.checkpoints
    number = kept.keep + 1 + kept.keep_best  # one is written before the oldest is removed
    needed = LOGS_BYTES + max(0, number * run.checkpoint.n_bytes - run_dir["held_bytes"])
    what = count(number, "checkpoint")
    result = f"{data_size(run_dir['free_bytes'])} free, {what} need {data_size(needed)}"
    if run_dir["free_bytes"] < needed:
        return FAIL, result, f"free some for {run_dir['path']}, or lower --checkpoints.keep-best"
    return OK, result, ""


def _run_dir(answer: HostFacts, run: PlannedRun) -> Judgement:
    run_dir = answer.facts["run_dir"]
    if run_dir["error"]:
        return FAIL, f"cannot write {run_dir['error']}", "fix its permissions, or other --run-dir"
    if run_dir["held_by"]:
        result = f"another run is in {run_dir['path']} ({run_dir['held_by']})"
        return FAIL, result, "wait for it, end it, or give another --run-dir"
    return OK, f"{run_dir['path']} is writable", ""


def _data(answer: HostFacts, run: PlannedRun) -> Judgement:
    data, config = answer.facts["data"], run.config.data
    if data["error"] and config.corpus == "embedded" and not data["exists"]:
        return OK, f"{config.directory} will be prepared at the start", ""
    if data["error"]:
        return FAIL, data["error"], "prepare it there, or copy the directory from another host"
    return OK, f"{config.directory}: {data['pairs']:,} pairs", ""


_JUDGES: dict[str, Callable[[HostFacts, PlannedRun], Judgement]] = {
    "names": _names, "clock": _clock, "Horovod": _horovod, "GPUs": _gpus, "network": _network,
    "disk": _disk, "run directory": _run_dir, "data": _data,
}  # fmt: skip

"""What must hold on each host, and be equal on all: from the answers of hosts to checks."""

import dataclasses
import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_nmt.common.units import count, data_size
from hvd_nmt.config import Config, Precision
from hvd_nmt.config.precision import pick
from hvd_nmt.diagnosis.hosts import Answer
from hvd_nmt.diagnosis.planned_run import PlannedRun
from hvd_nmt.explain.exchange_cost import ring_bytes

OK, WARN, FAIL = "ok", "warn", "fail"
Judgement = tuple[str, str, str]
"""of a check: status, what was found ("": nothing worth a line), remedy"""
NEEDED = ("Python", "tensorflow", "tensorflow-text", "tf-keras", "horovod")
"""without which, or with different versions of which, a run refuses to start"""
CLOCK_TOLERANCE_S = 1.0
SLOW_LINK_MBIT_PER_S = 1000
LOGS_BYTES = 200_000_000
"""beside the checkpoints: logs and telemetry"""
CHECKPOINT_EXTRA_BYTES = 1_000_000
"""index, meta graph and manifest beside the data file of a checkpoint, about"""
_MOST_HOSTS = 24
"""characters of the column with host names"""
_VIRTUAL_NICS = ("docker", "veth", "br-", "virbr", "tun", "tap", "cni", "flannel", "cali")
_INSTALL = "install the same versions on every host: make install there, from the same checkout"
_SSH_REMEDIES = {
    "permission denied": "give it your key: ssh-copy-id {host}",
    "host key verification": "accept its key once, by hand: ssh {host}",
    "resolve": "add {host} to /etc/hosts of every host, or to the name server",
    "refused": "start sshd on {host}",
}
_SSH_REMEDY = "see that {host} is on and that a firewall lets ssh through: ssh -v {host}"


@dataclass(frozen=True)
class Check:
    """What was looked at on a host, or on all together, and what was found."""

    name: str
    host: str
    """the host that was looked at, or "" for all together"""
    status: str
    """ok; warn: a run works, but worse than it could; fail: it will not start or not be right"""
    found: str
    """what was found, in words and numbers"""
    remedy: str = ""
    """what to do; "" where nothing has to be done"""


def examine(run: PlannedRun) -> list[Check]:
    """Every check of every host, in the order in which one would mend them."""
    checks = [reached(answer) for answer in run.answers]
    known = [answer for answer in run.answers if answer.facts]
    if run.config.ranks not in (0, run.ranks):
        wanted = count(run.config.ranks, "rank")
        found = f"{count(run.ranks, 'slot')}, but the configuration wants {wanted}"
        checks.append(Check("ranks", "", FAIL, found, "make slots and --ranks agree"))
    for name in _MUST_BE_EQUAL:
        checks += _compare(name, known, run.config)
    for name, facts, judge in _JUDGES:
        for answer in known:
            lacking = [fact for fact in facts if answer.facts.get(fact) is None]
            if lacking:
                why = answer.facts["problems"].get(lacking[0], "no reason given")
                judged = WARN, f"not found out: {why}", "mend what hinders the question"
            else:
                judged = judge(answer, run)
            checks.append(Check(name, answer.host.name, *judged))
    return [check for check in checks if check.found]


def reached(answer: Answer) -> Check:
    """Whether a host answers."""
    host, error = answer.host.name, answer.error
    if error is None:
        return Check("ssh", host, OK, f"answered in {answer.seconds:.1f} s")
    if answer.reached:
        remedy = "put checkout and .venv under the same path as here, start from the same folder"
        return Check("ssh", host, FAIL, f"the package does not run there: {error}", remedy)
    signs = (text for sign, text in _SSH_REMEDIES.items() if sign in error.lower())
    return Check("ssh", host, FAIL, error, next(signs, _SSH_REMEDY).format(host=host))


def table(checks: Sequence[Check]) -> str:
    """A line for each check, and the remedies; hosts of which the same was found share a line."""
    groups: dict[Check, list[str]] = {}
    for check in checks:
        groups.setdefault(dataclasses.replace(check, host=""), []).append(check.host)
    remedies = list(dict.fromkeys(check.remedy for check in groups if check.remedy))
    rows = []
    for check, hosts in groups.items():
        note = f"  [{remedies.index(check.remedy) + 1}]" if check.remedy else ""
        named = ", ".join(filter(None, hosts))
        if len(named) > _MOST_HOSTS:
            named = f"{hosts[0]} and {len(hosts) - 1} more"
        rows.append((check.status.upper(), check.name, named, check.found + note))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows]
    if remedies:
        lines += ["", *(f"[{number}] {text}" for number, text in enumerate(remedies, 1))]
    return "\n".join(lines)


Values = dict[str, str | None]
"""what is compared, by name; None: the host has none"""
_MUST_BE_EQUAL = {
    "versions": (FAIL, _INSTALL),
    "other versions": (WARN, _INSTALL),
    "Horovod build": (FAIL, "build Horovod alike on all hosts"),
    "code of hvd_nmt": (FAIL, "copy the same checkout to every host (git status, git log -1)"),
    "precision": (
        FAIL, "give one for all hosts: --training.precision float32 (or bfloat16, float16)"
    ),
    "data hash": (FAIL, "copy the data from one host to the others (rsync -a), whole"),
}  # fmt: skip
"""name -> status where it differs, remedy"""


def _compared(facts: dict[str, Any], config: Config) -> dict[str, Values | None]:
    """What a host has of `_MUST_BE_EQUAL`; None: it was not found out."""
    packages, gpu = facts["packages"], facts["gpu"] or {}
    others = {name: packages[name] for name in packages or () if name not in NEEDED}
    built, data = facts["horovod"], facts["data"] or {}
    picked = _precision(facts, config.training.precision)
    return {
        "versions": packages and {name: packages[name] for name in NEEDED},
        "other versions": others | ({"NVIDIA driver": gpu["driver"]} if gpu else {}),
        "Horovod build": built and {"": ", ".join(name for name in built if built[name])},
        "code of hvd_nmt": facts["code"] and {"": facts["code"][:12]},
        "precision": None if picked is None else {"": picked},
        "data hash": {"": data["hash"][:12]} if data.get("hash") else {},
    }


def _precision(facts: dict[str, Any], wanted: Precision) -> str | None:
    """What a run on a host will pick; None where it is not known."""
    gpus, cpu = (facts["gpu"] or {}).get("gpus", []), facts["cpu"]
    capability = tuple(gpus[0]["capability"] or ()) if gpus else None
    if wanted == "auto" and (capability == () or (capability is None and cpu is None)):
        return None
    return pick(wanted, capability, bool(cpu and cpu["bfloat16"]))


def _compare(name: str, answers: Sequence[Answer], config: Config) -> Iterator[Check]:
    """A check per host: the values of most hosts are right, or else those of the first."""
    status, remedy = _MUST_BE_EQUAL[name]
    values = {answer.host.name: _compared(answer.facts, config)[name] for answer in answers}
    known = [value for value in values.values() if value]
    common = max(known, key=known.count, default={})
    holder = next((host for host, value in values.items() if value == common), "")
    for host, value in values.items():
        if value is None:
            yield Check(name, host, WARN, "not found out", "see the other checks of this host")
        elif differing := [key for key in value if value[key] != common.get(key)]:
            found = f"{_listed(value, differing)}, but {_listed(common, differing)} on {holder}"
            yield Check(name, host, status, found, remedy)
        else:
            yield Check(name, host, OK, _listed(value, value))


def _listed(values: Values, names: Iterable[str]) -> str:
    return ", ".join(f"{name} {values.get(name) or 'none'}".lstrip() for name in names)


def _names(answer: Answer, run: PlannedRun) -> Judgement:
    """Every host's name must lead to it, and its own not back into itself."""
    if len(run.answers) == 1:
        return OK, "", ""
    names, own = answer.facts["names"], answer.facts["host"]
    of_the_run = {own, *(each.host.name for each in run.answers)}
    unknown = [name for name in names if name in of_the_run and not names[name]]
    remedy = "write the address of the fast network card into /etc/hosts of every host"
    if unknown:
        return FAIL, f"cannot resolve {', '.join(unknown)}", remedy
    others = [other.host.name for other in run.answers if other is not answer]
    inward = [name for name in others if all(map(_is_loopback, names[name]))]
    if inward:
        return FAIL, f"takes {inward[0]} for itself ({names[inward[0]][0]})", remedy
    if all(map(_is_loopback, names[own])):
        found = f"its own name {own} leads to {names[own][0]}, which others cannot reach"
        remedy = f"let {own} stand for the address of its network card in its own /etc/hosts"
        return WARN, found, remedy
    return OK, "all hosts resolve", ""


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _clock(answer: Answer, run: PlannedRun) -> Judgement:
    if answer.clock_differs_s > CLOCK_TOLERANCE_S:
        found = f"{answer.clock_differs_s:.1f} s from ours"
        return WARN, found, "let chrony or systemd-timesyncd set the clocks"
    return OK, "as ours", ""


def _packages(answer: Answer, run: PlannedRun) -> Judgement:
    lacking = [name for name in NEEDED if answer.facts["packages"][name] is None]
    return (FAIL, f"no {', '.join(lacking)}", "make install there") if lacking else (OK, "", "")


def _horovod(answer: Answer, run: PlannedRun) -> Judgement:
    built, gpu = answer.facts["horovod"], answer.facts["gpu"] or {}
    if not built["tensorflow"]:
        return FAIL, "it is missing or was built without TensorFlow", "make install there"
    if gpu.get("gpus") and not built["nccl"]:
        why = "without NCCL every gradient passes through the host's memory"
        return WARN, "there are GPUs, but it has no NCCL", f"GPU=1 make install there: {why}"
    return OK, "", ""


def _gpus(answer: Answer, run: PlannedRun) -> Judgement:
    gpu, slots, host = answer.facts["gpu"], answer.host.slots, answer.host.name
    visible, cores = visible_gpus(gpu), answer.facts["cpu"]["cores"]
    broken = [*gpu["problems"], *(f"GPU {g['index']}: {g['error']}" for g in visible if g["error"])]
    if broken:
        return FAIL, "; ".join(broken), "reset or replace the GPU (nvidia-smi, dmesg), or reboot"
    if gpu["gpus"]:
        seen = f"{count(len(visible), 'GPU')} visible of {len(gpu['gpus'])}"
        found = f"{count(slots, 'slot')}, {seen}" + (f": {visible[0]['name']}" if visible else "")
        if len(visible) < slots:
            fewer = f"give {host} {count(len(visible), 'slot')}"
            return FAIL, found, f"{fewer}, or see nvidia-smi and CUDA_VISIBLE_DEVICES there"
        if len(visible) > slots:
            return WARN, found, f"{host}:{len(visible)} would use all of them"
        return OK, found, ""
    if any((other.facts.get("gpu") or {}).get("gpus") for other in run.answers):
        found = f"no GPU ({gpu['unavailable'] or 'NVML shows none'}), other hosts have some"
        return FAIL, found, f"install the NVIDIA driver on {host}, or leave it out"
    found = f"no GPU: {count(slots, 'slot')} on {count(cores, 'core')}"
    if slots > cores:
        enough = count(cores, "slot")
        return WARN, found, f"more ranks than cores only wait for each other: give {enough}"
    return OK, found, ""


def visible_gpus(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    """The GPUs of a fact that CUDA_VISIBLE_DEVICES leaves; a MIG slice counts as one."""
    if gpu["visible_devices"] is None:
        return gpu["gpus"]
    found: list[dict[str, Any]] = []
    for word in gpu["visible_devices"].replace(" ", "").split(","):
        is_name = word.startswith("GPU-")
        found += [
            one for one in gpu["gpus"]
            if word == str(one["index"]) or (is_name and one["uuid"].startswith(word))
        ] or gpu["gpus"][: word.startswith("MIG-")]  # fmt: skip
    return found


def _network(answer: Answer, run: PlannedRun) -> Judgement:
    """The card that leads to the other hosts, its speed, and what a step costs at that speed."""
    if len(run.answers) == 1:
        return OK, "", ""
    routes, nics = answer.facts["routes"], answer.facts["nics"]
    others = [other.host.name for other in run.answers if other is not answer]
    lost = [name for name in others if routes.get(name) is None]
    if lost:
        return FAIL, f"no route to {', '.join(lost)}", "give the hosts addresses in one network"
    names = sorted(_nics_to_others(answer, run.answers))
    speed = (nics.get(names[0]) or {}).get("link_mbit_per_s")
    found = f"{', '.join(names)} to the others, " + _speed_words(speed, run)
    if used_nic(run.answers) is None:
        remedy = "horovodrun takes one interface name for all hosts: rename the cards alike"
        return FAIL, found + "; the other hosts use a card of another name", remedy
    faster = {
        name: nic["link_mbit_per_s"] for name, nic in nics.items()
        if nic["is_up"] and not nic["is_loopback"] and not name.startswith(_VIRTUAL_NICS)
        and speed and (nic["link_mbit_per_s"] or 0) > 1.5 * speed
    }  # fmt: skip
    if faster:
        best = max(faster, key=lambda name: faster[name])
        remedy = f"let the host names stand for the addresses of {best} in /etc/hosts of every host"
        return WARN, f"{found}; {best} has {faster[best]:,} Mbit/s", remedy
    if speed and speed < SLOW_LINK_MBIT_PER_S:
        return WARN, found, "a faster link, or more tokens per step (--training.tokens-per-step)"
    return OK, found, ""


def _speed_words(speed_mbit_per_s: int | None, run: PlannedRun) -> str:
    if not speed_mbit_per_s:
        return "whose speed the driver does not tell"
    sent = ring_bytes(run.gradient_bytes, run.ranks)
    seconds = sent / (speed_mbit_per_s * 1e6 / 8)
    return f"{speed_mbit_per_s:,} Mbit/s: {data_size(sent)} a step take {seconds:.2f} s or more"


def _nics_to_others(answer: Answer, answers: Sequence[Answer]) -> set[str]:
    routes = answer.facts.get("routes") or {}
    found = {routes.get(other.host.name) for other in answers if other.host != answer.host}
    return {name for name in found if name}


def used_nic(answers: Sequence[Answer]) -> str | None:
    """The interface, of one name on all hosts, that leads from each to the others; else None."""
    names = {name for answer in answers for name in _nics_to_others(answer, answers)}
    return names.pop() if len(names) == 1 else None


def _disk(answer: Answer, run: PlannedRun) -> Judgement:
    """Room for the checkpoints, which each host keeps that shares no file system with others."""
    disk, kept = answer.facts["disk"], run.config.checkpoints
    number = kept.keep + 1 + kept.keep_best  # one is written before the oldest is removed
    held = (answer.facts["run_dir"] or {}).get("held_bytes", 0)
    each = run.checkpoint.n_bytes + CHECKPOINT_EXTRA_BYTES
    needed = LOGS_BYTES + max(0, number * each - held)
    what = count(number, "checkpoint")
    found = f"{data_size(disk['free_bytes'])} free, {what} need {data_size(needed)}"
    if disk["free_bytes"] < needed:
        return FAIL, found, f"free some on {disk['path']}, or lower --checkpoints.keep-best"
    return OK, found, ""


def _run_dir(answer: Answer, run: PlannedRun) -> Judgement:
    run_dir = answer.facts["run_dir"]
    if run_dir["error"]:
        return FAIL, f"cannot write {run_dir['error']}", "mend its permissions, or other --run-dir"
    if run_dir["held_by"]:
        found = f"another run is in {run_dir['path']} ({run_dir['held_by']})"
        return FAIL, found, "wait for it, end it, or give another --run-dir"
    return OK, f"{run_dir['path']} is writable", ""


def _data(answer: Answer, run: PlannedRun) -> Judgement:
    data, config = answer.facts["data"], run.config.data
    if data["error"] and config.corpus == "embedded" and not data["exists"]:
        return OK, f"{config.directory} will be prepared at the start", ""
    if data["error"]:
        return FAIL, data["error"], "prepare it there, or copy the directory from another host"
    read = "every byte as prepared" if data["verified"] else "sizes as prepared, bytes not read"
    return OK, f"{config.directory}: {data['pairs']:,} pairs, {read}", ""


_JUDGES: tuple[tuple[str, tuple[str, ...], Callable[[Answer, PlannedRun], Judgement]], ...] = (
    ("names", ("names", "host"), _names),
    ("clock", (), _clock),
    ("packages", ("packages",), _packages),
    ("Horovod", ("horovod",), _horovod),
    ("GPUs", ("gpu", "cpu"), _gpus),
    ("network", ("routes", "nics"), _network),
    ("disk", ("disk",), _disk),
    ("run directory", ("run_dir",), _run_dir),
    ("data", ("data",), _data),
)

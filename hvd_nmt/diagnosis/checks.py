"""What must hold on each host: pure functions from the answers of hosts to checks."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

from hvd_nmt.common.units import count, data_size
from hvd_nmt.config.precision import cudnn_has_code
from hvd_nmt.diagnosis import equality, network_checks
from hvd_nmt.diagnosis.findings import FAIL, OK, WARN, Check, Judgement
from hvd_nmt.diagnosis.hosts import Answer
from hvd_nmt.diagnosis.planned_run import PlannedRun

CLOCK_TOLERANCE_S = 1.0
LOGS_BYTES = 200_000_000
"""beside the checkpoints: logs and telemetry"""
CHECKPOINT_EXTRA_BYTES = 1_000_000
"""index, meta graph and manifest beside the data file of a checkpoint, about"""
_SSH_REMEDIES = {
    "permission denied": "give it your key: ssh-copy-id {host}",
    "host key verification": "accept its key once, by hand: ssh {host}",
    "resolve": "add {host} to /etc/hosts of every host, or to the name server",
    "refused": "start sshd on {host}",
}
_SSH_REMEDY = "see that {host} is on and that a firewall lets ssh through: ssh -v {host}"


def examine(run: PlannedRun) -> list[Check]:
    """Every check of every host, in the order in which one would mend them."""
    checks = [reached(answer) for answer in run.answers]
    known = [answer for answer in run.answers if answer.facts]
    if run.config.ranks not in (0, run.ranks):
        wanted = count(run.config.ranks, "rank")
        found = f"{count(run.ranks, 'slot')}, but the configuration wants {wanted}"
        checks.append(Check("ranks", "", FAIL, found, "make slots and --ranks agree"))
    checks += equality.compare(known, run.config)
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
    return Check("ssh", answer.host.name, *_reached(answer))


def _reached(answer: Answer) -> Judgement:
    if answer.error is None:
        return OK, f"answered in {answer.seconds:.1f} s", ""
    if answer.reached:
        remedy = (
            "put the checkout and .venv under the same path as here, start from the same folder"
        )
        return FAIL, f"the package does not run there: {answer.error}", remedy
    words = answer.error.lower()
    remedy = next((text for sign, text in _SSH_REMEDIES.items() if sign in words), _SSH_REMEDY)
    return FAIL, answer.error, remedy.format(host=answer.host.name)


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
    offset_s, error_s = answer.clock_offset_s, answer.clock_error_s
    if offset_s is None or error_s is None:
        return OK, "", ""
    found = f"{offset_s * 1e3:+.0f} ms from ours, to {max(1.0, error_s * 1e3):.0f} ms"
    if abs(offset_s) - error_s > CLOCK_TOLERANCE_S:
        return WARN, found, "let chrony or systemd-timesyncd set the clocks"
    return OK, found, ""


def _horovod(answer: Answer, run: PlannedRun) -> Judgement:
    built, gpu = answer.facts["horovod"], answer.facts["gpu"] or {}
    if not built["tensorflow"]:
        return FAIL, "Horovod is missing or was built without TensorFlow", "make install there"
    if gpu.get("gpus") and not built["nccl"]:
        why = "without NCCL every gradient passes through the host's memory"
        found = "there are GPUs, but Horovod was built without NCCL"
        return WARN, found, f"GPU=1 make install there: {why}"
    return OK, "", ""


def _gpus(answer: Answer, run: PlannedRun) -> Judgement:
    gpu, slots = answer.facts["gpu"], answer.host.slots
    visible, cores = visible_gpus(gpu), answer.facts["cpu"]["cores"]
    broken = [*gpu["problems"], *(f"GPU {g['index']}: {g['error']}" for g in visible if g["error"])]
    if broken:
        return FAIL, "; ".join(broken), "reset or replace the GPU (nvidia-smi, dmesg), or reboot"
    if visible or gpu["gpus"]:
        seen = f"{count(len(visible), 'GPU')} visible of {len(gpu['gpus'])}"
        found = f"{count(slots, 'slot')}, {seen}" + (f": {visible[0]['name']}" if visible else "")
        if len(visible) < slots:
            fewer = f"give {answer.host.name} {count(len(visible), 'slot')}"
            return FAIL, found, f"{fewer}, or see nvidia-smi and CUDA_VISIBLE_DEVICES there"
        if len(visible) > slots:
            return WARN, found, f"{answer.host.name}:{len(visible)} would use all of them"
        return OK, found, ""
    if any((other.facts.get("gpu") or {}).get("gpus") for other in run.answers):
        found = f"no GPU ({gpu['unavailable'] or 'NVML shows none'}), other hosts have some"
        return FAIL, found, f"install the NVIDIA driver on {answer.host.name}, or leave it out"
    found = f"no GPU: {count(slots, 'slot')} on {count(cores, 'core')}"
    if slots > cores:
        enough = count(cores, "slot")
        return WARN, found, f"more ranks than cores only wait for each other: give {enough}"
    return OK, found, ""


def visible_gpus(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    """The GPUs of a fact that CUDA_VISIBLE_DEVICES leaves; a MIG slice counts as one."""
    gpus, listed = gpu["gpus"], gpu["visible_devices"]
    if listed is None:
        return gpus
    words = [word.strip() for word in listed.split(",") if word.strip()]
    numbers = [int(word) for word in words if word.isdecimal()]
    slices = [word for word in words if word.startswith("MIG-")]
    by_name = [
        one for one in gpus
        if any(word.startswith("GPU-") and one["uuid"].startswith(word) for word in words)
    ]  # fmt: skip
    return [one for one in gpus if one["index"] in numbers] + by_name + gpus[:1] * len(slices)


def _compute_capability(answer: Answer, run: PlannedRun) -> Judgement:
    """cuDNN must have been compiled for the GPUs of the ranks; of TensorFlow they tell it."""
    gpus = [gpu for gpu in visible_gpus(answer.facts["gpu"]) if gpu["capability"]]
    version = answer.facts["packages"].get("nvidia-cudnn-cu12")
    if not gpus or version is None:  # cuDNN came from somewhere else, or not
        return OK, "", ""
    without = [gpu for gpu in gpus if not cudnn_has_code(version, tuple(gpu["capability"]))]
    kinds = ", ".join(dict.fromkeys(
        f"{gpu['name']} ({'.'.join(map(str, gpu['capability']))})" for gpu in without or gpus
    ))  # fmt: skip
    if without:
        found = f"cuDNN {version} has no code for {kinds}: what needs it fails"
        # No certain failure: the graph of a step holds no convolution and no fused normalisation.
        return WARN, found, "TF=2.18 make install on every host: its cuDNN 9.3 has code for them"
    return OK, f"cuDNN {version} has code for {kinds}", ""


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
    ("Horovod", ("horovod",), _horovod),
    ("GPUs", ("gpu", "cpu"), _gpus),
    ("compute capability", ("gpu", "packages"), _compute_capability),
    ("network", ("routes", "nics"), network_checks.network),
    ("disk", ("disk",), _disk),
    ("run directory", ("run_dir",), _run_dir),
    ("data", ("data",), _data),
)

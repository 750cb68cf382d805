"""What must hold of the network between the hosts: by what they say of it, and by a measurement."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_nmt.common.gradient import ring_bytes
from hvd_nmt.common.units import count, data_size, step_duration
from hvd_nmt.config.limits import AUTO
from hvd_nmt.diagnosis.findings import FAIL, OK, WARN, Check, Judgement
from hvd_nmt.diagnosis.hosts import Answer
from hvd_nmt.diagnosis.measurement import Measurement
from hvd_nmt.diagnosis.planned_run import PlannedRun
from hvd_nmt.diagnosis.prediction import Prediction
from hvd_nmt.explain.bottleneck import LOCAL, NETWORK

SLOW_LINK_MBIT_PER_S = 1000
_VIRTUAL_NICS = ("docker", "veth", "br-", "virbr", "tun", "tap", "cni", "flannel", "cali")


def network(answer: Answer, run: PlannedRun) -> Judgement:
    """The card that leads to the other hosts, its speed, and what a step costs at that speed."""
    if len(run.answers) == 1:
        return OK, "", ""
    routes, nics = answer.facts["routes"], answer.facts["nics"]
    lost = [
        other.host.name for other in run.answers
        if other is not answer and (routes.get(other.host.name) or {}).get("nic") is None
    ]  # fmt: skip
    if lost:
        return FAIL, f"no route to {', '.join(lost)}", "give the hosts addresses in one network"
    names = sorted(_nics_to_others(answer, run.answers))
    name = names[0]
    speed = (nics.get(name) or {}).get("link_mbit_per_s")
    found = f"{', '.join(names)} to the others, " + _speed_words(speed, run)
    if used_nic(run.answers) is None:
        remedy = "horovodrun takes one interface name for all hosts: rename the cards alike"
        return FAIL, found + "; the other hosts use a card of another name", remedy
    faster = {
        other: nic["link_mbit_per_s"] for other, nic in nics.items()
        if nic["is_up"] and not nic["is_loopback"] and not other.startswith(_VIRTUAL_NICS)
        and speed and (nic["link_mbit_per_s"] or 0) > 1.5 * speed
    }  # fmt: skip
    if faster:
        best = max(faster, key=lambda other: faster[other])
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
    found = {
        (routes.get(other.host.name) or {}).get("nic")
        for other in answers if other.host != answer.host
    }  # fmt: skip
    return {name for name in found if name}


def used_nic(answers: Sequence[Answer]) -> str | None:
    """The interface, of one name on all hosts, that leads from each to the others; else None."""
    names = {name for answer in answers for name in _nics_to_others(answer, answers)}
    return names.pop() if len(names) == 1 else None


def judge_measurement(run: PlannedRun, measured: Measurement, predicted: Prediction) -> list[Check]:
    """What the measurement says about the network, about TensorFlow and the GPUs, and memory."""
    found = (
        f"{data_size(predicted.gradient_bytes)} in {step_duration(predicted.communication_s)}, "
        f"{predicted.bandwidth_MB_per_s:.1f} MB/s, {step_duration(predicted.latency_s)} latency"
    )
    remedy = ""
    nic = used_nic(run.answers)
    nics = [(answer.facts.get("nics") or {}).get(nic, {}) for answer in run.answers]
    speeds = [card.get("link_mbit_per_s") for card in nics]
    allowed_MB_per_s = min((speed / 8 for speed in speeds if speed), default=None)
    if allowed_MB_per_s and predicted.bandwidth_MB_per_s < 0.5 * allowed_MB_per_s:
        found += f" where {nic} allows {allowed_MB_per_s:,.0f}"
        others = "look for other traffic, a slower switch on the way, or a limit of the cloud"
        remedy = f"{others}; compare with iperf3"
    elif predicted.verdict in (NETWORK, LOCAL):
        exchange = "the exchange between the ranks of this host"
        what = "the network" if predicted.verdict == NETWORK else exchange
        remedy = f"see the advice below: {what} will decide the speed"
    judged = [Check("all-reduce", "", WARN if remedy else OK, found, remedy)]
    if any(measured.gpus):
        judged.append(Check("memory", "", *_memory(run, measured.slices)))
    with_gpus = {a.facts["host"] for a in run.answers if (a.facts["gpu"] or {}).get("gpus")}
    blind = {host for host, gpus in zip(measured.hosts, measured.gpus, strict=True)
             if host in with_gpus and not gpus}  # fmt: skip
    judged += [
        Check("TensorFlow", host, FAIL, "sees no GPU, though NVML does",
              "GPU=1 make install there: it installs the CUDA libraries of this TensorFlow")
        for host in sorted(blind)
    ]  # fmt: skip
    return judged


def _memory(run: PlannedRun, slices: int) -> Judgement:
    """What the trial of the widest step says."""
    asked = run.config.training.micro_batches
    if not slices:
        found = "the GPUs have too little for a single sentence of this length"
        return FAIL, found, "end other programs there, or take a smaller model"
    found = f"the widest step fits in {count(slices, 'slice')}"
    if asked != AUTO and slices > int(asked):
        return WARN, found, f"set --training.micro-batches {slices}, or auto"
    return OK, found, ""

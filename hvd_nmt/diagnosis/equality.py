"""What must be the same on all hosts: pure functions from the answers of hosts to checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hvd_nmt.config import Config, Precision
from hvd_nmt.config.precision import pick
from hvd_nmt.diagnosis.findings import FAIL, OK, WARN, Check
from hvd_nmt.diagnosis.hosts import Answer

NEEDED = ("tensorflow", "tensorflow-text", "tf-keras", "horovod")
"""packages without which, or with different versions of which, a run refuses to start"""
_INSTALL = "install the same versions on every host: make install there, from the same checkout"


def compare(answers: Sequence[Answer], config: Config) -> list[Check]:
    """The checks of everything that must be equal, for hosts that answered.

    The value of most hosts is right, that of the first if in doubt.
    """
    return [
        *_equal("Python", answers, lambda facts: facts["python"], _INSTALL),
        *_packages(answers),
        *_equal(
            "code of hvd_nmt", answers, lambda facts: facts["code"] and facts["code"][:12],
            "copy the same checkout to every host (git status, git log -1)",
        ),
        *_equal("Horovod build", answers, _horovod, "build Horovod alike on all hosts",
                missing_is_fine=True),
        *_equal("precision", answers, lambda facts: precision(facts, config.training.precision),
                "give one for all hosts: --training.precision float32 (or bfloat16, float16)"),
        *_equal("NVIDIA driver", answers, lambda facts: (facts["gpu"] or {}).get("driver"),
                "install the same driver on every host", differs=WARN, missing_is_fine=True),
        *_data(answers, config),
    ]  # fmt: skip


def precision(facts: dict[str, Any], wanted: Precision) -> str | None:
    """What a run on a host will pick; None where it is not known."""
    gpus, cpu = (facts["gpu"] or {}).get("gpus", []), facts["cpu"]
    capability = tuple(gpus[0]["capability"] or ()) if gpus else None
    if wanted == "auto" and (capability == () or (capability is None and cpu is None)):
        return None
    return pick(wanted, capability, bool(cpu and cpu["bfloat16"]))


def _equal(
    name: str,
    answers: Sequence[Answer],
    value_of: Callable[[dict[str, Any]], Any],
    remedy: str,
    differs: str = FAIL,
    missing_is_fine: bool = False,
) -> Iterator[Check]:
    """A check per host: ok with the common value, or what it has instead of it."""
    values = {answer.host.name: value_of(answer.facts) for answer in answers}
    known = [value for value in values.values() if value is not None]
    if not known and missing_is_fine:
        return
    common = max(known, key=known.count) if known else None
    holder = next((host for host, value in values.items() if value == common), "")
    for host, value in values.items():
        if value is None and not missing_is_fine:
            yield Check(name, host, WARN, "not found out", "see the other checks of this host")
        elif value == common:
            yield Check(name, host, OK, str(value))
        else:
            shown = "none" if value is None else value
            yield Check(name, host, differs, f"{shown}, but {common} on {holder}", remedy)


def _packages(answers: Sequence[Answer]) -> Iterator[Check]:
    """One check per host; a package that is needed must be there and equal, others should be."""
    versions = {answer.host.name: answer.facts["packages"] for answer in answers}
    known = {host: packages for host, packages in versions.items() if packages is not None}
    common = {}
    for name in {name for packages in known.values() for name in packages}:
        found = [packages.get(name) for packages in known.values()]
        common[name] = max(found, key=found.count)
    for host, packages in versions.items():
        if packages is None:
            yield Check("packages", host, WARN, "not found out", _INSTALL)
            continue
        lacking = [name for name in NEEDED if packages.get(name) is None]
        other = {
            name: f"{name} {packages.get(name)} instead of {version}"
            for name, version in sorted(common.items()) if packages.get(name) != version
        }  # fmt: skip
        if lacking:
            yield Check("packages", host, FAIL, f"no {', '.join(lacking)}", _INSTALL)
        elif other:
            status = FAIL if other.keys() & set(NEEDED) else WARN
            yield Check("packages", host, status, ", ".join(other.values()), _INSTALL)
        else:
            shown = ", ".join(f"{name} {packages[name]}" for name in ("tensorflow", "horovod"))
            yield Check("packages", host, OK, f"{shown}, {len(packages) - 2} more")


def _horovod(facts: dict[str, Any]) -> str | None:
    built = facts["horovod"]
    if built is None or not built["tensorflow"]:
        return None  # `checks` says so for each host
    with_what = [name for name in ("NCCL", "Gloo", "MPI") if built[name.lower()]]
    return "built with " + (", ".join(with_what) or "nothing to talk with")


def _data(answers: Sequence[Answer], config: Config) -> Iterator[Check]:
    """Data and vocabulary of the hosts that have them; `checks` says which hosts lack them."""
    ready = [answer for answer in answers if (answer.facts["data"] or {}).get("hash")]
    copy = f"copy {config.data.directory} from one host to the others (rsync -a)"
    yield from _equal("data hash", ready, _short("hash"), f"{copy}, whole")
    yield from _equal("vocabulary hash", ready, _short("vocabulary_hash"), f"{copy}, spm.model too")


def _short(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda facts: facts["data"][name][:12]

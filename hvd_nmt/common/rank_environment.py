"""The environment variables that a rank gets, by one list for the launchers and the doctor.

    python hvd_nmt/common/rank_environment.py RANKS     NAME=VALUE, each ended by a zero byte

An environment may hold secrets, and horovodrun and mpirun copy theirs onto command lines, which
any user can read. So a variable that is not listed here stays behind. launch/mpirun.sh runs this
file as a script, so it imports nothing of the package.
"""

import os
import re
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

PASSED = (
    "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TERM", "TMPDIR", "TZ", "SSH_AUTH_SOCK",
    "PATH", "PYTHONPATH", "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES", "NCCL_*", "GLOO_*", "HOROVOD_*", "HVD_NMT_*", "OMP_*", "KMP_*",
    # Not all of TF_*: Terraform's variables begin so too, and some of them are secret.
    "TF_CPP_*", "TF_CUDNN_*", "TF_DETERMINISTIC_*", "TF_DISABLE_*", "TF_ENABLE_*", "TF_FORCE_*",
    "TF_GPU_*", "TF_NUM_*", "TF_ONEDNN_*", "TF_USE_*", "TF_XLA_*", "XLA_FLAGS",
    # Where telemetry.tracker shows the run; not the keys, which the libraries also find in files.
    "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_*", "MLFLOW_RUN_NAME", "MLFLOW_ALLOW_FILE_STORE",
    "MLFLOW_HTTP_*", "MLFLOW_TRACKING_SERVER_CERT_PATH", "WANDB_PROJECT", "WANDB_ENTITY",
    "WANDB_MODE", "WANDB_DIR", "WANDB_BASE_URL", "WANDB_NAME", "WANDB_NOTES", "WANDB_TAGS",
    "WANDB_RUN_GROUP", "WANDB_JOB_TYPE", "WANDB_ERROR_REPORTING", "MLFLOW_DISABLE_TELEMETRY",
    "DO_NOT_TRACK",
)  # fmt: skip
"""patterns of the names that a rank gets"""
OF_ANOTHER_JOB = (
    "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_*", "HOROVOD_CROSS_*", "HOROVOD_HOSTNAME",
    "HOROVOD_GLOO_RENDEZVOUS_*", "HOROVOD_GLOO_IFACE", "HOROVOD_ELASTIC", "HOROVOD_CONTROLLER",
    "HVD_NMT_RANKS", "HVD_NMT_START_ID", "HVD_NMT_HEARTBEAT", "HVD_NMT_SPARE", "HVD_NMT_TERMINAL",
    "HVD_NMT_RESCUES",
)  # fmt: skip
"""patterns of names that, left from another job, would override those of every rank"""

START_ID = "HVD_NMT_START_ID"
"""id of the start of `hvd_nmt.launch` that a process belongs to; random, and no secret"""
HEARTBEAT = "HVD_NMT_HEARTBEAT"
"""number of the open file that a rank shares with its agent, see `common.heartbeat`"""
SPARE = "HVD_NMT_SPARE"
"""set in a process that waits until it is needed, see `tensorflow_import`"""
TERMINAL = "HVD_NMT_TERMINAL"
"""set where a terminal shows what the ranks print"""
RESCUES = "HVD_NMT_RESCUES"
"""set where each host saves what it has when another is lost, for it may continue without that"""


def passed(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables of an environment that a rank may get."""
    return {
        name: value
        for name, value in environment.items()
        if _matches(name, PASSED) and not _matches(name, OF_ANOTHER_JOB)
    }


def rank_environment(ranks: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """All variables with which to start some ranks: programs next to this Python come first."""
    kept = passed(environment)
    programs = os.fspath(Path(sys.executable).parent)
    return {
        # horovodrun imports TensorFlow for itself, which greets with a page about the processor.
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **kept,
        "PATH": os.pathsep.join(filter(None, (programs, kept.get("PATH")))),
        "HVD_NMT_RANKS": str(ranks),
    }


def are_numbers(gpus: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES can be meant for every host: numbers, no names of GPUs."""
    return re.fullmatch(r"(-?\d+(, *-?\d+)*)?", gpus) is not None


def integer(variable: str, default: int = 0) -> int:
    """A variable that a launcher sets to a number; the default where it is not set, or is none."""
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else default


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


if __name__ == "__main__":
    for name, value in rank_environment(int(sys.argv[1])).items():
        sys.stdout.buffer.write(os.fsencode(f"{name}={value}\0"))

"""Which variables reach the ranks."""

import os
import sys
from pathlib import Path

from hvd_nmt.common import rank_environment
from hvd_nmt.common.rank_environment import are_numbers, passed
from toy import python

PROGRAMS = os.fspath(Path(sys.executable).parent)


def test_what_decides_how_a_rank_runs_is_passed_and_secrets_stay_behind():
    taken = {
        "HOME", "LC_ALL", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "HOROVOD_CYCLE_TIME",
        "HOROVOD_FUSION_THRESHOLD", "OMP_NUM_THREADS", "TF_GPU_ALLOCATOR", "XLA_FLAGS",
        "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_MODE",
    }  # fmt: skip
    left = {
        "MY_TOKEN", "AWS_SECRET_ACCESS_KEY", "TF_VAR_password", "TF_TOKEN_app_terraform_io",
        "TF_CLI_ARGS", "_HOROVOD_SECRET_KEY", "HOROVOD_RANK", "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_CONTROLLER", "HVD_NMT_RANKS", "HOMES",
        "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY",
    }  # fmt: skip
    assert passed(dict.fromkeys(taken | left, "1")) == dict.fromkeys(taken, "1")


def test_numbers_of_gpus_are_for_all_hosts():
    assert all(map(are_numbers, ("0,1", "2", "", "-1")))
    assert not any(map(are_numbers, ("GPU-5a1b", "MIG-5a1b")))


def test_the_ranks_programs_are_those_of_this_python():
    of = rank_environment.rank_environment(4, {"PATH": "/usr/bin", "HVD_NMT_RANKS": "2"})
    assert of["PATH"] == f"{PROGRAMS}:/usr/bin"
    assert of["HVD_NMT_RANKS"] == "4"
    assert of["TF_CPP_MIN_LOG_LEVEL"] == "3"
    own = rank_environment.rank_environment(1, {"TF_CPP_MIN_LOG_LEVEL": "0"})
    assert (own["PATH"], own["TF_CPP_MIN_LOG_LEVEL"]) == (PROGRAMS, "0")


def test_as_a_script_it_hands_any_value_over_and_imports_no_package():
    odd = {"PATH": os.environ["PATH"], "LC_ODD": "two\nlines=1", "SECRET": "canary"}
    done = python("-I", "-S", rank_environment.__file__, "3", env=odd)
    assert {"HVD_NMT_RANKS=3", "LC_ODD=two\nlines=1", ""} <= set(done.stdout.split("\0"))
    assert "canary" not in done.stdout

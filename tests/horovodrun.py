"""Horovod's own horovodrun, told how Horovod was built; it would import TensorFlow twice to ask."""

from horovod.runner import launch

from hvd_nmt.common.version import horovod_built_with

if __name__ == "__main__":
    built = horovod_built_with()
    launch.gloo_built = lambda verbose=False: built["gloo"]
    launch.mpi_built = lambda verbose=False: built["mpi"]
    launch.run_commandline()

#!/usr/bin/env bash
# Starts a command on every rank with Open MPI's mpirun, for a Horovod that was built with MPI.
#
#   launch/mpirun.sh [-f HOSTFILE] [-n RANKS] [--nic NAME] -- COMMAND...
#
# The options are those of launch/horovodrun.sh. launch/setup.sh builds Horovod without MPI; on such a
# build this script stops, because every process would train alone and none would notice.
# Environment: VENV=.venv
set -euo pipefail
# shellcheck source=launch/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

read_options "$@"
# The line "MPI" of `horovodrun --check-build`, without its half minute.
if ! "$venv/bin/python" -c 'import sys, horovod.tensorflow as hvd; sys.exit(not hvd.mpi_built())' 2>/dev/null; then
    die "this Horovod was built without MPI, so each process would train alone; use launch/horovodrun.sh, or rebuild Horovod with HOROVOD_WITH_MPI=1."
fi
command -v mpirun >/dev/null || die "no mpirun on PATH; install Open MPI (Debian: apt-get install openmpi-bin)."
choose_hosts
choose_environment
exports=()
for variable in "${clean[@]}"; do
    exports+=(-x "${variable%%=*}")
done
printf 'Starting %d ranks on %s\n' "$ranks" "$hosts" >&2
exec env -i "${clean[@]}" mpirun -np "$ranks" -H "$hosts" --bind-to none --map-by slot \
    --mca pml ob1 --mca btl ^openib ${nic:+--mca btl_tcp_if_include "$nic" --mca oob_tcp_if_include "$nic"} \
    "${exports[@]}" "${command[@]}"

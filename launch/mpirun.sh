#!/usr/bin/env bash
# Starts a command on every rank with Open MPI's mpirun, for a Horovod that was built with MPI.
#
#   launch/mpirun.sh [-f HOSTFILE] [-n RANKS] [--nic NAME] -- COMMAND...
#
#   -f HOSTFILE   hosts and their slots, hostfiles/localhost if not given
#   -n RANKS      how many ranks, all slots of the file if not given
#   --nic NAME    the network card between the hosts, of the same name on each
#
# Only variables that training needs reach the ranks (hvd_nmt/common/rank_environment.py), and those of Open
# MPI and its libraries: OMPI_*, PMIX_*, PRTE_*, UCX_*.
# launch/setup.sh builds Horovod without MPI. With such a build this script stops, because every process
# would train alone and none would notice. Environment: VENV=.venv
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$(realpath -m "${VENV:-$root/.venv}")
hostfile=$root/hostfiles/localhost ranks='' nic=''

die() {
    printf 'launch/mpirun.sh: %s\n' "$*" >&2
    exit 2
}

while (($#)); do
    case $1 in
        -f | -n | --nic) (($# > 1)) || die "$1 needs a value; see $0 --help" ;;&
        -f) hostfile=$2; shift 2 ;;
        -n) ranks=$2; shift 2 ;;
        --nic) nic=$2; shift 2 ;;
        -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;;
        --) shift; break ;;
        *) die "'$1' is not an option; write the command after --, as in: $0 -n 2 -- python -m hvd_nmt.train" ;;
    esac
done
(($#)) || die "no command given; write it after --, as in: $0 -n 2 -- python -m hvd_nmt.train"
[[ -x $venv/bin/python ]] || die "$venv has no Python; run make install first."
# The line "MPI" of `horovodrun --check-build`, without its half minute.
"$venv/bin/python" -c 'import sys, horovod.tensorflow as hvd; sys.exit(not hvd.mpi_built())' 2>/dev/null ||
    die "this Horovod was built without MPI; use python -m hvd_nmt.launch, or rebuild Horovod with HOROVOD_WITH_MPI=1."
command -v mpirun >/dev/null || die "no mpirun on PATH; install Open MPI (Debian: apt-get install openmpi-bin)."
[[ -f $hostfile ]] || die "no host file $hostfile; the ones here: $(cd "$root" && echo hostfiles/[a-z]*)"
ranks=${ranks:-$(awk -F slots= '{sub(/#.*/, ""); n += $2} END {print n}' "$hostfile")}
[[ $ranks =~ ^[1-9][0-9]*$ ]] || die "the number of ranks is '$ranks', expected 1 or more."
mapfile -d '' -t clean < <("$venv/bin/python" -I -S "$root/hvd_nmt/common/rank_environment.py" "$ranks")
((${#clean[@]})) || die "$venv/bin/python did not tell which variables the ranks get; run make install first."
exports=()
for variable in "${clean[@]}"; do
    exports+=(-x "${variable%%=*}")
done
while IFS= read -r -d '' variable; do
    if [[ $variable =~ ^(OMPI|PMIX|PRTE|UCX)_ ]]; then
        clean+=("$variable")
        [[ $variable == UCX_* ]] && exports+=(-x "${variable%%=*}") # mpirun passes on its own ones
    fi
done < <(env -0)
exec env -i "${clean[@]}" mpirun -np "$ranks" --hostfile "$hostfile" --bind-to none --map-by slot \
    --mca pml ob1 --mca btl ^openib ${nic:+--mca btl_tcp_if_include "$nic" --mca oob_tcp_if_include "$nic"} \
    "${exports[@]}" "$@"

# Shared by the launchers in this directory; sourced, not run.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$(realpath -m "${VENV:-$root/.venv}")

die() {
    printf '%s: %s\n' "launch/$(basename "$0")" "$*" >&2
    exit 2
}

# Prints the comment at the top of the calling script.
usage() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}

# Sets hostfile, ranks (empty: all slots), nic and command from "[-f FILE] [-n N] [--nic NAME] -- COMMAND".
read_options() {
    hostfile=$root/hostfiles/localhost ranks='' nic='' command=()
    while (($#)); do
        case $1 in
            -f | -n | --nic) (($# > 1)) || die "$1 needs a value; see $0 --help" ;;&
            -f) hostfile=$2; shift 2 ;;
            -n) ranks=$2; shift 2 ;;
            --nic) nic=$2; shift 2 ;;
            -H) die "hosts are named in a file, with lines NAME slots=RANKS, and given as -f FILE; see hostfiles/" ;;
            -h | --help) usage; exit ;;
            --) shift; command=("$@"); break ;;
            *) die "'$1' is not an option; write the command after --, as in: $0 -n 2 -- python -m hvd_nmt.train" ;;
        esac
    done
    ((${#command[@]})) || die "no command given; write it after --, as in: $0 -n 2 -- python -m hvd_nmt.train"
    [[ -x $venv/bin/horovodrun ]] || die "$venv has no horovodrun; run make install first."
}

# Sets hosts to "a:2,b:1" with exactly `ranks` slots in all, and local_only to 1 or 0.
# The number given to horovodrun is only a minimum: it always starts every slot of the list, so
# the list itself must say how many ranks there are.
choose_hosts() {
    local line name slots count=0 total=0 number=0 left
    local names=() sizes=()
    [[ -f $hostfile ]] || die "no host file $hostfile; the ones here: $(cd "$root" && echo hostfiles/[a-z]*)"
    while read -r line || [[ $line ]]; do
        number=$((number + 1))
        line=${line%%#*}
        [[ $line =~ [^[:space:]] ]] || continue
        [[ $line =~ ^([A-Za-z0-9._-]+)[[:space:]]+slots=([1-9][0-9]*)[[:space:]]*$ ]] ||
            die "$hostfile line $number is '$line', expected: NAME slots=RANKS"
        names+=("${BASH_REMATCH[1]}") sizes+=("${BASH_REMATCH[2]}")
        total=$((total + BASH_REMATCH[2]))
    done <"$hostfile"
    ((total)) || die "$hostfile names no host; expected lines: NAME slots=RANKS"
    ranks=${ranks:-$total}
    [[ $ranks =~ ^[1-9][0-9]*$ ]] || die "the number of ranks is '$ranks', expected 1 or more."
    ((ranks <= total)) || die "$hostfile has $total slots, and $ranks ranks were asked for; ask for at most $total or raise the slots."
    hosts='' local_only=1 left=$ranks
    while ((left)); do
        name=${names[count]} slots=$((sizes[count] < left ? sizes[count] : left))
        hosts+=${hosts:+,}$name:$slots
        [[ $name == localhost || $name == 127.* || $name == "$(hostname)" ]] || local_only=0
        left=$((left - slots)) count=$((count + 1))
    done
    if ((local_only)); then
        nic=lo
    fi
}

# Sets clean to NAME=VALUE of the variables that a rank gets; the list is in rank_environment.py.
choose_environment() {
    mapfile -d '' -t clean < \
        <("$venv/bin/python" -I -S "$root/hvd_nmt/common/rank_environment.py" "$ranks")
    ((${#clean[@]})) || die "$venv/bin/python did not tell which variables the ranks get; run make install first."
}

#!/usr/bin/env bash
# Measures a GPU of this host with this package and writes one Markdown table: speed, share of what
# products alone reach, memory and energy of training in each precision.
#
#   launch/gpu-check.sh [OUT.md]    gpu-check.md if not given; takes some 25 minutes
#
# Nothing else may run on the GPU meanwhile. CUDA_VISIBLE_DEVICES picks it.
#
# Environment:
#   VENV=.venv
#   PRESETS="base big"                 models that are trained
#   PRECISIONS="bfloat16 float16"      arithmetic; float16 alone for a V100
#   COMPILE="off on"                   as a graph, and with XLA (training.jit_compile)
#   STEPS=30                           measured steps of each
#   OPTIONS=""                         more options for hvd_nmt.bench; --training.device cpu tries
#                                      the script out on a host without a GPU
set -euo pipefail
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
fi
out=$(realpath -m "${1:-gpu-check.md}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${VENV:-.venv}
python=$venv/bin/python
read -ra presets <<<"${PRESETS:-base big}"
read -ra precisions <<<"${PRECISIONS:-bfloat16 float16}"
read -ra compile <<<"${COMPILE:-off on}"
read -ra options <<<"${OPTIONS:-}"
corpus=(--data.corpus embedded --data.directory data/embedded-en-de-8k --data.vocabulary-size 8000)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

main() {
    header >"$out"
    {
        printf '\n| training | tokens/s | s/step | model FLOP/s | of products alone | waits for sums | peak memory | energy |\n'
        printf '|---|---|---|---|---|---|---|---|\n'
    } >>"$out"
    local preset precision xla
    for preset in "${presets[@]}"; do
        for precision in "${precisions[@]}"; do
            for xla in "${compile[@]}"; do
                printf 'training %s in %s, XLA %s\n' "$preset" "$precision" "$xla" >&2
                train "$preset" "$precision" "$xla" >>"$out"
            done
        done
    done
    printf '\nWith `-np 1` there is nothing to wait for: "waits for sums" should be near 0.\n' >>"$out"
    cat "$out"
}

header() {
    printf '# GPU check of %s, %s\n\n' "$(hostname)" "$(date -u +%Y-%m-%d)"
    nvidia-smi --query-gpu=name,memory.total,driver_version,power.limit --format=csv,noheader 2>/dev/null |
        sed 's/^/- /' || true
    "$python" - 2>"$work/errors" <<'END' || { cat "$work/errors" >&2; return 1; }
import horovod, horovod.tensorflow as hvd, tensorflow as tf
from hvd_nmt.common.version import __version__
built = [name for name in ("nccl", "mpi", "gloo") if getattr(hvd, f"{name}_built")()]
print(f"- hvd_nmt {__version__}, TensorFlow {tf.__version__}, Horovod {horovod.__version__} with {', '.join(built)}")
END
}

# A row: a model in a precision, with or without XLA, on the embedded corpus.
train() {
    local xla=--training.no-jit-compile
    [[ $3 == off ]] || xla=--training.jit-compile
    "$python" -m hvd_nmt.bench --preset "$1" --training.precision "$2" "$xla" \
        "${corpus[@]}" --steps "${STEPS:-30}" "${options[@]}" >"$work/bench" 2>"$work/errors" || {
        row_of_error "$1, $2, XLA $3"
        return
    }
    awk -v name="$1, $2, XLA $3" -F '   *' '
        {found[$1] = $2}
        END {
            split(found["s/step: median, min, max"], seconds, ",")
            print "| " name " | " found["real tokens/s, source + target"] " | " seconds[1] " | " \
                found["model FLOP/s"] " | " found["model FLOP/s of that (MFU)"] " | " \
                found["share of exposed communication"] " | " found["peak memory of all ranks"] " | " \
                found["energy of the GPUs"] " |"
        }' "$work/bench"
}

row_of_error() {
    printf '| %s | %s |\n' "$1" "$(tr -d '│╭╮╰╯─' <"$work/errors" | tr -s ' \n' ' ' | tail -c 300)"
}

main

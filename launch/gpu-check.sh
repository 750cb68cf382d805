#!/usr/bin/env bash
# Checks a GPU of this host with this package, part by part: is it right, is it fast, does a run work?
#
#   launch/gpu-check.sh [OUT_DIR]     gpu-check if not given; takes at most 10 minutes
#
# OUT_DIR gets gpu-check.md for you, gpu-check.jsonl for programs, gpu-check.log for errors. Each row is
# written when it is known, so what is cut off is lost alone. The exit code is 0 if all parts ran.
#
#   part     at most   what you get
#   device     50 s    what TensorFlow sees; products of 8,192: what training can reach at most;
#                      each field of the telemetry beside nvidia-smi, under load
#   truth      90 s    losses of 20 steps on the GPU and on the processor; moves of float16's loss scale
#   speed     180 s    training: tokens/s, share of what products alone reach, memory, energy
#   peer       90 s    the same of Hugging Face Marian, on the same batches
#   search     60 s    sentences/s of beam search, and of Hugging Face's generate
#   run        90 s    train, kill, resume, translate, report, doctor; two ranks on one GPU
#   profile    40 s    the ten dearest kernels of a training step, launches, gaps
#
# Nothing else may run on the GPU meanwhile. CUDA_VISIBLE_DEVICES picks it.
#
# Environment:
#   VENV=.venv                         or PYTHON=python3 with a PYTHONPATH
#   PEER_PYTHON=python3                has torch and transformers; without them there is no peer
#   PARTS="device truth speed peer search run profile"
#   PATIENCE=1                         factor of all limits: 3 for an old card
#   PRESETS="base big"                 models that are trained; peer, search and profile take the first
#   PRECISIONS="bfloat16 float16 float32"   arithmetic, likewise; "float16 float32" for a V100
#   COMPILE="off on"                   as a graph, and with XLA (training.jit_compile)
#   VOCABULARY=32768                   rows of their embedding; the text has 8,000 pieces
#   DATA=data/embedded-en-de-8k        prepared data; the embedded corpus is prepared where it is missing
#   STEPS=30 SIZE=8192 SENTENCES=1000 LENGTH=32 TRUTH_PRESET=small RUN_STEPS=400
#                                      training steps, products, sentences, tokens of each translation,
#                                      model of `truth`, steps of `run`
#   OPTIONS=""                         options of hvd_nmt.train for all parts; "--training.device cpu"
#                                      tries the script out on a host without a GPU
set -euo pipefail
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
fi
script=$(realpath "$0")
here=$(dirname "$script")/gpu_check
declare -A limits=([device]=50 [truth]=90 [speed]=180 [peer]=90 [search]=60 [run]=90 [profile]=40)

main() {
    export OUT_DIR WORK
    OUT_DIR=$(realpath -m "${1:-gpu-check}")
    DATA=${DATA:+$(realpath -m "$DATA")}
    cd "$(dirname "$script")/.."
    WORK=$(mktemp -d)
    child=''
    trap 'rm -rf "$WORK"' EXIT
    # `timeout` has a process group of its own, which Ctrl-C does not reach.
    trap '[[ ! $child ]] || kill "$child"; exit 130' INT TERM
    mkdir -p "$OUT_DIR"
    touch "$OUT_DIR/gpu-check.log"
    page=$OUT_DIR/gpu-check.md log=$OUT_DIR/gpu-check.log
    export PRESETS=${PRESETS:-base big} PRECISIONS=${PRECISIONS:-bfloat16 float16 float32}
    export COMPILE=${COMPILE:-off on} VOCABULARY=${VOCABULARY:-32768} OPTIONS=${OPTIONS:-}
    export DATA=${DATA:-data/embedded-en-de-8k} STEPS=${STEPS:-30} SIZE=${SIZE:-8192}
    export SENTENCES=${SENTENCES:-1000} LENGTH=${LENGTH:-32} TRUTH_PRESET=${TRUTH_PRESET:-small}
    export RUN_STEPS=${RUN_STEPS:-400} PEER_PYTHON=${PEER_PYTHON:-python3}
    export PYTHON=${PYTHON:-${VENV:-.venv}/bin/python} TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-1}
    export TF_USE_LEGACY_KERAS=1 # TensorFlow may be imported before hvd_nmt
    if [[ ! -e $DATA/manifest.json ]]; then
        "$PYTHON" -m hvd_nmt.prepare --dataset embedded --vocabulary-size 8000 --out "$DATA" >>"$log" 2>&1
    fi
    header >>"$page"
    local part failed=()
    for part in ${PARTS:-device truth speed peer search run profile}; do
        one_part "$part" || failed+=("$part")
    done
    cat "$page"
    if ((${#failed[@]})); then
        printf 'launch/gpu-check.sh: failed: %s; see %s\n' "${failed[*]}" "$log" >&2
        return 1
    fi
}

header() {
    printf '\n# GPU check of %s, %s\n\n' "$(hostname)" "$(date -u '+%Y-%m-%d %H:%M UTC')"
    printf -- '- hvd_nmt %s, commit %s, %s processors\n' \
        "$("$PYTHON" -c 'from hvd_nmt.common.version import __version__ as v; print(v)')" \
        "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" "$(nproc)"
    nvidia-smi --query-gpu=name,memory.total,driver_version,power.limit --format=csv,noheader 2>/dev/null |
        sed 's/^/- /' || printf -- '- no nvidia-smi here\n'
}

# Runs a part within its limit, and writes how it ended.
one_part() {
    local part=$1 begin=$SECONDS limit code=0 first said
    limit=${limits[$part]:?there is no part $part}
    limit=$(awk "BEGIN {print $limit * ${PATIENCE:-1}}")
    printf 'launch/gpu-check.sh: %s, at most %s s\n' "$part" "$limit" >&2
    printf '\n## %s\n' "$part" >>"$page"
    first=$(($(wc -c <"$log") + 1))
    timeout -k 5 "$limit" "$script" --part "$part" >>"$log" 2>&1 &
    child=$!
    wait "$child" || code=$?
    said="$part: $((SECONDS - begin)) s"
    if ((code == 124 || code == 137)); then
        said+=", cut off at its limit"
    elif ((code)); then
        said+=", failed with $code: $(tail -c +"$first" "$log" | tr -d '│╭╮╰╯─`' | tr -s ' \n' ' ' | tail -c 400)"
    fi
    note "$part" "$said." 2>>"$log"
    return "$code"
}

# note PART TEXT, or note PART TITLE CELL...: into the results.
note() { "$PYTHON" "$here/results.py" "$@"; }

ours() { "$PYTHON" "$here/$1.py"; }

peer() { env -u PYTHONPATH -u PYTHONNOUSERSITE "$PEER_PYTHON" "$here/peer.py" "$@"; }

has_peer() {
    local look='import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))'
    env -u PYTHONPATH -u PYTHONNOUSERSITE "$PEER_PYTHON" -c "$look" torch transformers && return
    note "$1" "No peer: $PEER_PYTHON has no torch and transformers."
    return 1
}

part_device() { ours device; }

part_truth() { ours truth; }

# A process that dies, of memory or in XLA, has lost one row; the next takes the rest.
part_speed() { ours speed || ours speed || ours speed; }

part_peer() {
    has_peer peer || return 0
    ours batches
    peer train
}

part_search() {
    ours search
    has_peer search || return 0
    ours batches
    peer search
}

part_profile() { ours profiled; }

part_run() {
    local run=$WORK/run train code=0 newest
    read -ra options <<<"$OPTIONS"
    train=(-m hvd_nmt.train --preset demo --data.corpus files --data.directory "$DATA"
        --training.max-steps "$RUN_STEPS" --evaluation.every-steps $((RUN_STEPS / 2))
        --checkpoints.every-steps $((RUN_STEPS / 8)) --training.log-every $((RUN_STEPS / 8)) "${options[@]}")
    timed "train, killed" until_checkpoint "$run" || code=1
    newest=$(find "$run" -maxdepth 1 -name '*.index' | sort -V | tail -n 1) || true
    timed "the same again, after ${newest##*/}" facts_of "$PYTHON" "${train[@]}" --run-dir "$run" || code=1
    timed "two ranks on one device" two_ranks & # meanwhile
    head -n 40 "$DATA/dev.$(sed -n 's/^  "source_language": "\(.*\)",/\1/p' "$DATA/manifest.json")" >"$WORK/in"
    timed "translate $(wc -l <"$WORK/in") lines" translated "$run" || code=1
    timed "report, question 4" question_4 "$run" || code=1
    timed "doctor" "$PYTHON" -m hvd_nmt.doctor --preset demo --data.corpus files --data.directory "$DATA" \
        "${options[@]}" || code=1
    wait $! || code=1
    return "$code"
}

# timed WHAT COMMAND...: a row with its seconds and the end of its output, or of its errors.
timed() {
    local what=$1 begin=$SECONDS code=0 output errors=$WORK/errors.$BASHPID
    shift
    output=$("$@" 2>"$errors") || code=$?
    cat "$errors" - <<<"$output"
    ((code == 0)) || output+=" exit code $code: $(tail -c 300 "$errors")"
    note run "A run" "$what" "$((SECONDS - begin))" "$(tr -s ' \n' ' ' <<<"$output" | tail -c 500)"
    return "$code"
}

# A command of training; its output is only what says where, how well and how equal.
facts_of() {
    "$@" 2>&1 | tee -a /dev/stderr | { grep -aE 'devices  |resuming  |checksum|Trained to|BLEU|Traceback|hvd_nmt\.[a-z]+: ' || true; }
}

# Trains until there is a checkpoint, and kills it.
until_checkpoint() {
    "$PYTHON" "${train[@]}" --run-dir "$1" >"$WORK/killed" 2>&1 &
    until compgen -G "$1/model.ckpt-*.index" >/dev/null || ! kill -0 $! 2>/dev/null; do
        sleep 0.1
    done
    kill -KILL $! 2>/dev/null || { cat "$WORK/killed" >&2 && return 1; }
    wait $! || true
    facts_of cat "$WORK/killed"
}

two_ranks() {
    CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} facts_of "$PYTHON" -m horovod.runner.launch -np 2 \
        -H localhost:2 --network-interface lo --disable-cache "$PYTHON" "${train[@]}" --run-dir "$WORK/two"
}

translated() {
    "$PYTHON" -m hvd_nmt.translate --run "$1" <"$WORK/in" >"$WORK/out"
    [[ $(wc -l <"$WORK/out") == "$(wc -l <"$WORK/in")" ]] && paste -d '\n' "$WORK/in" "$WORK/out" | head -n 2
}

question_4() {
    "$PYTHON" -m hvd_nmt.report "$1" >/dev/null
    sed -n '/^### 4/,/^### 5/p' "$1/report.md" | grep -v '^#' | head -n 20
}

if [[ ${1:-} == --part ]]; then
    "part_$2"
else
    main "$@"
fi

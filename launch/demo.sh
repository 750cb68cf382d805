#!/usr/bin/env bash
# Trains the embedded corpus on 2 ranks, translates its test part and scores it: `make train`.
#
#   launch/demo.sh [RUN_DIR [OPTION ...]]      runs/demo and no options of `train` by default;
#                                              the same command again resumes
#
# Environment: VENV=.venv
set -euo pipefail
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${VENV:-.venv}
run=${1:-runs/demo}
corpus=data/embedded-en-de
samples=10

mkdir -p "$run/logs"
"$venv/bin/python" -m hvd_nmt.launch -np 2 train --run-dir "$run" "${@:2}" 2>&1 | tee -ia "$run/logs/train.log"

"$venv/bin/python" -m hvd_nmt.translate --run "$run" <"$corpus/test.en" >"$run/test.de"

echo
paste -d '\n' "$corpus/test.en" "$run/test.de" "$corpus/test.de" | sed -n "1,$((3 * samples))p" |
    sed '1~3s/^/  source      /; 2~3s/^/  translation /; 0~3{s/^/  reference   /;G}' | fold -s -w 100
"$venv/bin/sacrebleu" "$corpus/test.de" -i "$run/test.de" -m bleu chrf --format text | fold -s -w 100

cat <<END

checkpoints   $run/model.ckpt-*
translation   $run/test.de
report        $run/report.html
TensorBoard   $venv/bin/tensorboard --logdir $run/tensorboard
logs          $run/logs
END

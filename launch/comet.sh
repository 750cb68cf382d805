#!/usr/bin/env bash
# Makes the environment in which python -m hvd_nmt.evaluate --comet MODEL computes COMET.
#
#   launch/comet.sh [DIR]   DIR is the virtual environment, ~/.cache/hvd_nmt/comet by default;
#                           another one is named to evaluate by HVD_NMT_COMET=DIR
#
# COMET needs PyTorch, and older versions of packages that TensorFlow needs too, so it cannot be in
# the environment of hvd_nmt. With PyTorch's CUDA libraries it takes 6 GB.
#
# Environment:
#   PYTHON=python3.12   the interpreter to use: 3.11 or 3.12, for the NumPy that COMET asks for
set -euo pipefail
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
fi

die() {
    printf 'launch/comet.sh: %s\n' "$*" >&2
    exit 1
}

default=${XDG_CACHE_HOME:-$HOME/.cache}/hvd_nmt/comet
venv=$(realpath -m "${1:-$default}")
python=''
for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
    version=$("$candidate" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if [[ $version == 3.11 || $version == 3.12 ]]; then
        python=$candidate
        break
    fi
done
[[ $python ]] || die "no Python 3.11 or 3.12 with the venv module found; install one, or run: PYTHON=/path/to/python launch/comet.sh"
[[ -d $venv && ! -f $venv/pyvenv.cfg && $(ls -A "$venv") ]] &&
    die "$venv exists and is no virtual environment; name a new directory."
mkdir -p "$(dirname "$venv")"
"$python" -m venv "$venv"
# torchmetrics, which COMET asks for, imports pkg_resources, which setuptools 82 removed.
"$venv/bin/python" -m pip install --disable-pip-version-check -q "unbabel-comet>=2.2.4,<3" "setuptools<81" ||
    die "the packages could not be installed in $venv; see above, and run it again."
"$venv/bin/python" -W ignore -c 'import comet' ||
    die "COMET cannot be imported in $venv; see above."
printf 'Ready: %s\n' "$venv" >&2
[[ $venv == "$default" ]] || printf 'Before evaluate: export HVD_NMT_COMET=%s\n' "$venv" >&2

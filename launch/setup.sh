#!/usr/bin/env bash
# Installs hvd_nmt with everything it needs into a virtual environment.
#
#   launch/setup.sh [DIR]               DIR is the virtual environment, .venv of this checkout by default
#   launch/setup.sh --collect TO [DIR]  copies into the folder TO what an installation like that in DIR
#                                       needs, for a machine without internet (HVD_NMT_WHEELS there)
#
# The second run does nothing when nothing changed. Horovod is built once, against the TensorFlow
# in the environment, and its wheel is kept in ~/.cache/hvd_nmt/wheels for the next environment.
#
# Environment:
#   TF=2.21|2.18        the TensorFlow; 2.18 for V100 GPUs; by default what DIR has, 2.21 in a new one
#   PYTHON=python3.12   the interpreter to use: 3.11, 3.12 or 3.13 (TF=2.18: 3.11 or 3.12)
#   GPU=auto|1|0        NCCL in Horovod: if nvcc and a GPU are here | always (needs nvcc) | never
#   CUDA_WHEELS=0|1     CUDA and cuDNN for TensorFlow from PyPI (3 GB); 1 if a GPU is here
#   HVD_NMT_WHEELS=TO   install from the folder TO alone, without internet
#   EXTRAS=dev,ctranslate2
set -euo pipefail
unset PYTHONDONTWRITEBYTECODE # common in containers: `verify` compiles modules for good
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
collection=''
if [[ ${1:-} == --collect ]]; then
    collection=${2:-wheels}
    shift "$(($# > 1 ? 2 : 1))"
fi
venv=$(realpath -m -- "${1:-$root/.venv}")
extras=${EXTRAS:-dev,ctranslate2}
log=$venv/setup.log
stamp=$venv/setup.stamp
# shellcheck source=launch/horovod_wheel.sh
source "$root/launch/horovod_wheel.sh"

main() {
    choose_tensorflow
    choose_build
    choose_index
    if is_ready; then
        return
    fi
    python=$(find_python || install_python)
    python_version=$(version_of_python "$python")
    wheel=$(find_horovod_wheel)
    [[ $wheel ]] || install_compiler
    create_venv
    if is_ready; then
        return
    fi
    install_packages
    logged "Installing Horovod" pip install -q --no-deps --force-reinstall "$wheel"
    verify
    fingerprint >"$stamp"
    say "Ready: $venv (source $venv/bin/activate)"
}

# What an installation needs that has no internet, from one that had: `make wheels` calls it.
collect() {
    choose_tensorflow
    choose_build
    is_ready || die "$venv is not installed as it would be now; run make install first."
    python_version=$(version_of_python "$venv/bin/python")
    mkdir -p "$collection"
    collection=$(realpath "$collection")
    say "Collecting the packages of $venv in $collection"
    cd "$root"
    logged "Downloading the packages" pip download -q -d "$collection" -c "$constraints" \
        --no-build-isolation setuptools wheel "cmake<4" ".[$(wanted_extras)]"
    download_horovod "$collection"
    wheel=$(find_horovod_wheel)
    mkdir -p "$collection/$(wheel_key)"
    cp "$wheel" "$collection/$(wheel_key)/"
    say "Ready: on the other machine run HVD_NMT_WHEELS=$collection make install"
}

say() { printf '%s\n' "$*" >&2; }

die() {
    printf 'launch/setup.sh: %s\n' "$*" >&2
    exit 1
}

# logged WHAT COMMAND...: runs it quietly; on failure shows the end of the log and where it is.
logged() {
    local what=$1 begin output
    shift
    begin=$(($(wc -c <"$log") + 1))
    printf '\n$ %s\n' "$*" >>"$log"
    { "$@"; } >>"$log" 2>&1 && return # its end by a signal is for the log, too
    output=$(tail -c +"$begin" "$log")
    ! grep -q "Operation cancelled by user" <<<"$output" || exit 130
    if grep -qE "Failed to establish a new connection|NameResolutionError|Network is unreachable|ConnectTimeoutError" <<<"$output"; then
        die "$what failed because the package index cannot be reached; with internet run make wheels DIR=wheels on a machine like this one, bring the folder here and run HVD_NMT_WHEELS=wheels make install. The full log is $log"
    fi
    tail -n 15 <<<"$output" >&2
    if [[ ${HVD_NMT_WHEELS:-} ]] && grep -qE "No matching distribution found|ResolutionImpossible" <<<"$output"; then
        die "$what failed: $HVD_NMT_WHEELS lacks a package for Python $python_version and TensorFlow $tf; collect it again with make wheels DIR=$HVD_NMT_WHEELS on a machine with that Python. The full log is $log"
    fi
    die "$what failed; the full log is $log"
}

is_ready() {
    [[ -f $stamp && $(<"$stamp") == "$(fingerprint)" && -x $venv/bin/python ]] &&
        [[ -z ${PYTHON:-} || $(version_of_python "$PYTHON") == "$(version_of_python "$venv/bin/python")" ]]
}

fingerprint() {
    cat "$root/setup.cfg" "$root/pyproject.toml" "$root"/constraints/*.txt "$root"/launch/{setup,horovod_wheel}.sh |
        sha256sum | cut -c1-64
    printf '%s\n' "$venv tf=$tf $build cuda_wheels=$cuda_wheels $extras"
}

# Sets tf and constraints. An environment keeps its TensorFlow until another is asked for.
choose_tensorflow() {
    tf=${TF:-$(sed -n 's/.* tf=\([0-9.]*\) .*/\1/p' "$stamp" 2>/dev/null || true)}
    tf=${tf:-2.21}
    constraints=$root/constraints/tf$tf.txt
    case $tf in
        2.21) pythons=(3.11 3.12 3.13) ;;
        2.18) pythons=(3.11 3.12) ;;
        *) die "TF is '$tf', expected 2.21 or, for V100 GPUs, 2.18." ;;
    esac
}

# Sets build to gloo or nccl, nvcc, and cuda_wheels to 0 or 1.
choose_build() {
    local gpus=0
    gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || true
    cuda_wheels=${CUDA_WHEELS:-$((gpus > 0))}
    nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc || true)
    case ${GPU:-auto} in
        0) build=gloo ;;
        1)
            [[ $nvcc ]] || die "GPU=1 needs nvcc to build Horovod with NCCL, and there is none on PATH or in /usr/local/cuda/bin; install the CUDA toolkit 12 or run again without GPU=1."
            build=nccl ;;
        auto)
            build=gloo
            if ((gpus > 0)) && [[ $nvcc ]]; then
                build=nccl
            elif ((gpus > 0)); then
                say "Warning: this host has $gpus GPU(s) but no nvcc, so Horovod gets no NCCL and gradients travel through the CPU; install the CUDA toolkit 12 and run again."
            fi ;;
        *) die "GPU is '$GPU', expected auto, 1 or 0." ;;
    esac
}

# With HVD_NMT_WHEELS pip looks there and nowhere else.
choose_index() {
    [[ ${HVD_NMT_WHEELS:-} ]] || return 0
    compgen -G "$HVD_NMT_WHEELS/*.whl" >/dev/null ||
        die "HVD_NMT_WHEELS=$HVD_NMT_WHEELS holds no wheels; fill it with make wheels DIR=$HVD_NMT_WHEELS on a machine with internet."
    HVD_NMT_WHEELS=$(realpath "$HVD_NMT_WHEELS")
    export PIP_FIND_LINKS=$HVD_NMT_WHEELS PIP_NO_INDEX=1
}

version_of_python() {
    "$1" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# The interpreter asked for; else that of the environment; else the first that will do.
find_python() {
    local candidate found=''
    for candidate in ${PYTHON:-"$(realpath -m "$venv/bin/python")" python3.11 python3.12 python3.13 python3}; do
        found=$(version_of_python "$candidate") || continue
        [[ " ${pythons[*]} " == *" $found "* ]] && command -v "$candidate" && return
    done
    if [[ ${PYTHON:-} ]]; then
        local what='does not run, or has no venv module'
        command -v "$PYTHON" >/dev/null || what='is not installed'
        die "PYTHON=$PYTHON ${found:+is Python }${found:-$what}. TensorFlow $tf with Horovod $horovod_version needs $(either_python): install one, then run: PYTHON=python${pythons[-1]} make install"
    fi
    return 1
}

either_python() {
    local last=${pythons[-1]} first=${pythons[*]:0:${#pythons[@]}-1}
    printf 'Python %s or %s' "${first// /, }" "$last"
}

# The distribution's Python, where none that will do is there; prints what find_python finds then.
install_python() {
    install_system_packages python3 python3-venv
    find_python ||
        die "no $(either_python) with the venv module found; install one, or run: PYTHON=/path/to/python make install"
}

install_compiler() {
    local packages=()
    [[ $venv != *[[:blank:]]* ]] ||
        die "Horovod cannot be built for $venv: its path has a blank; name another: make install VENV=/path/to/venv"
    [[ ! ${CXX:-} ]] || command -v "${CXX%% *}" >/dev/null ||
        die "the C++ compiler CXX=$CXX is not installed; install it or name another."
    command -v "${CXX:-g++}" >/dev/null || command -v c++ >/dev/null || packages+=(g++)
    command -v make >/dev/null || packages+=(make)
    ((${#packages[@]} == 0)) || install_system_packages "${packages[@]}"
    cxx -std=c++17 -x c++ -c -o /dev/null - 2>/dev/null <<<'#include <optional>' ||
        die "the C++ compiler ${CXX:-g++} does not know C++17, which TensorFlow needs; install g++ 9 or newer, or name another with CXX=/path/to/g++."
}

install_system_packages() {
    local how="apt-get install -y --no-install-recommends $*"
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        say "Installing system packages: $*"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive $how -qq; } >/dev/null ||
            die "this host lacks $* and apt-get could not install them; run: $how"
    else
        die "this host lacks $*; run: sudo $how"
    fi
}

create_venv() {
    local has kept=(! -name 'setup.*' ! -name wheels ! -name pyvenv.cfg)
    mkdir -p "$venv" 2>/dev/null || die "$venv cannot be made; name a place that can be written: make install VENV=/path/to/venv"
    lock "$venv" # another may be making it just now
    if [[ ! -f $venv/pyvenv.cfg && $(find "$venv" -mindepth 1 -maxdepth 1 "${kept[@]}" -print -quit) ]]; then
        die "$venv exists and is no virtual environment; name a new directory."
    fi
    : >"$log"
    # An environment that was moved or whose interpreter is gone cannot be mended, only made again.
    if ! grep -qsx "command = .* $venv" "$venv/pyvenv.cfg" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        say "Creating $venv with $("$python" --version)"
        find "$venv" -mindepth 1 -maxdepth 1 "${kept[@]}" -exec rm -rf {} +
        logged "Creating the virtual environment" "$python" -m venv "$venv"
    fi
    has=$(version_of_python "$venv/bin/python")
    [[ $has == "$python_version" ]] ||
        die "$venv has Python $has, not $python_version; remove it, or name another: make install VENV=/path/to/venv"
}

# lock DIR: until this script ends, or unlock; where the file system has no locks, goes on without.
lock() {
    exec {locked}<"$1"
    flock -n "$locked" && return
    if [[ $? == 1 ]]; then
        say "Waiting for another launch/setup.sh to finish."
    fi
    flock "$locked" 2>/dev/null || true
}

# Gives back what was locked last.
unlock() { exec {locked}<&-; }

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check "$@"
}

wanted_extras() {
    printf '%s' "$extras"
    ((cuda_wheels == 0)) || printf ',gpu'
}

install_packages() {
    say "Installing TensorFlow $tf and the other packages of constraints/ (some minutes the first time)"
    cd "$root"
    [[ ! -f $stamp ]] || sed -i 1d "$stamp" # not ready, should this be interrupted
    logged "Installing setuptools" pip install -q -c "$constraints" setuptools wheel
    if [[ $build == nccl ]]; then
        logged "Installing NCCL" pip install -q -c "$constraints" nvidia-nccl-cu12
    fi
    [[ $wheel ]] || begin_horovod_build
    # pip writes into the checkout, which other environments may be installed from meanwhile.
    lock "$root"
    # A path in a .pth file: setuptools' own finder loses the package in a folder that holds one of
    # the name hvd_nmt, such as that of the checkout. `verify` compiles the modules that it imports,
    # which training and translating do: all would take as long as the rest, and most are never used.
    logged "Installing the packages" pip install -q -c "$constraints" --no-build-isolation --no-compile \
        --config-settings editable_mode=compat -e ".[$(wanted_extras)]"
    unlock
    [[ $wheel ]] || end_horovod_build
}

verify() {
    local built
    logged "Importing hvd_nmt and Horovod" "$venv/bin/python" -c '
import hvd_nmt.training.run, hvd_nmt.translation.engine, horovod.tensorflow.keras as hvd
built = [name for name in ("nccl", "gloo", "mpi") if getattr(hvd, name + "_built")()]
print("Horovod can use:", *built)'
    built=$(sed -n 's/^Horovod can use: //p' "$log")
    [[ " $built " == *" $build "* ]] ||
        die "Horovod was to be built with $build but can only use ${built:-nothing}; the full logs are $venv/setup*.log"
    say "Horovod $horovod_version with: $built (all about it: ${venv##"$PWD"/}/bin/horovodrun --check-build)"
}

# Read as a whole before it starts: a pull meanwhile changes this file under the running shell.
{
    [[ $# -le 1 && ${1:-} != -* ]] || die "expected one directory, not: $* (--help shows how)"
    if [[ $collection ]]; then
        collect
    else
        main
    fi
    exit
}

#!/usr/bin/env bash
# Installs hvd_nmt with everything it needs into a virtual environment.
#
#   launch/setup.sh [DIR]          DIR is the virtual environment, .venv of this checkout by default
#
# The second run does nothing when nothing changed. Horovod is built once, against the TensorFlow
# in the environment, and its wheel is kept in ~/.cache/hvd_nmt/wheels for the next environment.
#
# Environment:
#   PYTHON=python3.11   the interpreter to use
#   GPU=auto|1|0        NCCL in Horovod: if nvcc and a GPU are here | always (needs nvcc) | never
#   CUDA_WHEELS=0|1     CUDA and cuDNN for TensorFlow from PyPI (3 GB); 1 if a GPU is here
#   EXTRAS=dev,ctranslate2
set -euo pipefail
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
fi

horovod_version=0.28.1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$(realpath -m "${1:-$root/.venv}")
extras=${EXTRAS:-dev,ctranslate2}
log=$venv/setup.log
stamp=$venv/setup.stamp
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvd_nmt/wheels

main() {
    choose_build
    if [[ -f $stamp && $(<"$stamp") == "$(fingerprint)" ]]; then
        return
    fi
    install_system_packages
    python=$(find_python)
    create_venv
    install_packages
    install_horovod
    verify
    fingerprint >"$stamp"
    say "Ready: $venv (source $venv/bin/activate)"
}

say() { printf '%s\n' "$*"; }

die() {
    printf 'launch/setup.sh: %s\n' "$*" >&2
    exit 1
}

# logged WHAT COMMAND...: runs it quietly; on failure shows the end of the log and where it is.
logged() {
    local what=$1
    shift
    printf '\n$ %s\n' "$*" >>"$log"
    "$@" >>"$log" 2>&1 && return
    tail -n 15 "$log" >&2
    die "$what failed; the full log is $log"
}

fingerprint() {
    sha256sum "$root/setup.cfg" "$root/pyproject.toml" "$root/constraints.txt" "$root/launch/setup.sh" | cut -c1-64
    say "$venv $build cuda_wheels=$cuda_wheels $extras"
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

install_system_packages() {
    local packages=() how
    command -v "${CXX:-g++}" >/dev/null || command -v c++ >/dev/null || packages+=(g++)
    command -v make >/dev/null || packages+=(make)
    if [[ -z ${PYTHON:-} ]]; then
        (find_python) >/dev/null 2>&1 || packages+=(python3.11 python3.11-venv)
    fi
    ((${#packages[@]})) || return 0
    how="apt-get install -y --no-install-recommends ${packages[*]}"
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        say "Installing system packages: ${packages[*]}"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive $how -qq; } >/dev/null ||
            die "this host lacks ${packages[*]} and apt-get could not install them; run: $how"
    else
        die "this host lacks ${packages[*]}; run: sudo $how"
    fi
}

find_python() {
    local candidate found
    for candidate in ${PYTHON:-python3.11 python3}; do
        found=$("$candidate" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        [[ $found == 3.11 ]] && command -v "$candidate" && return
    done
    if [[ -n ${PYTHON:-} ]]; then
        die "PYTHON=$PYTHON is ${found:+Python }${found:-no Python with the venv module}, but TensorFlow 2.18 with Horovod $horovod_version needs Python 3.11; run: PYTHON=python3.11 launch/setup.sh"
    fi
    die "no Python 3.11 with the venv module found; install python3.11 and python3.11-venv, or run: PYTHON=/path/to/python3.11 launch/setup.sh"
}

create_venv() {
    if [[ -d $venv && ! -f $venv/pyvenv.cfg && $(find "$venv" -mindepth 1 ! -name 'setup.*' -print -quit) ]]; then
        die "$venv exists and is no virtual environment; name a new directory."
    fi
    mkdir -p "$venv"
    exec 9>"$venv/setup.lock"
    flock -n 9 || { say "Waiting for another launch/setup.sh to finish."; flock 9; }
    : >"$log"
    # An environment that was moved or whose interpreter is gone cannot be mended, only made again.
    if ! grep -qsx "command = .* $venv" "$venv/pyvenv.cfg" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        say "Creating $venv with $("$python" --version)"
        find "$venv" -mindepth 1 ! -name 'setup.*' -delete
        logged "Creating the virtual environment" "$python" -m venv "$venv"
    fi
}

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check "$@"
}

install_packages() {
    local wanted=$extras
    ((cuda_wheels)) && wanted+=,gpu
    say "Installing TensorFlow and the other packages of constraints.txt (some minutes the first time)"
    cd "$root"
    logged "Installing setuptools" pip install -q -c constraints.txt setuptools wheel
    # A path in a .pth file: setuptools' own finder loses the package in a folder that holds one of
    # the name hvd_nmt, such as that of the checkout.
    logged "Installing the packages" pip install -q -c constraints.txt --no-build-isolation \
        --config-settings editable_mode=compat -e ".[$wanted]"
    if [[ $build == nccl ]]; then
        logged "Installing NCCL" pip install -q -c constraints.txt nvidia-nccl-cu12
    fi
}

# The wheel is valid for one Horovod, TensorFlow, Python, machine type and set of operations.
install_horovod() {
    local tensorflow wheels
    tensorflow=$(version_of tensorflow)
    wheels=$cache/horovod-$horovod_version-tf$tensorflow-cp311-$(uname -m)-$build
    if [[ $build == nccl ]]; then
        wheels+=$(version_of nvidia-nccl-cu12)-cuda$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    fi
    if ! compgen -G "$wheels/*.whl" >/dev/null; then
        say "Building Horovod $horovod_version with ${build^^} against TensorFlow $tensorflow (2 to 10 minutes, once)"
        build_horovod "$wheels"
    fi
    logged "Installing Horovod" pip install -q --no-deps --force-reinstall "$wheels"/*.whl
}

# build_horovod DIR: leaves the wheel in DIR, or nothing.
build_horovod() {
    local options=(
        HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
        HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1
    )
    if [[ $build == nccl ]]; then
        check_gpu_arch
        prepare_nccl
        options+=(
            HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_HOME="$venv/nccl" HOROVOD_NCCL_LINK=SHARED
            HOROVOD_CUDA_HOME="$(cuda_home)"
            # The library finds NCCL beside itself, in whatever environment the wheel lands.
            LDFLAGS="-Wl,-rpath,\$ORIGIN/../../nvidia/nccl/lib ${LDFLAGS:-}"
        )
    fi
    if ! command -v cmake >/dev/null; then
        logged "Installing cmake" pip install -q -c "$root/constraints.txt" 'cmake<4'
    fi
    mkdir -p "$cache"
    local fresh
    fresh=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$fresh"' EXIT
    logged "Building Horovod" env "${options[@]}" PATH="$venv/bin:$PATH" MAKEFLAGS="-j$(nproc)" \
        "$venv/bin/python" -m pip --disable-pip-version-check wheel --no-build-isolation --no-deps \
        --no-binary horovod --no-cache-dir -w "$fresh" "horovod==$horovod_version"
    rm -rf "$1"
    mv "$fresh" "$1"
    chmod 755 "$1"
    trap - EXIT
}

version_of() {
    "$venv/bin/python" -c 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))' "$1"
}

cuda_home() {
    if [[ -n ${HOROVOD_CUDA_HOME:-${CUDA_HOME:-}} ]]; then
        say "${HOROVOD_CUDA_HOME:-$CUDA_HOME}"
    else
        # nvcc on PATH may be a link or a wrapper; nvcc itself knows where it lives.
        realpath "$("$nvcc" --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')"
    fi
}

# CUDA 13 no longer compiles for the V100: say so before the build, not in the first step.
check_gpu_arch() {
    local capability
    for capability in $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u); do
        "$nvcc" --list-gpu-arch | grep -qx "compute_$capability" ||
            die "$nvcc cannot compile for this host's GPU (compute capability $capability); install the CUDA toolkit 12 and put its bin first on PATH."
    done
}

# The NCCL wheel has no libnccl.so for the linker, only libnccl.so.2: add it in a directory of ours.
prepare_nccl() {
    local wheel
    wheel=$venv/lib/python3.11/site-packages/nvidia/nccl
    mkdir -p "$venv/nccl/lib"
    ln -sfn "$wheel/include" "$venv/nccl/include"
    ln -sf "$wheel/lib/libnccl.so.2" "$venv/nccl/lib/libnccl.so"
}

verify() {
    local built
    logged "Importing hvd_nmt and Horovod" "$venv/bin/python" -c '
import hvd_nmt, horovod.tensorflow.keras as hvd
built = [name for name in ("nccl", "gloo", "mpi") if getattr(hvd, name + "_built")()]
print("Horovod can use:", *built)'
    built=$(sed -n 's/^Horovod can use: //p' "$log")
    [[ " $built " == *" $build "* ]] ||
        die "Horovod was to be built with $build but can only use ${built:-nothing}; the full log is $log"
    say "Horovod $horovod_version with: $built (all about it: ${venv##"$PWD"/}/bin/horovodrun --check-build)"
}

main

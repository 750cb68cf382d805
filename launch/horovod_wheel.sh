# Horovod's wheel: found in the cache, or built from the released source; sourced by setup.sh.
# shellcheck shell=bash disable=SC2154
#
# Horovod publishes source only, and two lines of it do not fit TensorFlow from 2.19 on; `patch_source`
# changes them, for every TensorFlow alike, and leaves out what is compiled for nothing.

horovod_version=0.28.1
horovod_sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/hvd_nmt/wheels

# A wheel is valid for one Horovod, TensorFlow, Python, machine type and set of operations.
wheel_key() {
    local key
    key=horovod-$horovod_version-tf$(pinned tensorflow)-cp${python_version/./}-$(uname -m)-$build
    if [[ $build == nccl ]]; then
        key+=$(pinned nvidia-nccl-cu12)-cuda$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    fi
    printf '%s' "$key"
}

# pinned PACKAGE: its version in the constraints of the chosen TensorFlow.
pinned() { sed -n "s/^$1==//p" "$constraints"; }

# Prints the path of the wheel, or nothing.
find_horovod_wheel() {
    local place found
    for place in ${HVD_NMT_WHEELS:+"$HVD_NMT_WHEELS"} "$cache" "$venv/wheels"; do
        for found in "$place/$(wheel_key)"/*.whl; do
            [[ ! -f $found ]] || { realpath "$found"; return; }
        done
    done
}

# Installs what Horovod's build needs, and starts it: the other packages can be installed meanwhile.
begin_horovod_build() {
    logged "Installing TensorFlow" pip install -q -c "$constraints" --no-compile \
        tensorflow cloudpickle packaging psutil pyyaml
    find_cmake
    trap '[[ ! $(jobs -pr) ]] || { kill -- -"$!" && wait "$!"; } 2>/dev/null || true' EXIT
    set -m # in a process group, which ends as a whole
    {
        trap '' TTOU # no terminal may stop it
        export PIP_NO_INPUT=1
        log=$venv/setup.horovod.log
        : >"$log"
        build_horovod_wheel
    } </dev/null &
    set +m
}

# Sets wheel.
end_horovod_build() {
    wait "$!" || exit 1 # it has said why
    wheel=$(find_horovod_wheel)
}

# Two installations at once build it once.
build_horovod_wheel() {
    local keep=$cache
    if ! mkdir -p "$cache" 2>/dev/null || [[ ! -w $cache ]]; then
        keep=$venv/wheels
        mkdir -p "$keep"
        say "Warning: $cache cannot be written, so Horovod's wheel stays in $keep; name another cache with XDG_CACHE_HOME."
    fi
    lock "$keep"
    [[ ! $(find_horovod_wheel) ]] || return 0
    say "Building Horovod $horovod_version with ${build^^} against TensorFlow $(pinned tensorflow) (1 to 10 minutes, once)"
    work=$(mktemp -d "$keep/build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    export TMPDIR=$work # pip leaves its folders where it is ended
    download_horovod "$work"
    tar -xzf "$work/horovod-$horovod_version.tar.gz" -C "$work"
    patch_source "$work/horovod-$horovod_version"
    compile "$work/horovod-$horovod_version" "$work/wheel"
    rm -rf "${keep:?}/$(wheel_key)"
    mv "$work/wheel" "$keep/$(wheel_key)"
}

# download_horovod DIR: the released source archive, whose sha256 pip verifies.
download_horovod() {
    printf 'horovod==%s --hash=sha256:%s\n' "$horovod_version" "$horovod_sha256" >"$venv/setup.horovod.txt"
    logged "Downloading Horovod" pip download -q -d "$1" --no-deps --no-build-isolation \
        --no-binary horovod -r "$venv/setup.horovod.txt"
}

# patch_source DIR: Horovod's source.
patch_source() {
    # xla_mpi_ops.cc includes headers that TensorFlow no longer ships. It serves nothing but
    # jit_compile with HOROVOD_ENABLE_XLA_OPS=1 on GPUs: one line less in the list of sources.
    sed -i '/xla_mpi_ops\.cc/d' "$1/horovod/tensorflow/CMakeLists.txt"
    # Builds with NCCL call a function of TensorFlow that 2.21 no longer exports, for the CUDA stream
    # of a TensorFlow stream. The stream itself tells it, in 2.18 as well; a template, because its
    # class is declared further down.
    sed -i 's/^GpuStreamHandle AsGpuStreamValue(Stream\* stream);$/template <typename S> GpuStreamHandle AsGpuStreamValue(S* stream) {\n  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);\n}/' "$1/horovod/tensorflow/mpi_ops.cc"
    # Gloo is compiled once for each C++ that a framework may ask for, though one of them is linked;
    # and what a debugger needs is nine tenths of the wheel.
    sed -i -e 's/^\( *add_subdirectory(third_party\/.*gloo\))/\1 EXCLUDE_FROM_ALL)/' \
        -e 's/"-O2" "-O3"/"-O2 -g" "-O3"/' "$1/CMakeLists.txt"
    # Files that are compiled as one read the headers once; two of Gloo name something alike. A build
    # with NCCL stays as it was, for nobody has tried it so.
    if [[ $build == gloo ]]; then
        sed -i '1i set(CMAKE_UNITY_BUILD ON)' \
            "$1"/{horovod/tensorflow,third_party/gloo/gloo}/CMakeLists.txt
        sed -i '1i set_source_files_properties(allreduce_local.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)' \
            "$1/third_party/gloo/gloo/CMakeLists.txt"
        # Nor does it look for CUDA, which takes seconds where there is one.
        sed -i '/^include(CheckLanguage)$/,/^macro(ADD_CUDA)$/{/^macro/!d}' "$1/CMakeLists.txt"
    fi
}

# Horovod needs cmake 3.13 or newer, and cmake 4 refuses its files: PyPI's, where the host's is neither.
find_cmake() {
    local version
    version=$({ cmake --version 2>/dev/null || true; } | sed -n 's/^cmake version \([0-9]*\.[0-9]*\).*/\1/p')
    if [[ ! $version || ${version%.*} -ne 3 || ${version#*.} -lt 13 ]]; then
        logged "Installing cmake" pip install -q -c "$constraints" 'cmake<4'
    fi
}

# cxx ARGUMENT...: the C++ compiler, the one that cmake takes.
cxx() { ${CXX:-$(command -v c++ || echo g++)} "$@"; }

# compile SOURCE DIR: leaves the wheel in DIR.
compile() {
    local name options=(
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
    elif cxx -fuse-ld=gold ${LDFLAGS:-} -shared -o "$work/linked" -x c++ /dev/null 2>/dev/null; then
        # It links TensorFlow's gigabyte in a quarter of the time.
        options+=(LDFLAGS="-fuse-ld=gold ${LDFLAGS:-}")
    fi
    # It imports TensorFlow, which would look for these while pip is unpacking them.
    mkdir "$work/hidden"
    for name in IPython PIL matplotlib; do
        echo 'raise ImportError' >"$work/hidden/$name.py"
    done
    logged "Building Horovod" env "${options[@]}" PYTHONPATH="$work/hidden" PATH="$venv/bin:$PATH" MAKEFLAGS="-j$(nproc)" \
        "$venv/bin/python" -m pip --disable-pip-version-check wheel --no-build-isolation --no-deps \
        --no-cache-dir -w "$2" "$1"
}

cuda_home() {
    if [[ -n ${HOROVOD_CUDA_HOME:-${CUDA_HOME:-}} ]]; then
        printf '%s' "${HOROVOD_CUDA_HOME:-$CUDA_HOME}"
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
    local installed
    installed=$venv/lib/python$python_version/site-packages/nvidia/nccl
    mkdir -p "$venv/nccl/lib"
    ln -sfn "$installed/include" "$venv/nccl/include"
    ln -sf "$installed/lib/libnccl.so.2" "$venv/nccl/lib/libnccl.so"
}

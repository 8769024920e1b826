#!/usr/bin/env bash
# Everything that needs a GPU, and the tests of `fast`, in sections that can be called one by one.
#
#   tools/gpu_check.sh [SECTION...]     all sections if none is named; --help lists them
#
# Each section takes at most ten minutes, `versions` about one: call it first. What hangs is killed. The
# whole logs are kept in $OUT (tools/results if it is not set), one file for each section. It closes
# with a table and the figures that the tests print, and exits with 0 if all was shown, 1 if not, 2 for
# a section that does not exist.
#
# On a machine without a package registry (Python 3.12, torch, nvcc), carry the wheels that it lacks:
#
#   python3 -m pip install -q --no-index --no-deps --no-compile --target .site .whl/*.whl &&
#   PYTHONPATH=$PWD:$PWD/.site tools/gpu_check.sh versions
#
# where the wheels are at least numba-cuda, hypothesis, sortedcontainers, greenlet and ml_dtypes; if
# `versions` shows a cuda-pathfinder below 1.4 or a cuda-core below 0.5.1, newer ones too, and an older
# one if it shows NumPy 2.5, which numba-cuda 0.30 cannot be used with. Then call the
# others: `device-path bench`, `conformance native`, `sanitizer`, `kernels real-models`. PYTHONPATH is kept.
# CUDA_HOME, which numba-cuda needs to find its compiler where other libraries of the toolkit come from
# wheels, is taken from nvcc unless it is set. GPU_CHECK_WORKERS (12) is for pytest-xdist.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
export PYTHONPATH="$PWD:$PWD/tools/commands${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TORCH_SHOW_CPP_STACKTRACES=0
workers=${GPU_CHECK_WORKERS:-12}
logs=${OUT:-tools/results}
pytest=(python3 -m pytest -p no:cacheprovider -q -W default)
rows=()
status=0

# A section is a function, with `-` for `_` in its name, and a line here.
sections='versions      what is installed, and warmup() with warnings as errors
device-path   tests/gpu: no waiting, side streams, graphs, uploads, host cost, bandwidth
bench         what every hot function costs host and device
conformance   the conformance run on target cuda
native        the same launches on target native, and what each takes the GPU
sanitizer     compute-sanitizer over the kernels and a brief conformance run, where it is installed
kernels       tests/fast: kernels compiled and simulated
real-models   tokens of real models, compared with those of generate'

versions() { check versions 240 python3 -m tools.gpu_versions; }
device_path() { check device-path 420 "${pytest[@]}" tests/gpu -rA -s; }
bench() { check bench 420 python3 -m kvtwin bench --quick --all --device cuda; }
conformance() {
    check conformance 540 "${pytest[@]}" conformance --target cuda -n "$workers"
}
native() { check native 300 python3 -m kvtwin kernels --gpu; }
kernels() { check kernels 300 "${pytest[@]}" tests/fast -n "$workers"; }
real_models() { check real-models 240 python3 -m tools.runner --device cuda; }
sanitizer() {
    local program tool
    if ! program=$(command -v compute-sanitizer || ls "${CUDA_HOME:-}/bin/compute-sanitizer" \
        /usr/local/cuda/bin/compute-sanitizer 2> /dev/null | head -n 1) || [ -z "$program" ]; then
        row sanitizer - 0 "compute-sanitizer is not installed here"
        return
    fi
    rm -f "$logs/sanitizer.log"
    for tool in memcheck racecheck synccheck initcheck; do
        sanitize "$tool" 60 "$tool" tests/gpu -k "waits_for_the_device or rows_of_any_bytes"
    done
    # torch's cache of memory would hide that a kernel reads or writes beside a tensor. Without it,
    # tests of memory on the host, which make hundreds of calls, exceed the time limit of a test.
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    sanitize memcheck-conformance 300 memcheck -p no:xdist --target cuda --profile brief \
        conformance/test_{block_table,block_table_robustness,slots,local_attention}.py \
        conformance/test_{fast_prefill,causal_conv1d,multimodal}.py \
        -k "not keeps_nothing"
    unset PYTORCH_NO_CUDA_MEMORY_CACHING
}

sanitize() {  # name, limit in seconds, tool of compute-sanitizer, arguments of pytest...
    local name=$1 limit=$2 tool=$3
    shift 3
    # torch probes for driver calls that may be missing: such errors are ignored.
    check "$name" "$limit" "$program" --tool "$tool" --report-api-errors no --error-exitcode 1 \
        "${pytest[@]}" "$@"
    # One log for all: some machines give eight files back.
    [ -z "$gpu" ] || cat "$logs/$name.log" >> "$logs/sanitizer.log"
    rm -f "$logs/$name.log"
}

row() {  # name, state, seconds, what to say
    rows+=("$(printf '%-20s %-8s %4ss  %s' "$@")")
    case $2 in ok | -) ;; *) status=1 ;; esac
}

check() {  # name, limit in seconds, command...
    local name=$1 limit=$2 begin=$SECONDS state=ok
    shift 2
    if [ -z "$gpu" ]; then
        row "$name" "no GPU" 0 "$*"
        return
    fi
    echo "=== $name, at most ${limit}s: $*"
    # pytest says what failed so far when it is interrupted.
    timeout --signal=INT --kill-after=20 "$limit" "$@" > "$logs/$name.log" 2>&1
    case $? in
        0) ;;
        124 | 137) state=TIMEOUT ;;
        *) state=FAILS ;;
    esac
    tail -n 40 "$logs/$name.log"
    row "$name" "$state" $((SECONDS - begin)) "$(
        grep -E '(passed|failed|error|ERROR SUMMARY|RACECHECK SUMMARY|all equal|generate gives|ok:)' \
            "$logs/$name.log" | tail -n 1
    )"
}

find_toolkit() {  # the folder of the CUDA toolkit whose nvcc is found first; nothing if there is none
    local folder
    for folder in \
        "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")" \
        "$(nvcc --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p' | head -n 1)" \
        /usr/local/cuda; do
        if [ -d "$folder/nvvm" ]; then
            (cd "$folder" && pwd -P)
            return
        fi
    done
}

names=$(cut -d ' ' -f 1 <<< "$sections")
if [ "${1:-}" = --help ]; then
    printf 'tools/gpu_check.sh [SECTION...]\n\n%s\n' "$sections"
    exit 0
fi
for section in "$@"; do
    if ! grep -qxF -e "$section" <<< "$names"; then
        printf 'gpu_check.sh: there is no section %s; there are\n%s\n' "$section" "$sections" >&2
        exit 2
    fi
done
mkdir -p "$logs" || exit 2
if [ -z "${CUDA_HOME:-}" ]; then
    toolkit=$(find_toolkit 2> /dev/null)
    [ -z "$toolkit" ] || export CUDA_HOME="$toolkit"
fi
# The first import of torch on a machine may take minutes.
gpu=$(timeout 180 python3 -c 'import torch
if torch.cuda.is_available(): print(torch.cuda.get_device_name())')
for section in ${*:-$names}; do
    "${section//-/_}"
done

echo
echo "gpu_check, $(date -u +%F), ${gpu:-no GPU}, driver $(
    nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null || echo unknown
), ${SECONDS}s, logs in $logs"
printf '%s\n' "${rows[@]}"
# The first of a test comes after a dot of pytest's.
for log in versions device-path; do
    [[ " ${*:-$names} " != *"$log"* ]] || [ ! -f "$logs/$log.log" ] || grep -ohE \
        '(host cost|device time|share of copy bandwidth) of .*|launcher: .*' "$logs/$log.log"
done
exit "$status"

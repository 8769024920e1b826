#!/usr/bin/env bash
# Run everything that needs a GPU, and the tests of `fast`, in sections, in less than ten minutes.
#
#   tools/gpu_check.sh [SECTION...]     default: all sections, the most telling first; --help lists them
#
# Each section is killed at its time limit, and all of them after GPU_CHECK_SECONDS (570): a section for
# which no time is left is listed as such. Full logs are written to $OUT (default: tools/results), one file for
# each section, and a line for each section to gpu_check.txt as soon as it ends. The script ends with these lines
# and the figures that the tests print. Its exit status is 0 if all sections passed, 1 if not, 2 for an
# unknown section.
#
# On a machine with Python 3.12, torch and nvcc, but no package registry, install the missing wheels first:
#
#   python3 -m pip install -q --no-index --no-deps --no-compile --target .site .whl/*.whl &&
#   PYTHONPATH=$PWD:$PWD/.site tools/gpu_check.sh versions
#
# .whl needs at least numba-cuda, hypothesis, sortedcontainers and ml_dtypes. Add a newer
# cuda-pathfinder if `versions` shows one below 1.4, a newer cuda-core if it shows one below 0.5.1, and an
# older NumPy if it shows 2.5, which numba-cuda 0.30 does not support. PYTHONPATH is kept.
# If CUDA_HOME is not set, it is derived from nvcc: numba-cuda needs it to find its compiler if other
# libraries of the toolkit come from wheels. GPU_CHECK_WORKERS (12) is the number of pytest-xdist workers.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
export PYTHONPATH="$PWD:$PWD/tools/commands${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TORCH_SHOW_CPP_STACKTRACES=0
workers=${GPU_CHECK_WORKERS:-12}
logs=${OUT:-tools/results}
summary=$logs/gpu_check.txt
pytest=(python3 -m pytest -p no:cacheprovider -q -W default)
status=0

# A section is a function, with `-` for `_` in its name, and a line here.
sections='versions      installed versions, and warmup() with warnings as errors
device-path   tests/gpu: no synchronisation, side streams, graphs, uploads, host cost, bandwidth
bench         host and device time of every hot function, beside Triton kernels
conformance   the conformance run on target cuda
native        kernels on the GPU compared with target native
real-models   tokens of real models, compared with those of generate
sanitizer     compute-sanitizer, if installed, over the kernels and a brief conformance run
kernels       tests/fast: kernels compiled, and run on the CPU'

versions() { check versions 90 python3 -m tools.gpu_versions; }
device_path() { check device-path 90 "${pytest[@]}" tests/gpu --ignore tests/gpu/test_native.py -rA -s; }
bench() { check bench 150 python3 -m kvtwin bench --device cuda --json "$logs/bench.json"; }
conformance() {
    check conformance 150 "${pytest[@]}" conformance --target cuda -n "$workers"
}
native() { check native 60 "${pytest[@]}" tests/gpu/test_native.py; }
kernels() { check kernels 120 "${pytest[@]}" tests/fast -n "$workers"; }
real_models() { check real-models 60 python3 -m tools.runner --device cuda; }
sanitizer() {
    local program tool
    if ! program=$(command -v compute-sanitizer || ls "${CUDA_HOME:-}/bin/compute-sanitizer" \
        /usr/local/cuda/bin/compute-sanitizer 2> /dev/null | head -n 1) || [ -z "$program" ]; then
        row sanitizer - 0 "compute-sanitizer is not installed here"
        return
    fi
    rm -f "$logs/sanitizer.log"
    for tool in memcheck racecheck synccheck initcheck; do
        sanitize "$tool" 25 "$tool" tests/gpu -k "waits_for_the_device or rows_of_any_bytes"
    done
    # torch's caching allocator would hide that a kernel reads or writes outside a tensor.
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    sanitize memcheck-conformance 100 memcheck -p no:xdist --target cuda --profile brief \
        conformance/functions/{block_table,slots,local_attention,fast_prefill,causal_conv1d}.py \
        conformance/functions/multimodal.py
    unset PYTORCH_NO_CUDA_MEMORY_CACHING
}

sanitize() {  # name, limit in seconds, tool of compute-sanitizer, arguments of pytest...
    local name=$1 limit=$2 tool=$3
    shift 3
    # torch probes for driver calls that may be missing: such errors are ignored.
    check "$name" "$limit" "$program" --tool "$tool" --report-api-errors no --error-exitcode 1 \
        "${pytest[@]}" "$@"
    # One log for all: some machines return at most eight files.
    [ -z "$gpu" ] || cat "$logs/$name.log" >> "$logs/sanitizer.log"
    rm -f "$logs/$name.log"
}

row() {  # name, state, seconds, text
    printf '%-20s %-8s %4ss  %s\n' "$@" >> "$summary"
    case $2 in ok | -) ;; *) status=1 ;; esac
}

check() {  # name, limit in seconds, command...
    local name=$1 limit=$2 begin=$SECONDS state=ok
    shift 2
    if [ -z "$gpu" ]; then
        row "$name" "no GPU" 0 "$*"
        return
    fi
    local left=$((${GPU_CHECK_SECONDS:-570} - SECONDS))
    if [ "$left" -lt 10 ]; then
        row "$name" "no time" 0 "$*"
        return
    fi
    [ "$left" -ge "$limit" ] || limit=$left
    echo "=== $name, at most ${limit}s: $*"
    # When interrupted, pytest reports the failures so far.
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

find_toolkit() {  # print the folder of the first CUDA toolkit with nvcc, if any
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
: > "$summary"
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
cat "$summary"
# The first figure of a test follows one of pytest's progress dots on the same line.
for log in versions device-path; do
    [[ " ${*:-$names} " != *"$log"* ]] || [ ! -f "$logs/$log.log" ] || grep -ohE \
        '(host cost|device time|share of copy bandwidth) of .*|launcher: .*' "$logs/$log.log"
done
exit "$status"

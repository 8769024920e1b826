#!/usr/bin/env bash
# Everything only a GPU can show, in one call of under 8 minutes: the conformance run on target cuda; no
# synchronisation, side streams, graph capture and replay of every hot function; uploads by pinned
# rings; the host cost of a launch by both launchers; device time and the share of a copy's bandwidth
# that rows reach; real models whose tokens are compared with generate's; what every hot function costs
# host and device; and compute-sanitizer over the kernels, where it is installed. It closes with a
# short table, and exits with 0 if all was shown; keep what it printed under tools/results/.
#
#   bash tools/gpu_check.sh [workers]
#
# Each section has its limit, in seconds, and all together GPU_CHECK_SECONDS (465): what hangs is
# killed, and what no time is left for is told. Where there is no GPU nothing is run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
export PYTHONPATH="$PWD" PYTHONUNBUFFERED=1 TORCH_SHOW_CPP_STACKTRACES=0
workers=${1:-12}
seconds=${GPU_CHECK_SECONDS:-465}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
rows=()
status=0

row() {  # name, state, seconds, what to say
    rows+=("$(printf '%-12s %-8s %4ss  %s' "$@")")
    case $2 in ok | -) ;; *) status=1 ;; esac
}

check() {  # name, limit in seconds, command...
    local name=$1 limit=$2 begin=$SECONDS left=$((seconds - SECONDS)) state=ok
    shift 2
    if [ -z "$gpu" ]; then
        row "$name" "no GPU" 0 "$*"
        return
    fi
    if [ "$left" -le 0 ]; then
        row "$name" "no time" 0 "$*"
        return
    fi
    [ "$limit" -le "$left" ] || limit=$left
    echo "=== $name, at most ${limit}s: $*"
    timeout --kill-after=5 "$limit" "$@" > "$logs/$name" 2>&1
    case $? in
        0) ;;
        124 | 137) state=TIMEOUT ;;
        *) state=FAILS ;;
    esac
    tail -n 40 "$logs/$name"
    row "$name" "$state" $((SECONDS - begin)) "$(
        grep -E '(passed|failed|error|ERROR SUMMARY|RACECHECK SUMMARY|all equal|generate gives)' \
            "$logs/$name" | tail -n 1
    )"
}

gpu=$(timeout 60 python3 -c 'import torch
if torch.cuda.is_available(): print(torch.cuda.get_device_name())')
pytest=(python3 -m pytest -p no:cacheprovider -q -W default)

# What is timed comes first, with nothing beside it.
check device-path 120 "${pytest[@]}" tests/gpu -rA -s
check bench 60 python3 -m tools.bench --quick --device cuda
check conformance 170 "${pytest[@]}" conformance --target host,cuda -n "$workers"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
for tool in memcheck racecheck; do
    if [ -z "$sanitizer" ]; then
        row "$tool" - 0 "compute-sanitizer is not installed here"
    else
        check "$tool" 50 "$sanitizer" --tool "$tool" --error-exitcode 1 "${pytest[@]}" tests/gpu \
            -k "waits_for_the_device or rows_of_any_bytes"
    fi
done
check kernels 60 "${pytest[@]}" tests/fast -n "$workers"
check real-models 60 python3 -m tools.runner --device cuda

echo
echo "gpu_check, $(date -u +%F), ${gpu:-no GPU}, driver $(
    nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null || echo unknown
), ${SECONDS}s"
python3 -c 'import sys
from importlib.metadata import PackageNotFoundError, version
def find(name):
    try: return version(name)
    except PackageNotFoundError: return "missing"
names = ("torch", "numba", "numba-cuda", "cuda-core", "cuda-bindings")
print("Python", sys.version.split()[0], *(f"{name} {find(name)}" for name in names))'
printf '%s\n' "${rows[@]}"
# The first of a test stands behind a dot of pytest's.
[ ! -f "$logs/device-path" ] || grep -ohE \
    '(host cost|device time|share of copy bandwidth) of .*|launcher: .*' "$logs/device-path"
exit "$status"

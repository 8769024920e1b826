#!/usr/bin/env bash
# Everything only a GPU can show, in one call of a few minutes: the conformance run on target cuda,
# no synchronisation, side streams, graph capture and replay, the host cost of a launch, the share of
# a copy's bandwidth that rows reach, real models whose tokens are compared with generate's, what every
# hot function costs host and device, and compute-sanitizer over the kernel tests where it is
# installed. It closes with a short table; keep what it printed under tools/results/.
#
#   bash tools/gpu_check.sh [workers]
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD" PYTHONUNBUFFERED=1 TORCH_SHOW_CPP_STACKTRACES=0
workers=${1:-4}
logs=$(mktemp -d)
rows=()

check() {  # name, command...
    local name=$1 begin=$SECONDS state=ok
    shift
    echo "=== $name: $*"
    "$@" > "$logs/$name" 2>&1 || state=FAILS
    tail -n 40 "$logs/$name"
    rows+=("$(printf '%-22s %-6s %4ss  %s' "$name" "$state" $((SECONDS - begin)) \
        "$(grep -E '(passed|failed|error|ERROR SUMMARY|all equal|generate gives)' "$logs/$name" | tail -n 1)")")
}

pytest=(python3 -m pytest -p no:cacheprovider -q -W default)
check conformance "${pytest[@]}" conformance --target host,cuda -n "$workers"
check device-path "${pytest[@]}" tests/gpu -rA -s
check kernels "${pytest[@]}" tests/fast
check real-models python3 -m tools.runner --device cuda
check bench python3 -m tools.bench --quick --device cuda
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
if [ -n "$sanitizer" ]; then
    for tool in memcheck racecheck; do
        check "$tool" "$sanitizer" --tool "$tool" --error-exitcode 1 "${pytest[@]}" \
            tests/gpu \
            -k "side_stream and (append or gather or slot or move or scatter or conv1d or prefill)"
    done
else
    rows+=("compute-sanitizer      not installed here")
fi

echo
echo "gpu_check, $(date -u +%F), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader)"
python3 -c 'import sys, torch, numba; from importlib.metadata import version as v
print("Python", sys.version.split()[0], "torch", torch.__version__, "numba", numba.__version__, "numba-cuda", v("numba-cuda"))'
printf '%s\n' "${rows[@]}"
# The first stands behind a line of dots.
grep -ohE "(host cost|share of copy bandwidth) of .*" "$logs/device-path"
! printf '%s\n' "${rows[@]}" | grep -q FAILS

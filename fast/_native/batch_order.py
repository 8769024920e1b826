"""Find where the kinds of requests begin in a batch, and the swaps that put it in order."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import BOOL, INT32
from fast._native.compiler import Int64s, bools_at, compiled, int32s_at
from fast._native.memory import check_written, locate


def find_first_prefill(
    query_start_loc_cpu: torch.Tensor,
    num_reqs: int,
    threshold: int,
    uniform: bool,
    is_prefilling: torch.Tensor | None = None,
) -> tuple[int, int]:
    """Return the first request that is not a decode, and its first token.

    If all are decodes: their number, and the end of the last. With `uniform` a decode has no
    tokens, or as many as the first non-empty one. A request that is prefilling is no decode.
    """
    # `_starts` keeps the memory alive during the loop; likewise below.
    at, _starts = locate("query_start_loc_cpu", query_start_loc_cpu, INT32, num_reqs + 1)
    if is_prefilling is None:
        return scan_for_prefill(at, 0, num_reqs, threshold, uniform)
    flags_at, _flags = locate("is_prefilling", is_prefilling, BOOL, num_reqs)
    return scan_for_prefill(at, flags_at, num_reqs, threshold, uniform)


def find_extends_and_prefills(
    query_start_loc_cpu: torch.Tensor,
    num_computed_tokens_cpu: torch.Tensor,
    num_reqs: int,
    threshold: int,
    is_prefilling: torch.Tensor | None = None,
) -> tuple[int, int, int, int]:
    """Return the first request that is not a decode, the first prefill, and their first tokens."""
    at, _starts = locate("query_start_loc_cpu", query_start_loc_cpu, INT32, num_reqs + 1)
    computed_at, _computed = locate(
        "num_computed_tokens_cpu", num_computed_tokens_cpu, INT32, num_reqs
    )
    if is_prefilling is None:
        return scan_for_extends(at, computed_at, 0, num_reqs, threshold)
    flags_at, _flags = locate("is_prefilling", is_prefilling, BOOL, num_reqs)
    return scan_for_extends(at, computed_at, flags_at, num_reqs, threshold)


def plan_swaps(
    tokens: npt.NDArray[np.int64],
    computed: npt.NDArray[np.integer[Any]],
    prompts: npt.NDArray[np.integer[Any]] | None,
    threshold: int,
) -> npt.NDArray[np.int64] | None:
    """Return the swaps of positions that put a batch in order, int64[num_swaps, 2].

    `tokens` has an entry for each request, `computed` and `prompts` at least as many. With
    `prompts` there are four regions, else three. None if a number of tokens is negative.
    """
    check_written("num_scheduled_tokens", tokens, np.int64, 1)
    num_reqs = len(tokens)
    wide = computed[:num_reqs].astype(np.int64)
    wide_prompts = wide if prompts is None else prompts[:num_reqs].astype(np.int64)
    if len(wide) < num_reqs or len(wide_prompts) < num_reqs:
        raise ValueError(f"computed and prompts must have at least {num_reqs} entries")
    swaps = np.empty((num_reqs, 2), dtype=np.int64)
    num_swaps = write_swaps(tokens, wide, wide_prompts, threshold, prompts is not None, swaps)
    return None if num_swaps < 0 else swaps[:num_swaps]


@compiled("UniTuple(int64, 2)(int64, int64, int64, int64, boolean)")
def scan_for_prefill(
    starts_address: int, flags_address: int, num_reqs: int, threshold: int, uniform: bool
) -> tuple[Any, Any]:
    """Return the first request that is not counted as a decode, and its first token.

    Reads int32[num_reqs + 1], the starts, and bool[num_reqs], the flags, unless at 0. If all are
    counted as decodes: their number, and the end.
    """
    starts = int32s_at(starts_address, num_reqs + 1)
    flags = bools_at(flags_address, num_reqs if flags_address else 0)
    first = np.int64(0)
    for request in range(num_reqs):
        length = np.int64(starts[request + 1]) - starts[request]
        if length > threshold or (len(flags) and flags[request]):
            return request, np.int64(starts[request])
        if uniform and length > 0:
            if first == 0:
                first = length
            if length != first:
                return request, np.int64(starts[request])
    return num_reqs, np.int64(starts[num_reqs])


@compiled("UniTuple(int64, 4)(int64, int64, int64, int64, int64)")
def scan_for_extends(
    starts_address: int, computed_address: int, flags_address: int, num_reqs: int, threshold: int
) -> tuple[Any, Any, Any, Any]:
    """Return the first request that is not a decode, the first prefill, and their first tokens.

    Reads int32[num_reqs + 1], the starts, int32[num_reqs], the computed tokens, and bool[num_reqs],
    the flags, unless at 0.
    """
    starts = int32s_at(starts_address, num_reqs + 1)
    computed = int32s_at(computed_address, num_reqs)
    flags = bools_at(flags_address, num_reqs if flags_address else 0)
    first_extend = num_reqs
    first_prefill = num_reqs
    for request in range(num_reqs):
        is_short = np.int64(starts[request + 1]) - starts[request] <= threshold
        if is_short and not (len(flags) and flags[request]):
            continue
        first_extend = min(first_extend, request)
        if computed[request] == 0:
            first_prefill = request
            break
    return (
        first_extend,
        first_prefill,
        np.int64(starts[first_extend]),
        np.int64(starts[first_prefill]),
    )


@compiled("int64(int64[:], int64[:], int64[:], int64, boolean, int64[:, ::1])")
def write_swaps(  # noqa: C901, PLR0912  (numba keeps each loop on its own)
    tokens: Int64s,
    computed: Int64s,
    prompts: Int64s,
    threshold: int,
    four_regions: bool,
    swaps: Int64s,
) -> np.int64:
    """Write the swaps of positions that put a batch in order; return how many.

    Returns -1 if a number of tokens is negative.
    """
    num_reqs = len(tokens)
    region = np.empty(num_reqs, np.int64)
    sizes = np.zeros(4, np.int64)
    for i in range(num_reqs):
        if tokens[i] < 0:
            return np.int64(-1)
        if four_regions and computed[i] == 0:
            region[i] = 3
        elif four_regions and tokens[i] > threshold:
            region[i] = 2
        elif four_regions:
            region[i] = 1 if computed[i] < prompts[i] else 0
        elif tokens[i] <= threshold:
            region[i] = 0
        else:
            region[i] = 1 if computed[i] > 0 else 2
        sizes[region[i]] += 1

    # The misplaced positions in ascending order, and their requests sorted by region.
    free = np.empty(num_reqs, np.int64)
    num_misplaced = np.zeros(4, np.int64)
    misplaced = 0
    belongs = 0
    end = sizes[0]
    for i in range(num_reqs):
        while i >= end:
            belongs += 1
            end += sizes[belongs]
        if region[i] != belongs:
            free[misplaced] = i
            misplaced += 1
            num_misplaced[region[i]] += 1
    if misplaced == 0:
        return np.int64(0)
    place = np.cumsum(num_misplaced) - num_misplaced
    source = np.arange(num_reqs)
    for k in range(misplaced):
        i = free[k]
        source[free[place[region[i]]]] = i
        place[region[i]] += 1

    # Each cycle of length n takes n - 1 swaps.
    num_swaps = np.int64(0)
    for k in range(misplaced):
        i = free[k]
        while source[i] != free[k]:
            j = source[i]
            swaps[num_swaps, 0] = i
            swaps[num_swaps, 1] = j
            num_swaps += 1
            source[i] = i
            i = j
        source[i] = i
    return num_swaps

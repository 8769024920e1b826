"""Loops that execute an append plan of block tables (see `fast.append_plan`)."""

from typing import Any

import numpy as np

from fast._checks import MAX_SIZE
from fast._native.compiler import Int, Int32s, Int64s, compiled, inlined


@inlined
def complete(plan: Int64s, num_listed: Int, widths: Int64s, num_blocks: Int32s) -> Any:  # noqa: C901, PLR0911  (the compiler's bool; numba keeps each loop on its own)
    """Validate a plan, and change the ends of its IDs to indices of the plan.

    Returns whether it is valid; if not, the plan is unusable afterwards. Its length is compared
    too: another thread may change a list while it is packed. Reads widths, and num_blocks of each
    group's rows.
    """
    num_groups = len(widths)
    num_left = len(plan) - 2 * num_listed - num_groups * (num_listed + 1)
    if num_left < 0:
        return False
    is_listed = np.zeros(num_blocks.shape[1], np.bool_)
    for listed in range(num_listed):
        row = plan[listed]
        if row < 0 or row >= num_blocks.shape[1] or is_listed[row]:
            return False
        is_listed[row] = True
    first = num_listed + num_groups * (num_listed + 1)
    for group in range(num_groups):
        ends = num_listed + group * (num_listed + 1)
        num_ids = plan[ends + num_listed]
        if plan[ends] != 0 or num_ids < 0 or num_ids > num_left:
            return False
        num_left -= num_ids
        for listed in range(num_listed):
            if plan[ends + listed + 1] < plan[ends + listed] or plan[ends + listed + 1] > num_ids:
                return False  # before they are subtracted, which might wrap around
            count = plan[ends + listed + 1] - plan[ends + listed]
            if not plan[len(plan) - num_listed + listed]:
                count += num_blocks[group, plan[listed]]
            if count > widths[group]:
                return False
        for k in range(first, first + num_ids):
            if plan[k] < 0 or plan[k] > MAX_SIZE:
                return False
        for listed in range(num_listed + 1):
            plan[ends + listed] += first
        first += num_ids
    return num_left == 0


@inlined
def count_blocks(plan: Int64s, num_listed: Int, widths: Int64s, num_blocks: Int32s) -> None:
    """Write how many blocks each listed row has after a plan, at most as many as it can have."""
    for group in range(len(num_blocks)):
        ends = num_listed + group * (num_listed + 1)
        for listed in range(num_listed):
            number = plan[ends + listed + 1] - plan[ends + listed]
            if not plan[len(plan) - num_listed + listed]:
                number += num_blocks[group, plan[listed]]
            num_blocks[group, plan[listed]] = min(number, widths[group])


@compiled("boolean(int64[::1], int64, int64[::1], int32[:, ::1])", nogil=False)
def complete_plan(plan: Int64s, num_listed: int, widths: Int64s, num_blocks: Int32s) -> Any:
    return complete(plan, num_listed, widths, num_blocks)


@compiled("void(int64[::1], int64, int64[::1], int32[:, ::1])", nogil=False)
def count_appended(plan: Int64s, num_listed: int, widths: Int64s, num_blocks: Int32s) -> None:
    count_blocks(plan, num_listed, widths, num_blocks)


@compiled(
    "boolean(int32[::1], int32[:, ::1], int64[:, ::1], int64[::1], int64, int64[::1],"
    " int32[:, ::1], boolean[::1])",
    nogil=False,
)
def append_on_host(
    tables: Int32s,
    num_blocks: Int32s,
    groups: Int64s,
    plan: Int64s,
    num_listed: int,
    widths: Int64s,
    known: Int32s,
    is_changed: Any,
) -> Any:
    """Complete a plan, append its IDs to the rows, and count them; return whether it is valid.

    Marks the rows that are replaced. `known` is `num_blocks` as the host counts them. It is one
    call, so that neither another thread nor an exception from a signal handler can interrupt it;
    that also saves 2 us.
    """
    if not complete(plan, num_listed, widths, known):
        return False
    for listed in range(num_listed):
        if plan[len(plan) - num_listed + listed]:
            is_changed[plan[listed]] = True
    for group in range(len(groups)):
        offset = groups[group, 0]
        width = groups[group, 1]
        for listed in range(num_listed):
            row = plan[listed]
            ends = num_listed + group * (num_listed + 1) + listed
            first = plan[ends]
            number = plan[ends + 1] - first
            is_replaced = plan[len(plan) - num_listed + listed]
            used = 0 if is_replaced else np.int64(num_blocks[group, row])
            start = offset + row * width + used
            for k in range(number):
                tables[start + k] = plan[first + k]
            num_blocks[group, row] = used + number
    count_blocks(plan, num_listed, widths, known)
    return True

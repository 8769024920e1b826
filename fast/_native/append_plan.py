"""Loops that execute an append plan of block tables (see `fast.append_plan`)."""

from typing import Any

import numpy as np

from fast._checks import MAX_SIZE
from fast._native.compiler import Int, Int32s, Int64s, compiled, inlined


@inlined
def complete(plan: Int64s, num_listed: Int, widths: Int64s, num_blocks: Int32s) -> Any:  # noqa: ANN401, C901  (the compiler's bool; numba keeps each loop on its own)
    """Validate a plan's values, and change the ends of its IDs to indices of the plan.

    Returns whether they are valid; if not, the plan is unusable afterwards. Reads widths, and
    num_blocks of each group's rows.
    """
    num_groups = len(widths)
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
        if plan[ends] != 0:
            return False
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
    return True


@inlined
def count_blocks(plan: Int64s, num_listed: Int, num_blocks: Int32s) -> None:
    """Write how many blocks each listed row has after a plan."""
    for group in range(len(num_blocks)):
        ends = num_listed + group * (num_listed + 1)
        for listed in range(num_listed):
            number = plan[ends + listed + 1] - plan[ends + listed]
            if not plan[len(plan) - num_listed + listed]:
                number += num_blocks[group, plan[listed]]
            num_blocks[group, plan[listed]] = number


@compiled("boolean(int64[::1], int64, int64[::1], int32[:, ::1])")
def complete_plan(plan: Int64s, num_listed: int, widths: Int64s, num_blocks: Int32s) -> Any:  # noqa: ANN401  (the compiler's bool)
    """Complete a plan for a kernel, as `complete` does."""
    return complete(plan, num_listed, widths, num_blocks)


@compiled("void(int64[::1], int64, int32[:, ::1])")
def count_appended(plan: Int64s, num_listed: int, num_blocks: Int32s) -> None:
    """Count blocks after a kernel, as `count_blocks` does."""
    count_blocks(plan, num_listed, num_blocks)


@compiled(
    "boolean(int32[::1], int32[:, ::1], int64[:, ::1], int64[::1], int64, int64[::1],"
    " int32[:, ::1], boolean[::1])"
)
def append_on_host(
    tables: Int32s,
    num_blocks: Int32s,
    groups: Int64s,
    plan: Int64s,
    num_listed: int,
    widths: Int64s,
    known: Int32s,
    is_changed: Any,  # noqa: ANN401  (an array)
) -> Any:  # noqa: ANN401  (the compiler's bool)
    """Complete a plan, append its IDs to the rows, and count them; return whether it is valid.

    Marks the rows that are replaced. `known` is `num_blocks` as the host counts them. It is one
    call, so that an exception from a signal handler cannot interrupt it; that also saves 2 us.
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
    count_blocks(plan, num_listed, known)
    return True

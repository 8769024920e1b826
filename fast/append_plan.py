"""Check the block IDs to append to block tables, and pack them into an append plan."""

from itertools import chain
from operator import countOf
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fast._checks import MAX_SIZE, check_ints, check_list, check_starts, describe, pack_ints

Bools: TypeAlias = npt.NDArray[np.bool_]
Int64: TypeAlias = npt.NDArray[np.int64]

NOTHING: Final = np.empty(0, dtype=np.int64)
"""The plan without rows."""


def check_listed(
    req_indices: list[int], overwrite: list[bool], max_num_reqs: int
) -> tuple[Int64, Bools]:
    """Return the listed request slots, and whether each row is overwritten, as arrays; or raise."""
    check_list("req_indices", req_indices)
    check_list("overwrite", overwrite, len(req_indices))
    rows = check_ints("req_indices", req_indices, 0, max_num_reqs - 1, IndexError)
    if len(set(req_indices)) != len(req_indices):
        first = {row: at for at, row in reversed(list(enumerate(req_indices)))}
        again = next(at for at, row in enumerate(req_indices) if first[row] != at)
        row = req_indices[again]
        raise ValueError(f"req_indices[{again}] is {row}, the same as req_indices[{first[row]}]")
    for kind in set(map(type, overwrite)):
        if kind not in (bool, np.bool_):
            at = next(i for i, value in enumerate(overwrite) if type(value) is kind)
            raise TypeError(f"overwrite[{at}] must be a bool, got {describe(overwrite[at])}")
    return rows, np.array(overwrite, dtype=np.bool_)


def check_new_blocks(
    cu_num_new_blocks: list[list[int]],
    new_block_ids: list[list[int]],
    num_groups: int,
    num_listed: int,
) -> tuple[Int64, list[Int64]]:
    """Return int64[num_groups, num_listed + 1] ends and each group's new IDs, or raise."""
    check_list("cu_num_new_blocks", cu_num_new_blocks, num_groups)
    check_list("new_block_ids", new_block_ids, num_groups)
    ends = np.empty((num_groups, num_listed + 1), dtype=np.int64)
    ids = []
    for group in range(num_groups):
        name = f"cu_num_new_blocks[{group}]"
        name_ids = f"new_block_ids[{group}]"
        check_list(name, cu_num_new_blocks[group], num_listed + 1)
        check_list(name_ids, new_block_ids[group])
        ends[group] = check_ints(name, cu_num_new_blocks[group], 0, len(new_block_ids[group]))
        ids.append(check_ints(name_ids, new_block_ids[group], 0, MAX_SIZE))
        check_starts(name, ends[group])
        if ends[group, -1] != len(ids[group]):
            raise ValueError(
                f"{name}[{num_listed}] is {ends[group, -1]}, expected {len(ids[group])},"
                f" the length of {name_ids}"
            )
    return ends, ids


def check_lengths(lengths: Int64, rows: Int64, widths: Int64) -> None:
    """Raise ValueError if a row would be longer than its group's width.

    `lengths` is int64[num_groups, num_listed] and `widths` int64[num_groups], both in blocks;
    `rows` is int64[num_listed].
    """
    too_long = lengths > widths[:, None]
    if too_long.any():
        group, listed = np.argwhere(too_long)[0]
        raise ValueError(
            f"new_block_ids[{group}] brings row {rows[listed]} to {lengths[group, listed]} blocks,"
            f" expected at most {widths[group]}"
        )


def pack_lists(
    req_indices: list[int],
    cu_num_new_blocks: list[list[int]],
    new_block_ids: list[list[int]],
    overwrite: list[bool],
    num_groups: int,
) -> Int64 | None:
    """Pack lists of Python ints and bools into a plan, without checking their values.

    A plan is one int64 array, so that a single copy uploads it: the rows; for each group, its list
    of `cu_num_new_blocks`; for each group, its new IDs; whether each row is overwritten. It is
    *completed* when the ends from `cu_num_new_blocks` are changed to indices of the plan.

    Returns:
        The plan; `NOTHING` if no row is listed; None if a type or length is wrong or an int is
        NumPy's: then the caller runs the checks of this module, which raise or accept.
    """
    if not (
        type(req_indices) is list
        and type(cu_num_new_blocks) is list
        and type(new_block_ids) is list
        and type(overwrite) is list
    ):
        return None
    if not req_indices and _are_empty(cu_num_new_blocks, new_block_ids, overwrite, num_groups):
        return NOTHING
    joined = _join(req_indices, cu_num_new_blocks, new_block_ids, overwrite, num_groups)
    if joined is None or countOf(map(type, overwrite), bool) < len(overwrite):
        return None
    joined += map(int, overwrite)
    plan = pack_ints(joined)
    # Ends are compared only after they are known to be ints.
    if plan is None or [ends[-1] for ends in cu_num_new_blocks] != list(map(len, new_block_ids)):
        return None
    return plan


def _are_empty(
    cu_num_new_blocks: list[list[int]],
    new_block_ids: list[list[int]],
    overwrite: list[bool],
    num_groups: int,
) -> bool:
    """Return whether lists without rows are consistent; most decode steps append nothing."""
    return (
        not overwrite
        and len(cu_num_new_blocks) == num_groups
        and countOf(map(type, new_block_ids + cu_num_new_blocks), list) == 2 * num_groups
        and new_block_ids == [[]] * num_groups
        and countOf(map(len, cu_num_new_blocks), 1) == num_groups
        and countOf(map(type, chain.from_iterable(cu_num_new_blocks)), int) == num_groups
        and cu_num_new_blocks == [[0]] * num_groups
    )


def _join(
    req_indices: list[int],
    cu_num_new_blocks: list[list[int]],
    new_block_ids: list[list[int]],
    overwrite: list[bool],
    num_groups: int,
) -> list[int] | None:
    """Return rows, ends and IDs in one list; None if a list is missing or of wrong length."""
    # No Python step for each entry, here and below.
    num_listed = len(req_indices)
    lengths = (len(overwrite), len(cu_num_new_blocks), len(new_block_ids))
    if lengths != (num_listed, num_groups, num_groups):
        return None
    lists = cu_num_new_blocks + new_block_ids
    if countOf(map(type, lists), list) < len(lists):
        return None
    if countOf(map(len, cu_num_new_blocks), num_listed + 1) < num_groups:
        return None
    joined = [*req_indices]
    for values in lists:
        joined += values
    return joined


def pack_plan(rows: Int64, replaced: Bools, ends: Int64, ids: list[Int64]) -> Int64:
    """Pack checked arrays into a plan, as described at `pack_lists`."""
    return np.concatenate([rows, ends.reshape(-1), *ids, replaced.astype(np.int64)])

"""What may be appended to block tables, and how it travels to them."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fast._checks import MAX_SIZE, check_ints, check_list

Bools: TypeAlias = npt.NDArray[np.bool_]
Int64: TypeAlias = npt.NDArray[np.int64]


def check_listed(
    req_indices: list[int], overwrite: list[bool], max_num_reqs: int
) -> tuple[Int64, Bools]:
    """Return the listed request slots, and whether each row is overwritten, as arrays.

    Raises:
        TypeError: an argument is no list, or has entries of another type.
        IndexError: a request slot that is not there.
        ValueError: a slot listed twice, or lists of unlike lengths.
    """
    check_list("req_indices", req_indices)
    check_list("overwrite", overwrite, len(req_indices))
    rows = check_ints("req_indices", req_indices, 0, max_num_reqs - 1, IndexError)
    if len(set(req_indices)) != len(req_indices):
        twice = next(row for row in req_indices if req_indices.count(row) > 1)
        raise ValueError(f"req_indices lists request slot {twice} twice, expected once")
    for kind in set(map(type, overwrite)):
        if kind not in (bool, np.bool_):
            at = next(i for i, value in enumerate(overwrite) if type(value) is kind)
            raise TypeError(f"overwrite[{at}] must be a bool, got {overwrite[at]!r}")
    return rows, np.array(overwrite, dtype=np.bool_)


def check_new_blocks(
    cu_num_new_blocks: list[list[int]],
    new_block_ids: list[list[int]],
    num_groups: int,
    num_listed: int,
) -> tuple[Int64, list[Int64]]:
    """Return the ends int64[num_groups, num_listed + 1], and each group's new ids.

    Raises:
        TypeError: an argument is no list of lists of ints.
        ValueError: lengths that disagree, ends that do not rise from 0 to the number of ids, a
            block id out of range.
    """
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
        if ends[group, 0] != 0 or ends[group, -1] != len(ids[group]):
            raise ValueError(
                f"{name} runs from {ends[group, 0]} to {ends[group, -1]}, expected from 0 to"
                f" {len(ids[group])}, the length of {name_ids}"
            )
        falls = np.flatnonzero(np.diff(ends[group]) < 0)
        if len(falls):
            at = falls[0] + 1
            raise ValueError(
                f"{name}[{at}] is {ends[group, at]}, less than {ends[group, at - 1]} before it"
            )
    return ends, ids


def check_lengths(lengths: Int64, rows: Int64, widths: Int64) -> None:
    """Refuse rows that would outgrow their group's width.

    Args:
        lengths: int64[num_groups, num_listed], in blocks.
        rows: int64[num_listed], request slots.
        widths: int64[num_groups], in blocks.

    Raises:
        ValueError: one would.
    """
    too_long = lengths > widths[:, None]
    if too_long.any():
        group, listed = np.argwhere(too_long)[0]
        raise ValueError(
            f"new_block_ids[{group}] makes row {rows[listed]} {lengths[group, listed]} blocks"
            f" long, expected at most {widths[group]}"
        )


def pack_plan(rows: Int64, replaced: Bools, ends: Int64, ids: list[Int64]) -> Int64:
    """Pack what is appended into one array, so that one copy takes it to a device.

    Returns:
        The rows, whether each is overwritten, for each group where in this array its ids end, for
        each row (from the start of the first), and the ids.
    """
    base = 2 * len(rows) + ends.size
    sizes = [base, *(len(group_ids) for group_ids in ids[:-1])]
    ends_in_plan = ends + np.cumsum(sizes)[:, None]
    return np.concatenate([rows, replaced.astype(np.int64), ends_in_plan.reshape(-1), *ids])

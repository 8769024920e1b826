"""The real kernels with a line changed, run in the simulator."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Mapping
from typing import Any

import pytest

from fast.kernels import block_table, cuda
from known_bad.entries import KnownBad

SOURCE = inspect.getsource(block_table)

Edits = Mapping[str, tuple[str, tuple[str, str], str]]
"""For each bug: the kernel or device function, a piece of its source and what replaces it, why."""


def _edited(function: str, old: str, new: str) -> str:
    """Return the kernels' source with one piece of one function replaced.

    Raises:
        ValueError: The piece does not stand there once: the kernel was rewritten, and the bug must
            be planted anew.
    """
    begin = SOURCE.index(f"def {function}(")
    end = SOURCE.find("\n\n\n", begin)
    body = SOURCE[begin : end if end >= 0 else len(SOURCE)]
    if body.count(old) != 1:
        raise ValueError(f"{old!r} stands {body.count(old)} times in {function}, expected once")
    return SOURCE.replace(body, body.replace(old, new))


def install(patch: pytest.MonkeyPatch, source: str) -> None:
    """Put the kernels of another source in the place of the real ones."""
    patch.setattr(cuda, "KERNELS", [])  # where they declare themselves
    names: dict[str, Any] = {"__name__": block_table.__name__}
    path = f"<known bad {hash(source)}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    exec(compile(source, path, "exec"), names)  # noqa: S102  # our own source
    for kernel in cuda.KERNELS:
        patch.setattr(block_table, kernel.name, names[kernel.name])


def _entry(checked: str, bug: str | None, why: str, edit: tuple[str, str, str] | None) -> KnownBad:
    def put(patch: pytest.MonkeyPatch) -> None:
        install(patch, SOURCE if edit is None else _edited(*edit))

    return KnownBad(checked, bug, why, "block_table", put, target="sim")


MISSING_BARRIER = "    cuda.syncthreads()  # everyone has read {}\n"

TABLE_EDITS: Edits = {
    "append: no barrier before the count is written": (
        "append_block_ids",
        (MISSING_BARRIER.format("num_blocks"), ""),
        "A late warp reads the new count and writes behind the row; early ones never do.",
    ),
    "append: the first group's ends for all": (
        "append_block_ids",
        ("2 * num_listed + group * (num_listed + 1)", "2 * num_listed"),
        "Right with one group.",
    ),
    "append: the count is every thread's to write": (
        "append_block_ids",
        ("    if cuda.threadIdx.x == 0:\n        num_blocks[group, row] = used + count",
         "    num_blocks[group, row] += count // cuda.blockDim.x + 1"),
        "An update that is not atomic.",
    ),
    "append: a row as long as the block at most": (
        "append_block_ids",
        ("count, np.int64(cuda.blockDim.x))",
         "min(count, np.int64(cuda.blockDim.x)), np.int64(cuda.blockDim.x))"),
        "One element for each thread: right for fewer new blocks than threads.",
    ),
    "move: the count stays": (
        "move_row",
        ("\n        num_blocks[group, src] = 0", ""),
        "The next request in that slot is appended to somebody's blocks.",
    ),
    "move: no barrier before the count is written": (
        "move_row",
        (MISSING_BARRIER.format("num_blocks"), ""),
        "A late warp finds an empty row and copies nothing.",
    ),
    "move: one block too many": (
        "move_row",
        ("np.int64(cuda.threadIdx.x), count,", "np.int64(cuda.threadIdx.x), count + 1,"),
        "`<=` for `<`: it copies what stands past the row, which is seldom read.",
    ),
    "swap: as many as the first row has": (
        "swap_rows",
        ("longer = max(count_a, count_b)", "longer = count_a"),
        "Right when the longer one comes first.",
    ),
    "swap: only the first group": (
        "swap_rows",
        ("    longer = max(count_a, count_b)", "    longer = max(count_a, count_b) * (group == 0)"),
        "Right with one group; the counts are right always.",
    ),
    "gather: no barrier before the count is written": (
        "gather_block_tables",
        (MISSING_BARRIER.format("num_gathered"), ""),
        "A late warp clears too little.",
    ),
    "gather: one block too many": (
        "gather_block_tables",
        ("if k < count:", "if k <= count:"),
        "`<=` for `<`: a stale id behind the row, where a longer row was before.",
    ),
    "gather: what was left is left": (
        "gather_block_tables",
        ("max(count, left)", "count"),
        "Read by padded and speculative positions alone.",
    ),
    "gather: what was gathered is not recorded": (
        "gather_block_tables",
        ("num_gathered[group, row] = count", "num_gathered[group, row] = left"),
        "Nothing is ever cleared; read by padded and speculative positions alone.",
    ),
    "gather: -1 is the last slot": (
        "gather_block_tables",
        ("if source >= 0 and source < num_blocks.shape[1]:", "if source < num_blocks.shape[1]:"),
        "numba wraps a negative index, silently.",
    ),
    "gather: rows past the batch are read from the mapping": (
        "gather_block_tables",
        ("if row < num_reqs:", "if row <= num_reqs:"),
        "One entry past the mapping, which is usually there: the buffer is longer.",
    ),
    "gather: a dense mapping": (
        "gather_block_tables",
        ("idx_mapping[row * idx_stride]", "idx_mapping[row]"),
        "Right for every contiguous mapping.",
    ),
    "slots: a request begins one token late": (
        "find_request",
        ("[middle * stride] <= token", "[middle * stride] < token"),
        "One token of each request is stored in its neighbour's block.",
    ),
    "slots: the last request is never found": (
        "find_request",
        ("high = np.int64(num_reqs)", "high = np.int64(max(num_reqs - 1, 1))"),
        "Right for one request.",
    ),
    "slots: to the end of the block of threads": (
        "compute_slot_mappings",
        ("range(cuda.grid(1), slots.shape[1], cuda.gridsize(1))",
         "range(cuda.grid(1), num_positions, cuda.gridsize(1))"),
        "What is behind the batch stays from a longer step.",
    ),
    "slots: every block of threads does the first one's": (
        "compute_slot_mappings",
        ("range(cuda.grid(1), slots.shape[1], cuda.gridsize(1))",
         "range(cuda.threadIdx.x, slots.shape[1], cuda.blockDim.x)"),
        "The right values, each written many times.",
    ),
    "slots: blocks in ascending order": (
        "compute_slot_mappings",
        ("        slots[group, token] = slot",
         "        if group + 1 < groups.shape[0]:\n"
         "            slots[group + 1, token] = np.int64(-1)\n"
         "        slots[group, token] = slot"),
        "Each group clears the next one's: right while block (x, 0) runs before block (x, 1).",
    ),
    "slots: positions of another stride": (
        "compute_slot_mappings",
        ("positions[token * positions_stride]", "positions[token]"),
        "Right for every contiguous vector.",
    ),
    "slots: starts of another stride": (
        "compute_slot_mappings",
        ("find_request(query_start_loc, starts_stride,", "find_request(query_start_loc, 1,"),
        "Right for every contiguous vector.",
    ),
    "slots: one group's tables for all": (
        "compute_slot_mappings",
        ("offset = groups[group, 0]", "offset = groups[0, 0]"),
        "Right with one group.",
    ),
}
"""Bugs of the kernels that a session of `BlockTables` runs."""

SLOT_EDITS: Edits = {
    "kernel: one thread past the end": (
        "compute_slot_mapping",
        ("range(cuda.grid(1), num_slots, cuda.gridsize(1))",
         "range(cuda.grid(1), num_slots + 1, cuda.gridsize(1))"),
        "It writes one slot behind the buffer, which is usually padding of the allocator.",
    ),
    "kernel: one thread for each slot and no more": (
        "compute_slot_mapping",
        ("range(cuda.grid(1), num_slots, cuda.gridsize(1))",
         "range(cuda.grid(1), min(num_slots, cuda.gridsize(1)), cuda.gridsize(1))"),
        "Right while the grid is as large as `out`.",
    ),
    "kernel: one column too many": (
        "compute_slot_mapping",
        ("column < num_columns", "column <= num_columns"),
        "`<=` for `<`: a position behind the table reads the next row.",
    ),
    "kernel: a dense table": (
        "compute_slot_mapping",
        ("request * row_stride + column", "request * num_columns + column"),
        "Right for every contiguous table.",
    ),
    "kernel: slots in int32": (
        "compute_slot_mapping",
        (
            "slot = block_id * kernel_block_size + offset",
            "slot = np.int64(np.int32(block_id * kernel_block_size + offset))",
        ),
        "Right until the cache has 2**31 slots.",
    ),
    "kernel: the rank ignores the interleave": (
        "find_column",
        ("(in_virtual_block // interleave) % world != rank", "in_virtual_block % world != rank"),
        "Right at the default interleave of 1.",
    ),
    "kernel: the interleave's offset is dropped": (
        "find_column",
        (" * interleave + in_virtual_block % interleave", " * interleave"),
        "Right at the default interleave of 1.",
    ),
    "kernel: padding has slots": (
        "compute_slot_mapping",
        ("        if token < num_tokens:", "        if token < num_positions:"),
        "Padded tokens overwrite a live request's keys, in graph replays only.",
    ),
}
"""Bugs of the kernel of `compute_slot_mapping`."""

KERNELS = [
    entry
    for checked, edits in (("BlockTables", TABLE_EDITS), ("compute_slot_mapping", SLOT_EDITS))
    for entry in (
        _entry(checked, None, "The kernels as they are, compiled anew.", None),
        *(
            _entry(checked, bug, why, (function, *edit))
            for bug, (function, edit, why) in edits.items()
        ),
    )
]

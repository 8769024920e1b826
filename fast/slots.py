"""Compute the slots of tokens in the physical cache. `fast.block_table` exports the names."""

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from fast._checks import (
    INT32,
    IntArray,
    check_any_start,
    check_divisor,
    check_int,
    check_minimum,
    check_num_reqs,
    check_num_tokens,
    check_product,
    check_starts,
    check_tensor,
    find_first,
)
from fast._native.memory import check_slots_out, plain, to_host
from fast._native.slots import fill_slots
from fast.checked_mode import is_checked
from fast.kernels import block_table as kernels
from fast.launch import launch_threads, uses_kernels
from fast.operators import in_graph, is_traced, operator


class Layout(NamedTuple):
    """How positions map to blocks and ranks: the ints that `compute_slot_mapping` takes."""

    block_size: int
    kernel_block_size: int
    world_size: int = 1
    rank: int = 0
    interleave: int = 1


@operator
def compute_slot_mapping(
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    *,
    kernel_block_size: int | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_kv_cache_interleave_size: int = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the slot to which each token of a batch is written.

    On a GPU the call does not synchronise, except in checked mode, and can be captured into a CUDA
    graph. In a traced graph it is one operator (`fast.operators`). All tensors must be on one
    device.

    Outside checked mode a token has the slot -1 if its position is negative, outside the table or
    in a negative block. Only checked mode checks that `query_start_loc` starts at 0 and does not
    decrease, that `out` shares no memory with an input, and on a GPU that there are enough
    positions.

    Definition: `reference.compute_slot_mapping`.
    """
    sizes = (block_size, kernel_block_size, cp_world_size, cp_rank, cp_kv_cache_interleave_size)
    if not isinstance(block_table, torch.Tensor):
        check_tensor("block_table", block_table, torch.int32, 2)
    traced = is_traced()
    is_on_host = not traced and not uses_kernels(block_table)
    if is_on_host and not is_checked():  # the loop's caller checks the tensors
        return fill_slots(block_table, query_start_loc, positions, _find_layout(*sizes), out)
    check_tensor("block_table", block_table, torch.int32, 2)
    check_batch(query_start_loc, positions, block_table.device)
    num_reqs, num_positions = query_start_loc.shape[0] - 1, positions.shape[0]
    check_num_reqs(num_reqs, block_table.shape[0])
    if traced:
        layout = _check_layout(*sizes)
        made = in_graph(
            "compute_slot_mapping",
            block_table,
            query_start_loc,
            positions,
            layout.block_size,
            kernel_block_size=layout.kernel_block_size,
            cp_world_size=layout.world_size,
            cp_rank=layout.rank,
            cp_kv_cache_interleave_size=layout.interleave,
            out=out,
        )
        return made if out is None else made[:num_positions]
    layout = _find_layout(*sizes)
    if out is not None:
        inputs = {"block_table": block_table, "query_start_loc": query_start_loc}
        check_slots_out(out, inputs | {"positions": positions})
    if is_checked():
        table = to_host("block_table", block_table)
        starts = to_host("query_start_loc", query_start_loc)
        check_slots(table, starts, to_host("positions", positions), layout)

    if is_on_host:
        return fill_slots(block_table, query_start_loc, positions, layout, out)
    block_table = plain("block_table", block_table)
    query_start_loc = plain("query_start_loc", query_start_loc)
    positions = plain("positions", positions)
    if out is None:
        slots_there = positions.new_empty(num_positions)
    else:
        slots_there = plain("out", out)
        torch.autograd.graph.increment_version(out)  # torch does not see a kernel's writes
    launch_threads(
        kernels.compute_slot_mapping,
        len(slots_there),
        1,
        flat(block_table),
        *block_table.stride(),
        block_table.shape[1],
        flat(query_start_loc),
        query_start_loc.stride(0),
        num_reqs,
        flat(positions),
        positions.stride(0),
        num_positions,
        flat(slots_there),
        slots_there.stride(0),
        len(slots_there),
        *layout,
    )
    return slots_there[:num_positions]


def check_batch(
    query_start_loc: torch.Tensor, positions: torch.Tensor, device: torch.device
) -> None:
    """Check dtypes, dimensions and device of starts and positions; there must be a start."""
    check_tensor("query_start_loc", query_start_loc, torch.int32, 1, device)
    check_tensor("positions", positions, torch.int64, 1, device)
    check_any_start("query_start_loc", query_start_loc.shape[0])


def check_slots(table: IntArray, starts: IntArray, positions: IntArray, layout: Layout) -> None:
    """Raise ValueError if a token of this rank has no slot, for checked mode.

    `table` is int32[num_rows, max_blocks], `starts` int32[num_reqs + 1], `positions`
    int64[num_tokens].
    """
    check_starts("query_start_loc", starts)
    check_num_tokens(starts, len(positions))
    block_size, kernel_size, world, rank, interleave = layout
    where = positions[: starts[-1]]
    check_minimum("positions", where, 0)
    in_virtual_block = where % (block_size * world)
    tokens = np.flatnonzero(in_virtual_block // interleave % world == rank)
    requests = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[tokens]
    inner = in_virtual_block[tokens]
    offsets = inner // (world * interleave) * interleave + inner % interleave
    columns = where[tokens] // (block_size * world) * (block_size // kernel_size)
    columns += offsets // kernel_size
    at = find_first(columns >= table.shape[1])
    if at >= 0:
        raise ValueError(
            f"positions[{tokens[at]}] is {where[tokens[at]]} and needs column {columns[at]}, but"
            f" block_table has {table.shape[1]} columns"
        )
    at = find_first(table[requests, columns] < 0)
    if at >= 0:
        row, column = requests[at], columns[at]
        raise ValueError(
            f"block_table[{row}, {column}] is {table[row, column]}, expected at least 0, as it"
            f" holds positions[{tokens[at]}]"
        )


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return all memory from a tensor's first to its last element, in one dimension.

    A kernel steps through it by the tensor's strides, so that no strided view is copied. Of a
    contiguous vector that is the tensor itself, which saves 1.5 us.
    """
    steps = tensor.stride()
    if steps == (1,):
        return tensor
    if tensor.numel() == 0:
        return tensor.new_empty(0)
    length = 1
    for n, step in zip(tensor.shape, steps, strict=True):
        length += (n - 1) * step
    return tensor.as_strided((length,), (1,))


def flat_words(name: str, tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return `flat` of a tensor, in words of 32 bits, and its strides in words.

    Of an int64 a kernel reads the lower word, which comes first.
    """
    tensor = plain(name, tensor)
    if tensor.dtype is INT32:
        return flat(tensor), *tensor.stride()
    words = tensor.element_size() // 4
    return flat(tensor).view(INT32), *(words * step for step in tensor.stride())


def _check_layout(
    block_size: int, kernel_block_size: int | None, world_size: int, rank: int, interleave: int
) -> Layout:
    block_size = check_int("block_size", block_size)
    kernel_size = block_size
    if kernel_block_size is not None:
        kernel_size = check_int("kernel_block_size", kernel_block_size)
    world_size = check_int("cp_world_size", world_size)
    rank = check_int("cp_rank", rank, 0, world_size - 1)
    interleave = check_int("cp_kv_cache_interleave_size", interleave)
    check_divisor("cp_kv_cache_interleave_size", interleave, "block_size", block_size)
    check_divisor("kernel_block_size", kernel_size, "block_size", block_size)
    check_product("block_size", block_size, "cp_world_size", world_size)
    return Layout(block_size, kernel_size, world_size, rank, interleave)


_known_layout: Final = lru_cache(typed=True)(_check_layout)


def _find_layout(*sizes: Any) -> Layout:
    """Return the result of `_check_layout`, in half the time for sizes that were checked before.

    It is not called under Dynamo, which would trace into the cache.
    """
    try:
        layout = _known_layout(*sizes)
    except TypeError:  # a wrong type, or an unhashable value such as a list
        layout = None
    return layout or _check_layout(*sizes)

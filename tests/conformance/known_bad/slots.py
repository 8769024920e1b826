"""Slots, as one writes them with torch in a hurry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

import fast
from known_bad.entries import rewritten

REAL_SLOT_MAPPING = fast.compute_slot_mapping
BUFFER = torch.zeros(4096, dtype=torch.int64)
REAL_KERNEL_BLOCKS = fast.map_to_kernel_blocks


def _make_slot_mapping(bug: str | None) -> Callable[..., torch.Tensor]:
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
        layout = {
            "kernel_block_size": kernel_block_size,
            "cp_world_size": cp_world_size,
            "cp_rank": cp_rank,
            "cp_kv_cache_interleave_size": cp_kv_cache_interleave_size,
        }
        if bug == "NumPy's ints are refused" and type(block_size) is not int:
            raise TypeError("block_size is no int")
        _refuse(bug, out, block_table, query_start_loc, positions, block_size, **layout)
        if bug == "the ranks' blocks are the kernel's":
            block_size = kernel_block_size or block_size
        where = positions
        if bug == "positions are reduced in place":
            where.remainder_(block_size * cp_world_size * max(block_table.shape[1], 1))
        is_held, column, offset = _places(
            bug, where, block_size, cp_world_size, cp_rank, cp_kv_cache_interleave_size
        )
        kernel_size = kernel_block_size or block_size
        column = column * (block_size // kernel_size) + offset // kernel_size
        request = _requests(bug, query_start_loc, len(positions))
        if bug != "padding has the last request's slots":
            is_held &= torch.arange(len(positions)) < query_start_loc[-1]
        block = _blocks(bug, block_table, request, column)
        slots = block.to(torch.int64) * kernel_size + offset % kernel_size
        if bug == "slots in int32":
            slots = (block.to(torch.int32) * kernel_size + offset % kernel_size).to(torch.int32)
        if bug != "a negative block gets a slot":
            is_held &= block >= 0
        return _written(bug, torch.where(is_held, slots, -1).to(torch.int64), out)

    return compute_slot_mapping


def _refuse(bug: str | None, out: torch.Tensor | None, *args: Any, **layout: Any) -> None:  # noqa: ANN401
    """Refuse what the real function refuses; what it wrote to `out` is taken back."""
    before = out.clone() if isinstance(out, torch.Tensor) else None
    try:
        REAL_SLOT_MAPPING(*args, out=out, **layout)
    except (TypeError, ValueError):
        if bug == "refused when out is half written" and before is not None and len(before):
            before[0] = -1
            out.copy_(before)
        raise
    if before is not None:
        out.copy_(before)


def _places(
    bug: str | None, where: torch.Tensor, block_size: int, world: int, rank: int, interleave: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return whether this rank holds each token, its column of the manager's, its offset."""
    inner = where % (block_size * world)
    owner = inner // interleave % world
    offset = inner // (world * interleave) * interleave + inner % interleave
    if bug == "ranks take whole blocks":
        owner = where // block_size % world
    if bug == "the rank ignores the interleave":
        owner = inner % world
    if bug == "the offset ignores the interleave":
        offset = inner // world
    is_held = owner == rank
    if bug != "a negative position wraps around":
        is_held &= where >= 0
    return is_held, where // (block_size * world), offset


def _requests(bug: str | None, starts: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Return each token's request."""
    tokens = torch.arange(num_tokens)
    if bug == "an idle request counts as none":
        marks = torch.zeros(num_tokens + 1, dtype=torch.int64)
        marks[starts[1:-1].long()] = 1  # where two requests begin, 2 is due
        return marks.cumsum(0)[:num_tokens]
    is_right = bug != "a request begins one token late"
    return torch.searchsorted(starts[1:].long().contiguous(), tokens, right=is_right)


def _blocks(
    bug: str | None, table: torch.Tensor, request: torch.Tensor, column: torch.Tensor
) -> torch.Tensor:
    """Return the blocks of some requests and columns, -1 where the table has none."""
    rows, width = table.shape
    if bug == "a negative position wraps around" and width:
        column = torch.where(column < 0, column % width, column)
    if bug == "a column outside is the last one" and width:
        column = column.clamp(max=width - 1)
    if bug == "a column outside is the next row's" and table.numel():
        flat = (request * width + column).clamp(0, table.numel() - 1)
        return table.reshape(-1)[flat]
    around = pad(table, (0, 1, 0, 1), value=-1)
    return around[request.clamp(max=rows), column.clamp(-1, width)]


def _written(bug: str | None, slots: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Write slots to `out`, if it is there, and return them."""
    if out is None:
        if bug == "a result lies in a buffer that is used again":
            BUFFER[: len(slots)] = slots
            return BUFFER[: len(slots)]
        return slots
    if bug == "a strided out is filled densely":
        out = out.as_strided((len(out),), (1,))
    if bug == "one slot past out is written":
        out.as_strided((1,), (1,), out.storage_offset() + len(out) * out.stride(0)).fill_(-1)
    if bug == "out is filled with a copy":
        return slots
    out[: len(slots)] = slots
    if bug != "the rest of out is left as it was":
        out[len(slots) :] = -1
    return out if bug == "all of out is returned" else out[: len(slots)]


def _make_kernel_blocks(bug: str | None) -> Callable[..., torch.Tensor]:
    def map_to_kernel_blocks(block_ids: torch.Tensor, blocks_per_kv_block: int) -> torch.Tensor:
        if bug == "a bool passes for a count" and blocks_per_kv_block is True:
            blocks_per_kv_block = 1
        count = blocks_per_kv_block
        try:
            REAL_KERNEL_BLOCKS(block_ids, count)
        except ValueError as error:
            if bug == "the message names nothing":
                raise ValueError("out of range") from error
            is_first_fine = "dtype" not in str(error) and block_ids.ndim and 1 <= count < 1000
            if bug != "room is made for the first piece only" or not is_first_fine:
                raise
            most = torch.iinfo(block_ids.dtype).max
            if (block_ids < 0).any() or (block_ids.long() * count > most).any():
                raise
        if bug == "one piece is the block itself" and count == 1:
            return block_ids
        steps = torch.arange(count)
        wide = block_ids.long().unsqueeze(-1) * count + steps
        if bug == "first pieces first":
            wide = wide.transpose(-1, -2)
        found = wide.reshape(*block_ids.shape[:-1], block_ids.shape[-1] * count)
        return found if bug == "ids become int64" else found.to(block_ids.dtype)

    return map_to_kernel_blocks


SLOTS = [
    *rewritten(
        "compute_slot_mapping",
        _make_slot_mapping,
        answers={
            "slots in int32": "Right until the cache has 2**31 slots.",
            "a request begins one token late": "`searchsorted` on the wrong side: one token of "
            "each request is stored in its neighbour's block.",
            "an idle request counts as none": "Set, not added: right unless a request in the "
            "middle has no tokens.",
            "padding has the last request's slots": "Padded tokens overwrite a live request's "
            "keys, in graph replays only.",
            "ranks take whole blocks": "Every token has one holder; the ranks' attention disagrees "
            "with it.",
            "the rank ignores the interleave": "Right at the default interleave of 1.",
            "the offset ignores the interleave": "Right at the default interleave of 1; then two "
            "tokens share a slot.",
            "the ranks' blocks are the kernel's": "The same slots unless the kernel's block is no "
            "multiple of the interleave.",
            "the rest of out is left as it was": "An earlier, longer step's slots stay in the "
            "buffer of a graph.",
            "all of out is returned": "Only a step shorter than the buffer shows it.",
            "out is filled with a copy": "The values returned are right; the graph's buffer is "
            "never written.",
            "a strided out is filled densely": "Right for every contiguous buffer.",
            "one slot past out is written": "Padding of the allocator, mostly.",
            "NumPy's ints are refused": "`type(x) is int`; sizes that come from an array fail.",
            "a result lies in a buffer that is used again": "Right until the next call, and in "
            "every test that makes one.",
            "positions are reduced in place": "The slots are right; the rotary embedding that "
            "reads the positions next is not.",
        },
        refusals={
            "refused when out is half written": "The exception is right; the buffer is not what "
            "it was.",
        },
        laws={
            "test_a_misplaced_token_gets_no_slot": {
                "a negative position wraps around": "A -1 reads the row's last block, silently.",
                "a column outside is the last one": "Clamped to be safe: writes into a live block.",
                "a column outside is the next row's": "A flat index never leaves the table; it "
                "leaves the request.",
                "a negative block gets a slot": "Block -1 gives a slot that is not -1, which the "
                "kernel that writes the cache takes for one.",
            },
        },
    ),
    *rewritten(
        "map_to_kernel_blocks",
        _make_kernel_blocks,
        answers={
            "first pieces first": "The right ids in the wrong order; right for one block.",
            "one piece is the block itself": "Right until the manager writes its ids anew.",
            "ids become int64": "Equal values; the kernel reads every other one as 0.",
        },
        refusals={
            "room is made for the first piece only": "The last id's last pieces wrap to negative.",
            "a bool passes for a count": "`isinstance(True, int)`.",
            "the message names nothing": "Right class, and nobody knows which argument.",
        },
    ),
]

"""Bugs of `fast` that show in the course of a life, where one step depends on those before it.

Each is made of the function whose place it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fast
from conformance.profiles import Kind
from known_bad.entries import KnownBad

Tables = fast.BlockTables
Bug = Callable[[Any], Any]
"""Makes a wrong function of the right one."""


def _bad(name: str, bug: str, why: str, make: Bug) -> KnownBad:
    """Return a method of block tables with a bug."""

    def install(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Tables, name, make(getattr(Tables, name)))

    return KnownBad("a runner's life", bug, why, install, seen_by=Kind.LIFE)


def _swapping(_: Any) -> Any:  # noqa: ANN401  # a method, as all here
    """Swap a row with what was left where it goes."""
    return Tables.swap_rows


def _moving(_: Any) -> Any:  # noqa: ANN401
    """Move one of two rows that change places."""
    return Tables.move_row


def _appending(append: Any) -> Any:  # noqa: ANN401
    """Append also what should become the whole row."""
    return lambda tables, rows, ends, ids, overwrite: append(
        tables, rows, ends, ids, [False] * len(overwrite)
    )


def _each_block_once(append: Any) -> Any:  # noqa: ANN401
    """Give a block to the first row that asks for it, and nulls to the others."""

    def broken(tables: Any, rows: Any, ends: Any, new_ids: Any, overwrite: Any) -> None:  # noqa: ANN401
        unique = [
            [block_id if ids.index(block_id) == i else 0 for i, block_id in enumerate(ids)]
            for ids in new_ids
        ]
        append(tables, rows, ends, unique, overwrite)

    return broken


def _with_ends_of_the_first(append: Any) -> Any:  # noqa: ANN401
    """Cut all groups' ids where those of the first group are cut, as far as there are so many."""

    def broken(tables: Any, rows: Any, ends: Any, new_ids: Any, overwrite: Any) -> None:  # noqa: ANN401
        cut = [
            [*(min(end, of_group[-1]) for end in ends[0][:-1]), of_group[-1]] for of_group in ends
        ]
        append(tables, rows, cut, new_ids, overwrite)

    return broken


def _only_of_new_batches(gather: Any) -> Any:  # noqa: ANN401
    """Gather again only when the batch has other requests than the last one."""

    def broken(tables: Any, idx_mapping: torch.Tensor) -> Any:  # noqa: ANN401
        mapping = idx_mapping.tolist()
        if getattr(tables, "last_mapping", None) != mapping:
            tables.last_mapping, tables.last = mapping, gather(tables, idx_mapping)
        return tables.last

    return broken


def _for_padding_too(gather: Any) -> Any:  # noqa: ANN401
    """Gather the first row for padded requests."""
    return lambda tables, idx_mapping: gather(tables, idx_mapping.clamp(min=0))


def _leaving_padding(compute: Any) -> Any:  # noqa: ANN401
    """Leave in the slots of padding what an earlier step wrote there."""

    def broken(tables: Any, starts: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        before = tables._slots.clone()
        slots: torch.Tensor = compute(tables, starts, positions)
        num_tokens = int(starts[-1])
        slots[:, num_tokens:] = before[:, num_tokens : slots.shape[1]]
        return slots

    return broken


def _running_on(compute: Any) -> Any:  # noqa: ANN401
    """Let a request's new tokens follow its first one, whatever its blocks are."""

    def broken(tables: Any, starts: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        slots: torch.Tensor = compute(tables, starts, positions)
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            if stop > start:
                slots[:, start:stop] = slots[:, start : start + 1] + torch.arange(stop - start)
        return slots

    return broken


def _of_the_first_block_size(compute: Any) -> Any:  # noqa: ANN401
    """Take the first group's block size for all."""

    def broken(tables: Any, starts: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        slots: torch.Tensor = compute(tables, starts, positions)
        for row, size in zip(slots[1:], tables.block_sizes[1:], strict=True):
            if size == 2 * tables.block_sizes[0]:
                row[row >= 0] = row[row >= 0] // size * tables.block_sizes[0]
        return slots

    return broken


LIFE = [
    _bad(
        "move_row",
        "a moved row changes places with what was left in the hole",
        "Compaction: right while holes are cleared first.",
        _swapping,
    ),
    _bad(
        "swap_rows",
        "a swap is a move",
        "Reordering: the other request is left without blocks.",
        _moving,
    ),
    _bad(
        "append_block_ids",
        "a resumed request's blocks come behind its old ones",
        "Preemption: right until somebody else has the old ones.",
        _appending,
    ),
    _bad(
        "append_block_ids",
        "a block is appended once in a call",
        "Sharing: right while those who share come in different steps.",
        _each_block_once,
    ),
    _bad(
        "append_block_ids",
        "ids are cut where the first group's are",
        "Groups of unlike block sizes: right while all need equally many blocks.",
        _with_ends_of_the_first,
    ),
    _bad(
        "gather_block_tables",
        "gathered again when the batch changes",
        "Speculation: a decode that goes on into a new block is in the same batch.",
        _only_of_new_batches,
    ),
    _bad(
        "gather_block_tables",
        "padded requests have the first row",
        "Padding: they have no tokens, until somebody counts on nulls.",
        _for_padding_too,
    ),
    _bad(
        "compute_slot_mappings",
        "padding's slots are an earlier step's",
        "Padding: a smaller batch writes over live keys.",
        _leaving_padding,
    ),
    _bad(
        "compute_slot_mappings",
        "slots run on from the first token's",
        "Speculation: right inside a block, or while blocks lie side by side.",
        _running_on,
    ),
    _bad(
        "compute_slot_mappings",
        "the first group's block size for all",
        "Groups of unlike block sizes.",
        _of_the_first_block_size,
    ),
]

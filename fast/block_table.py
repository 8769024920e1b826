"""Keep block tables, gather them in batch order, and compute slots from them."""

from array import array
from copy import deepcopy
from operator import countOf
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import (
    INT32,
    INT32_OR_INT64,
    INT64,
    MAX_INT64,
    MAX_SIZE,
    check_bool,
    check_device,
    check_divisor,
    check_entries,
    check_index,
    check_int,
    check_ints,
    check_list,
    check_product,
    check_request_slots,
    check_starts,
    check_states,
    check_tensor,
    find_first,
)
from fast._native.block_table import FEW, NUM_CONSTANTS, WIDTH, HostTables, StagedRows
from fast._native.memory import plain, to_host
from fast.checked_mode import is_checked
from fast.kernel_blocks import map_to_kernel_blocks
from fast.kernels import block_table as kernels
from fast.launch import launch_blocks, launch_threads, uses_kernels
from fast.operators import check_not_traced
from fast.pinned import upload
from fast.sentinels import NULL_BLOCK_ID, PAD_SLOT_ID
from fast.slots import Layout, check_slots, compute_slot_mapping, flat, flat_words

__all__ = [
    "NULL_BLOCK_ID",
    "PAD_SLOT_ID",
    "BlockTables",
    "compute_slot_mapping",
    "map_to_kernel_blocks",
]

ALIGNMENT: Final = 32
"""Each group's tables begin at a multiple of this many int32: 128 bytes, a cache line of a GPU."""

MAX_VIEWS: Final = 64
"""For how many sizes views are kept."""

MAX_TRIES: Final = 100
"""How often a write is checked again because another thread changed the rows meanwhile."""


class BlockTables:
    """Keep the block tables of a runner, for all KV cache groups.

    Methods return views of persistent buffers whose addresses never change, so a CUDA graph can be
    captured over them. For the same size they return the same objects, which saves 1.3 us for each
    view: so do not change a view's shape or strides. In checked mode views are new.

    A caller may write into the views with torch operations: the next call detects it and rewrites
    the whole buffer. What is written without torch noticing may persist: through NumPy arrays of
    the memory, `tensor.data`, foreign kernels, or replays of a graph that captured such a write.

    On a GPU no method synchronises, except in checked mode. The host has the rows with their staged
    writes in its own memory, as large as the tables; it counts a captured call only once.

    An object can be copied (`copy.deepcopy`, `pickle`, to another process); the copy has its own
    buffers. If a signal handler raises, the interrupted call is either complete or had no effect.

    On the CPU, threads may share an object: each call that changes rows takes effect before or
    after those of other threads. But all results are views of the same buffers, so one thread at a
    time makes a step (gathers, computes slots, and uses both), copies the object, or uses checked
    mode. On a GPU one thread at a time calls any method, and its stream waits for that of the last.
    Whatever threads do at once, a row never grows past its width.

    `device` is where the tables are; a device that does not exist is a ValueError.

    Definition: `reference.BlockTables`.
    """

    @torch.inference_mode(mode=False)  # the tables outlive the mode in which they are made
    def __init__(
        self,
        block_sizes: list[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_num_blocks_per_group: list[int],
        device: torch.device | str,
        cp_size: int = 1,
        cp_rank: int = 0,
        cp_interleave: int = 1,
        slot_mapping_enabled: list[bool] | None = None,
        dcp_sharded: list[bool] | None = None,
        sliding_window_reach: list[int] | None = None,
    ) -> None:
        check_list("block_sizes", block_sizes)
        self.block_sizes: list[int] = check_ints("block_sizes", block_sizes, 1, MAX_SIZE).tolist()
        self.max_num_reqs = check_int("max_num_reqs", max_num_reqs)
        self.max_num_batched_tokens = check_int("max_num_batched_tokens", max_num_batched_tokens)
        self.device = check_device("device", device)
        of_groups = (slot_mapping_enabled, dcp_sharded, sliding_window_reach)
        ranks = (cp_size, cp_rank, cp_interleave)
        groups, num_entries = self._lay_out(max_num_blocks_per_group, ranks, *of_groups)
        sizes = (block_sizes, max_num_reqs, max_num_batched_tokens, max_num_blocks_per_group)
        self._arguments = deepcopy((*sizes, self.device, *ranks, *of_groups))
        shape = (len(groups), self.max_num_reqs)
        self._staged = StagedRows(groups, self.max_num_reqs, num_entries)
        # All groups are in one array, so that one launch processes them all.
        self._tables = make_full((num_entries,), NULL_BLOCK_ID, np.int32, self.device)
        self._num_blocks = make_full(shape, 0, np.int32, self.device)
        self._gathered = make_full((num_entries,), NULL_BLOCK_ID, np.int32, self.device)
        self._num_gathered = make_full(shape, 0, np.int32, self.device)
        slots_shape = (len(groups), self.max_num_batched_tokens)
        self._slots = make_full(slots_shape, PAD_SLOT_ID, np.int64, self.device)
        # The first arguments of every kernel.
        constants = torch.empty(groups.shape, dtype=torch.int64, device=self.device)
        self._rows = (constants.copy_(torch.from_numpy(groups)), self._tables, self._num_blocks)
        self._table_views: dict[int, tuple[torch.Tensor, ...]] = {}  # by number of rows
        self._slot_views: dict[int, torch.Tensor] = {}  # by number of tokens
        self._gathered_version = self._gathered._version  # noqa: SLF001  (torch names it so)
        self._slots_version = self._slots._version  # noqa: SLF001
        self._host: HostTables | None = None  # what does the work if kernels do not
        if self.device.type == "cpu" and not uses_kernels(self._tables):
            rows = self._tables.numpy(), self._num_blocks.numpy()
            of_gathered = self._gathered, self._num_gathered.numpy()
            self._host = HostTables(self._staged, *rows, *of_gathered, self._slots)

    def append_block_ids(
        self, req_index: int, new_block_ids: list[list[int]], overwrite: bool
    ) -> None:
        """Append block IDs to the row of a request slot in each group, or replace the row.

        Definition: `reference.BlockTables.append_block_ids`.
        """
        # The usual write to one group, in a third of the time.
        if (
            type(new_block_ids) is list
            and len(self.block_sizes) == len(new_block_ids) == 1
            and type(ids := new_block_ids[0]) is list
            and len(ids) == 1
            and type(block := ids[0]) is type(req_index) is int
            and type(overwrite) is bool
            and 0 <= block <= MAX_SIZE
            and 0 <= req_index < self.max_num_reqs
            and self._staged.stage_block(req_index, overwrite, block)
        ):
            return
        if self._stage_blocks(req_index, new_block_ids, overwrite):
            return
        given = (req_index, new_block_ids, overwrite)
        values = self._join(*given)
        if values is not None and self._staged.stage(values):
            return
        for _ in range(MAX_TRIES):
            # Raises, unless only the types were unusual, or another thread changes the rows.
            if self._staged.stage(self._check_appended(*given)):
                return
        raise RuntimeError(f"other threads changed the rows in each of {MAX_TRIES} tries")

    def _stage_blocks(
        self, req_index: int, new_block_ids: list[list[int]], overwrite: bool
    ) -> bool:
        """Stage the usual write, a block in each of a few groups, in half of the time."""
        if (
            type(new_block_ids) is not list
            or len(new_block_ids) != len(self.block_sizes)
            or not 0 < len(new_block_ids) <= FEW
            or type(overwrite) is not bool
            or type(req_index) is not int
            or not 0 <= req_index < self.max_num_reqs
        ):
            return False
        blocks: list[int] = []
        for ids in new_block_ids:
            if type(ids) is not list or len(ids) != 1:
                return False
            blocks += ids
        for block in blocks:
            if type(block) is not int or not 0 <= block <= MAX_SIZE:
                return False
        return len(blocks) == len(self.block_sizes) and self._staged.stage_blocks(
            req_index, overwrite, blocks
        )

    def _join(
        self, req_index: int, new_block_ids: list[list[int]], overwrite: bool
    ) -> "array[int] | None":
        """Return Python ints in one array, see `StagedRows.stage`; None if something is wrong.

        There is no Python step for each ID.
        """
        if (
            type(new_block_ids) is not list
            or type(overwrite) is not bool
            or countOf(map(type, new_block_ids), list) != len(self.block_sizes)
            or len(new_block_ids) != len(self.block_sizes)
        ):
            return None
        joined = [req_index, +overwrite, *map(len, new_block_ids)]
        for ids in new_block_ids:
            joined += ids
        if countOf(map(type, joined), int) != len(joined):
            return None
        try:
            return array("i", joined)
        except OverflowError:
            return None

    def _check_appended(
        self, req_index: int, new_block_ids: list[list[int]], overwrite: bool
    ) -> "array[int]":
        """Return the same array for any valid arguments, or raise."""
        slot = check_index("req_index", req_index, self.max_num_reqs)
        check_bool("overwrite", overwrite)
        check_list("new_block_ids", new_block_ids, len(self.block_sizes))
        every = []
        for group, width in enumerate(self._staged.groups[:, WIDTH].tolist()):
            name = f"new_block_ids[{group}]"
            check_list(name, new_block_ids[group])
            ids = check_ints(name, new_block_ids[group], 0, MAX_SIZE)
            count = len(ids) + (0 if overwrite else int(self._staged.counts[group, slot]))
            if count > width:
                raise ValueError(
                    f"{name} brings row {slot} to {count} blocks, expected at most {width}"
                )
            every.append(ids)
        lengths = [len(ids) for ids in every]
        return array("i", [slot, int(overwrite), *lengths, *(i for ids in every for i in ids)])

    def apply_staged_writes(self) -> None:
        """Write everything that is staged to the rows of the request slots, in order.

        On a GPU that is one copy and one launch; none if nothing is staged.

        Definition: `reference.BlockTables.apply_staged_writes`.
        """
        check_not_traced("apply_staged_writes")
        if self._host is not None:
            self._host.apply()
            return
        packed, num_changed, num_words = self._staged.pack()
        if num_changed:
            on_device = upload(packed, self.device, pin_memory=True)
            launch_blocks(kernels.apply_staged_writes, num_changed, 1, *self._rows, on_device)
        # Interrupted before this, it does the same once more.
        self._staged.forget(num_words)

    def gather_block_tables(
        self,
        idx_mapping: torch.Tensor,
        num_reqs_padded: int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Gather the rows of a step's requests, in batch order, and return them.

        Only checked mode rejects what is wrong with the values of tensors. Outside it a request
        slot that does not exist gives a row of nulls.

        Definition: `reference.BlockTables.gather_block_tables`.
        """
        check_not_traced("gather_block_tables")
        check_tensor("idx_mapping", idx_mapping, INT32_OR_INT64, 1, self.device)
        num_padded = check_int("num_reqs_padded", num_reqs_padded, 0, self.max_num_reqs)
        num_reqs = idx_mapping.shape[0]
        if num_reqs > num_padded:
            raise ValueError(
                f"idx_mapping has {num_reqs} entries, but num_reqs_padded is {num_padded}"
            )
        name = "num_computed_tokens"
        if num_computed_tokens is not None:
            check_states(name, num_computed_tokens, INT32, 1, self.max_num_reqs, self.device)
        if is_checked():
            slots = to_host("idx_mapping", idx_mapping)
            check_request_slots(slots, self.max_num_reqs)
            if num_computed_tokens is not None:
                of_rows = to_host(name, num_computed_tokens)[slots]
                row = find_first((of_rows < 0) & (slots >= 0))
                if row >= 0:
                    raise ValueError(
                        f"{name}[{slots[row]}] is {of_rows[row]}, expected 0 to {MAX_SIZE}"
                    )
        self._notice_table_writes()
        if self._host is not None:
            self._host.gather(idx_mapping, num_computed_tokens)
        else:
            rows = flat_words("idx_mapping", idx_mapping)
            computed = rows[0], 0
            if num_computed_tokens is not None:
                computed = flat_words(name, num_computed_tokens)
            of_gathered = self._gathered, self._num_gathered
            launch_blocks(
                kernels.gather_block_tables,
                *(self.max_num_reqs, len(self.block_sizes)),
                *(*self._rows, *of_gathered, *rows, num_reqs, *computed),
            )
        return self._get_table_views(num_padded)

    def compute_slot_mappings(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        num_tokens_padded: int,
    ) -> torch.Tensor:
        """Compute the slot of each token in each group, from the rows of the request slots.

        Only checked mode rejects what is wrong with the values of tensors. Outside it a token
        without a slot gets `PAD_SLOT_ID`, and at most `num_tokens_padded` tokens get one.

        Definition: `reference.BlockTables.compute_slot_mappings`.
        """
        check_not_traced("compute_slot_mappings")
        check_tensor("idx_mapping", idx_mapping, INT32_OR_INT64, 1, self.device)
        num_reqs = idx_mapping.shape[0]
        if num_reqs > self.max_num_reqs:
            raise ValueError(
                f"idx_mapping has {num_reqs} entries, expected at most {self.max_num_reqs}"
            )
        num_padded = check_int(
            "num_tokens_padded", num_tokens_padded, 0, self.max_num_batched_tokens
        )
        if self._host is None or is_checked():
            check_entries("query_start_loc", query_start_loc, INT32, 1, num_reqs + 1, self.device)
            check_tensor("positions", positions, INT64, 1, self.device)
        if is_checked():
            self._check_tokens(idx_mapping, query_start_loc, positions, num_padded)
        if self._host is not None:
            self._notice_slot_writes()
            # It checks dtypes and lengths too.
            self._host.fill_slots(idx_mapping, query_start_loc, positions, num_padded)
        else:
            places = plain("positions", positions)
            launch_threads(
                kernels.compute_slot_mappings,
                *(self.max_num_batched_tokens, len(self.block_sizes)),
                *(*self._rows[:2], self.max_num_reqs),
                *(*flat_words("idx_mapping", idx_mapping), num_reqs),
                *flat_words("query_start_loc", query_start_loc),
                *(flat(places), places.stride(0), min(len(places), num_padded), self._slots),
            )
        return self._get_slot_view(num_padded)

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        """Clear the gathered tables and return the rows of a dummy run.

        Definition: `reference.BlockTables.get_dummy_block_tables`.
        """
        num_reqs = check_int("num_reqs", num_reqs, 0, self.max_num_reqs)
        self._gathered.fill_(NULL_BLOCK_ID)  # so the next gather writes all of it
        return self._get_table_views(num_reqs)

    def get_dummy_slot_mappings(self, num_tokens: int) -> torch.Tensor:
        """Clear the slots and return those of a dummy run.

        Definition: `reference.BlockTables.get_dummy_slot_mappings`.
        """
        num_tokens = check_int("num_tokens", num_tokens, 0, self.max_num_batched_tokens)
        self._slots.fill_(PAD_SLOT_ID)
        return self._get_slot_view(num_tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make a copy, for `copy` and `pickle`."""
        rows = [np.array(tensor.cpu().numpy()) for tensor in self._rows[1:]]
        return _restore, (type(self), self._arguments, rows, self._staged.arrays[1:])

    def _lay_out(
        self,
        widths: list[int],
        ranks: tuple[int, int, int],
        has_slots: list[bool] | None,
        is_sharded: list[bool] | None,
        reaches: list[int] | None,
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Return the constants of each group, and the entries of all groups; or raise."""
        num_groups = len(self.block_sizes)
        check_list("max_num_blocks_per_group", widths, num_groups)
        check_ints("max_num_blocks_per_group", widths, 1, MAX_SIZE)
        cp_size = check_int("cp_size", ranks[0])
        cp_rank = check_int("cp_rank", ranks[1], 0, cp_size - 1)
        interleave = check_int("cp_interleave", ranks[2])
        enabled = _check_bools("slot_mapping_enabled", has_slots, num_groups)
        sharded = _check_bools("dcp_sharded", is_sharded, num_groups)
        if reaches is None:
            reaches = [0] * num_groups
        check_list("sliding_window_reach", reaches, num_groups)
        check_ints("sliding_window_reach", reaches, 0, MAX_SIZE)
        groups = np.zeros((num_groups, NUM_CONSTANTS), np.int64)
        offset = 0  # Python's ints: products of sizes may be beyond int64
        for group, (size, width) in enumerate(zip(self.block_sizes, map(int, widths), strict=True)):
            of_ranks = (1, 0, 1)
            if cp_size > 1 and sharded[group]:
                check_divisor("cp_interleave", interleave, f"block_sizes[{group}]", size)
                check_product(f"block_sizes[{group}]", size, "cp_size", cp_size)
                of_ranks = (cp_size, cp_rank, interleave)
            reach = reaches[group] if cp_size == 1 else 0
            if offset <= MAX_INT64:
                groups[group] = offset, width, size, *of_ranks, enabled[group], reach
            offset += -(-self.max_num_reqs * width // ALIGNMENT) * ALIGNMENT
        num_blocks = sum(map(int, widths))
        num_bytes = 4 * self.max_num_reqs * num_blocks
        if num_bytes + 8 * num_groups * self.max_num_batched_tokens > MAX_INT64:
            raise ValueError(
                f"max_num_reqs {self.max_num_reqs}, max_num_batched_tokens"
                f" {self.max_num_batched_tokens} and max_num_blocks_per_group of {num_blocks} in"
                f" all make tables of more than {MAX_INT64} bytes"
            )
        return groups, offset

    def _check_tokens(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        num_padded: int,
    ) -> None:
        """Check the values of the arguments of `compute_slot_mappings`, for checked mode."""
        slots = to_host("idx_mapping", idx_mapping)
        check_request_slots(slots, self.max_num_reqs)
        starts = to_host("query_start_loc", query_start_loc)[: len(slots) + 1]
        check_starts("query_start_loc", starts)
        last = f"query_start_loc[{len(slots)}] is {starts[-1]}"
        if starts[-1] > len(positions):
            raise ValueError(f"{last}, but positions has {len(positions)} entries")
        if starts[-1] > num_padded:
            raise ValueError(f"{last}, but num_tokens_padded is {num_padded}")
        is_dummy = np.repeat(slots < 0, np.diff(starts))
        where = np.where(is_dummy, 0, to_host("positions", positions)[: starts[-1]])
        tables = to_host("tables", self._tables)
        for offset, width, size, *ranks, has_slots, _ in self._staged.groups.tolist():
            if has_slots:
                rows = tables[offset : offset + self.max_num_reqs * width].reshape(-1, width)
                check_slots(rows[slots], starts, where, Layout(size, size, *ranks))

    def _get_table_views(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        """Return the first rows of each group's gathered table."""
        views = self._table_views.get(num_reqs)
        if views is None or is_checked():
            views = tuple(
                self._gathered[offset : offset + num_reqs * width].view(num_reqs, width)
                for offset, width in self._staged.groups[:, : WIDTH + 1].tolist()
            )
            keep(self._table_views, num_reqs, views)
        return views

    def _get_slot_view(self, num_tokens: int) -> torch.Tensor:
        view = self._slot_views.get(num_tokens)
        if view is None or is_checked():
            view = self._slots[:, :num_tokens]
            keep(self._slot_views, num_tokens, view)
        return view

    def _notice_table_writes(self) -> None:
        """Have all tables rewritten if a caller wrote into them."""
        version = self._gathered._version  # noqa: SLF001  (torch names it so)
        if version == self._gathered_version:
            return
        if self._host is not None:
            self._host.rewrite_tables()
        else:
            widths = self._rows[0][:, WIDTH : WIDTH + 1]
            self._num_gathered.copy_(widths.expand_as(self._num_gathered))
        self._gathered_version = version

    def _notice_slot_writes(self) -> None:
        """Have all slots rewritten if a caller wrote into them; kernels always write all."""
        version = self._slots._version  # noqa: SLF001  (torch names it so)
        if version != self._slots_version and self._host is not None:
            self._host.rewrite_slots()
            self._slots_version = version


def make_full(
    shape: tuple[int, ...], value: int, dtype: type[np.integer[Any]], device: torch.device
) -> torch.Tensor:
    """Return a tensor filled with one value, on the CPU in huge pages if the system has them.

    A step reads a few entries of each row: with pages of 4 KiB, computing the slots of 4096
    requests takes 1.3 times as long. NumPy requests huge pages from 4 MiB on, torch does not.
    Everything is written here, so no step has a page fault.
    """
    if device.type != "cpu" or 0 in shape:  # of an empty array torch has other strides
        torch_dtype = torch.int32 if dtype is np.int32 else torch.int64
        return torch.full(shape, value, dtype=torch_dtype, device=device)
    array = np.empty(shape, dtype=dtype)
    array.fill(value)
    return torch.from_numpy(array)


def _check_bools(name: str, values: list[bool] | None, num_groups: int) -> list[bool]:
    """Return a bool for each group; all are true for None."""
    if values is None:
        return [True] * num_groups
    check_list(name, values, num_groups)
    for group, value in enumerate(values):
        check_bool(f"{name}[{group}]", value)
    return values


def keep(views: dict[Any, Any], size: Any, view: Any) -> None:
    """Keep the views of a size, and forget others if there are too many."""
    if len(views) >= MAX_VIEWS:
        views.clear()
    views[size] = view


def _restore(cls: type[BlockTables], arguments: Any, rows: Any, staged: Any) -> BlockTables:
    """Return a copy of tables: with its own buffers, and nothing gathered."""
    made = cls(*arguments)
    for tensor, values in zip(made._rows[1:], rows, strict=True):
        tensor.copy_(torch.from_numpy(values))
    for own, values in zip(made._staged.arrays[1:], staged, strict=True):
        np.copyto(own, values)
    return made

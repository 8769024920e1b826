"""Block tables, as one writes them with lists and torch in a hurry."""

# ruff: noqa: C901  # a branch for each bug

from __future__ import annotations

from typing import Any

import torch

import fast
from known_bad.entries import rewritten

Real = fast.BlockTables
REAL_SLOT_MAPPING = fast.compute_slot_mapping


def _make(bug: str | None) -> Any:  # noqa: ANN401  # a class, or the bug's own
    return lambda *args, **keywords: Tables(bug, *args, **keywords)


class Tables:
    """Persistent block tables, with a bug.

    Beside them the real ones live the same life, to refuse what they refuse.
    """

    def __init__(self, bug: str | None, *args: Any, **keywords: Any) -> None:  # noqa: ANN401  # the real one's
        self.bug = bug
        self.real = Real(*args, **keywords)
        self.sizes, self.slots_of = self.real.block_sizes, self.real.max_num_reqs
        longest = self.real.max_model_len
        self.widths = [-(-longest // size) for size in self.sizes]
        if bug == "a last block that is not full has no column":
            self.widths = [max(longest // size, 1) for size in self.sizes]
        self.rows: list[list[list[int]]] = [[[] for _ in range(self.slots_of)] for _ in self.sizes]
        self.gathered = [
            torch.zeros(self.slots_of, width, dtype=torch.int32) for width in self.widths
        ]
        self.left = [[0] * self.slots_of for _ in self.sizes]
        tokens = self.real.max_num_batched_tokens
        self.slots = torch.full((len(self.sizes), tokens), -1, dtype=torch.int64)
        self.last_mapping: list[int] = []

    def append_block_ids(
        self,
        req_indices: list[int],
        cu_num_new_blocks: list[list[int]],
        new_block_ids: list[list[int]],
        overwrite: list[bool],
    ) -> None:
        """Append blocks to rows."""
        args = req_indices, cu_num_new_blocks, new_block_ids, overwrite
        try:
            self.real.append_block_ids(*args)
        except ValueError as error:
            is_outgrown = "brings row" in str(error)
            if self.bug == "an outgrown row is refused group by group" and is_outgrown:
                for row in self.rows[0]:
                    row.clear()
            if self.bug == "an outgrown row is cut off" and is_outgrown:
                return
            raise
        for group, ids in enumerate(new_block_ids):
            ends = cu_num_new_blocks[0 if self.bug == "group 0's counts for all" else group]
            for j, slot in enumerate(req_indices):
                new = ids[ends[j] : ends[j + 1]]
                row = self.rows[group][slot]
                if not overwrite[j]:
                    row += new
                elif self.bug == "an overwritten row keeps its longer tail":
                    row[: len(new)] = new
                elif self.bug != "a row is not overwritten by nothing" or new:
                    row[:] = new
            if self.bug == "only the first group is appended to":
                return

    def move_row(self, src: int, dst: int) -> None:
        """Move a row."""
        self.real.move_row(src, dst)
        if src == dst and self.bug != "a row moved onto itself is emptied":
            return
        for rows in self.rows:
            rows[dst] = list(rows[src])
            if self.bug != "a moved row stays":
                rows[src] = []
        if self.bug == "a moved row is gathered at once":
            self._gather(self.last_mapping)

    def swap_rows(self, a: int, b: int) -> None:
        """Swap two rows."""
        self.real.swap_rows(a, b)
        for rows in self.rows[: 1 if self.bug == "only the first group is swapped" else None]:
            first, second = rows[a], rows[b]
            if self.bug == "rows are swapped and lengths are not":
                common = [list(second[: len(first)]), list(first[: len(second)])]
                rows[a] = common[0] + [0] * (len(first) - len(common[0]))
                rows[b] = common[1] + [0] * (len(second) - len(common[1]))
            else:
                rows[a], rows[b] = second, first

    def clear_row(self, r: int) -> None:
        """Clear a row."""
        self.real.clear_row(r)
        for rows in self.rows[: 1 if self.bug == "only the first group is cleared" else None]:
            rows[r] = []

    def gather_block_tables(self, idx_mapping: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gather rows."""
        self.real.gather_block_tables(idx_mapping)
        mapping = idx_mapping.tolist()
        self._gather(mapping)
        found = tuple(table[: len(mapping)] for table in self.gathered)
        if self.bug == "gathered tables are copies":
            return tuple(table.clone() for table in found)
        return found

    def _gather(self, mapping: list[int]) -> None:
        is_smaller = len(mapping) < len(self.last_mapping)
        before, self.last_mapping = self.last_mapping, mapping
        for group, table in enumerate(self.gathered):
            for i in range(self.slots_of):
                if i >= len(mapping) and self.bug == "rows past the batch stay":
                    break
                source = mapping[i] if i < len(mapping) else -1
                row = self.rows[group][source] if 0 <= source < self.slots_of else []
                if source == -1 and i < len(mapping) and self.bug == "-1 is the last slot":
                    row = self.rows[group][source]
                row = row[: table.shape[1]]
                left = self.left[group][i] if before[i : i + 1] == [source] else 0
                if self.bug == "a row of as many blocks is kept" and len(row) == left:
                    continue
                kept = left if self.bug == "a gathered row is only added to" else 0
                table[i, kept : len(row)] = torch.tensor(row[kept:], dtype=torch.int32)
                if self.bug == "the end of a shorter row stays":
                    stop = self.left[group][i] if i >= len(mapping) else len(row)
                elif self.bug == "cleared only when the batch shrinks" and not is_smaller:
                    stop = len(row)
                elif self.bug == "a row of as many blocks is kept":
                    stop = self.left[group][i]
                else:  # whatever a caller has written there
                    stop = table.shape[1]
                table[i, len(row) : stop] = 0
                self.left[group][i] = len(row)

    def compute_slot_mappings(
        self, query_start_loc: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Compute every group's slots."""
        args = query_start_loc, positions
        try:
            self.real.compute_slot_mappings(*args)
        except ValueError:
            if self.bug == "slots are cleared before they are refused":
                self.slots.fill_(-1)
            raise
        tokens = len(positions)
        for group, size in enumerate(self.sizes):
            table = self.gathered[group]
            if self.bug == "slots by the request slots":
                table = torch.zeros_like(table)
                for i, row in enumerate(self.rows[group]):
                    table[i, : len(row)] = torch.tensor(row, dtype=torch.int32)
            size = self.sizes[0] if self.bug == "group 0's block size for all" else size  # noqa: PLW2901
            self.slots[group, :tokens] = REAL_SLOT_MAPPING(table, *args, size)
            if self.bug != "slots past the batch stay":
                self.slots[group, tokens:] = -1
        if self.bug == "padding's slots stay":
            return self.slots[:, : int(query_start_loc[-1])]
        return self.slots[:, :tokens]

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        """Hand out cleared tables."""
        self.real.get_dummy_block_tables(num_reqs)
        for group, table in enumerate(self.gathered):
            if self.bug != "dummy tables are not cleared":
                table.zero_()
            self.left[group] = [0] * self.slots_of
        return tuple(table[:num_reqs] for table in self.gathered)

    def get_dummy_slot_mappings(self, num_tokens: int) -> torch.Tensor:
        """Hand out cleared slots."""
        self.real.get_dummy_slot_mappings(num_tokens)
        self.slots[:, : num_tokens if self.bug == "dummy slots end with the tokens" else None] = -1
        if self.bug == "dummy slots are nulls":
            self.slots[:, :num_tokens] = 0
        return self.slots[:, :num_tokens]


TABLES = rewritten(
    "BlockTables",
    _make,
    answers={
        "a last block that is not full has no column": "`//` for `ceil`: right unless the model's "
        "length is no multiple of the block.",
        "group 0's counts for all": "Right with one group, and while all groups grow alike.",
        "only the first group is appended to": "Right with one group.",
        "an overwritten row keeps its longer tail": "A preempted request comes back shorter; its "
        "old blocks are somebody else's.",
        "a row is not overwritten by nothing": "`if new:`; a request that waits keeps its old "
        "blocks.",
        "a row moved onto itself is emptied": "Compaction of the last request.",
        "a moved row stays": "The next request in that slot is appended to somebody's blocks.",
        "a moved row is gathered at once": "Right at the next gather; a running graph reads the "
        "change.",
        "rows are swapped and lengths are not": "Right for rows of one length.",
        "only the first group is swapped": "Right with one group.",
        "only the first group is cleared": "Right with one group.",
        "gathered tables are copies": "The right values; a captured graph reads the old address.",
        "rows past the batch stay": "A padded graph reads the blocks of requests that have gone.",
        "-1 is the last slot": "A padded request is given the last slot's blocks.",
        "the end of a shorter row stays": "Read by speculative positions alone.",
        "cleared only when the batch shrinks": "Right for steady batches.",
        "a gathered row is only added to": "Right until a slot in the same place is overwritten.",
        "a row of as many blocks is kept": "Right until two rows of one length are swapped.",
        "slots by the request slots": "Right until the batch order is not the slots'.",
        "group 0's block size for all": "Right with one block size.",
        "slots past the batch stay": "Padded tokens of a larger graph overwrite live keys.",
        "padding's slots stay": "Fewer slots than tokens, in graphs only.",
        "dummy tables are not cleared": "A warm-up run reads and writes live blocks.",
        "dummy slots end with the tokens": "What a larger graph reads behind them is live.",
        "dummy slots are nulls": "A warm-up run writes into block 0, which all padding reads.",
    },
    refusals={
        "an outgrown row is refused group by group": "The exception is right; half of the groups "
        "have changed.",
        "an outgrown row is cut off": "The model's longest requests lose their last block.",
        "slots are cleared before they are refused": "The exception is right; the buffer is not "
        "what it was.",
    },
)

"""Persistent block tables, a pair of NumPy arrays for each group, with torch's views of them."""

from __future__ import annotations

import numpy as np
import torch


class BlockTables:
    """The block tables of all groups; arguments are those of `reference`."""

    def __init__(
        self,
        block_sizes: list[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        device: object,
        pin_memory: bool,
    ) -> None:
        del device, pin_memory
        self.block_sizes = block_sizes
        self.max_num_reqs = max_num_reqs
        widths = [-(-max_model_len // size) for size in block_sizes]
        self._tables = [np.zeros((max_num_reqs, width), np.int32) for width in widths]
        self._num_blocks = [np.zeros(max_num_reqs, np.int64) for _ in widths]
        self._views = [torch.from_numpy(table) for table in self._tables]
        self._gathered = [torch.zeros_like(view) for view in self._views]
        size = len(widths), max_num_batched_tokens
        self._slots = torch.full(size, -1, dtype=torch.int64, device="cpu")
        # The rows and tokens that the last step filled: only these are cleared.
        self._num_rows = self._num_tokens = 0

    def append_block_ids(
        self,
        req_indices: list[int],
        cu_num_new_blocks: list[list[int]],
        new_block_ids: list[list[int]],
        overwrite: list[bool],
    ) -> None:
        """Append block ids to rows; arguments are those of `reference`."""
        groups = zip(self._tables, self._num_blocks, cu_num_new_blocks, new_block_ids, strict=True)
        for table, num_blocks, ends, ids in groups:
            new_ids = np.array(ids, np.int32)
            for i, row in enumerate(req_indices):
                used = 0 if overwrite[i] else num_blocks[row]
                count = ends[i + 1] - ends[i]
                table[row, used : used + count] = new_ids[ends[i] : ends[i + 1]]
                table[row, used + count : num_blocks[row]] = 0
                num_blocks[row] = used + count

    def gather_block_tables(self, idx_mapping: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gather the rows of a batch; arguments are those of `reference`."""
        num_reqs = len(idx_mapping)
        is_padded = idx_mapping < 0
        rows = idx_mapping.clamp(min=0)
        padded = is_padded.nonzero().squeeze(1) if is_padded.any() else None
        for view, gathered in zip(self._views, self._gathered, strict=True):
            torch.index_select(view, 0, rows, out=gathered[:num_reqs])
            if num_reqs < self._num_rows:
                gathered[num_reqs : self._num_rows].zero_()
            if padded is not None:
                gathered.index_fill_(0, padded, 0)
        self._num_rows = num_reqs
        return tuple(gathered[:num_reqs] for gathered in self._gathered)

    def compute_slot_mappings(
        self, query_start_loc: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Compute all groups' slots; arguments are those of `reference`."""
        starts, where = query_start_loc.numpy(), positions.numpy()
        num_tokens = int(starts[-1])
        request = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        slots = self._slots.numpy()
        for group, size in enumerate(self.block_sizes):
            table, here = self._gathered[group].numpy(), where[:num_tokens]
            block, offset = np.divmod(here, size)
            np.multiply(table[request, block], size, out=slots[group, :num_tokens], casting="safe")
            slots[group, :num_tokens] += offset
        if num_tokens < self._num_tokens:
            slots[:, num_tokens : self._num_tokens] = -1
        self._num_tokens = num_tokens
        return self._slots[:, : len(where)]

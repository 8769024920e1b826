"""The worker's persistent buffers, which a batch is written into: on the host and the device.

They keep their addresses from step to step, as a captured CUDA graph requires.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

import fast
from tools.runner.batch import Batch
from tools.runner.rows import Rows
from tools.runner.settings import Settings

NO_ROW = -1
"""A padded request's entry of `idx_mapping`."""


class Buffers:
    """Buffers that every step's batch is written into.

    Args:
        settings: Of the engine.
        device: Of their other halves.

    Attributes:
        input_ids: int64[max_tokens], the tokens; 0 for padding.
        positions: int64[max_tokens], each token's position in its sequence; 0 for padding.
        query_start_loc: int32[max_reqs + 1], each request's first token, then their number.
        seq_lens: int32[max_reqs], computed and new tokens of each request.
        idx_mapping: int32[max_reqs], the row of each request in the block tables.
        wanted: For each micro-batch int64[max_reqs], the tokens whose logits are wanted, then
            padding: several are on their way at once.
        num_computed_tokens_cpu: int32[max_reqs], computed tokens; the host alone reads it.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        def make(*size: int, dtype: torch.dtype) -> fast.CpuGpuBuffer:
            is_cuda = device.type == "cuda"
            return fast.CpuGpuBuffer(*size, dtype=dtype, device=device, pin_memory=is_cuda)

        max_reqs = settings.pad_reqs(settings.max_num_seqs)
        max_tokens = settings.pad_tokens(settings.token_budget)
        self.input_ids = make(max_tokens, dtype=torch.int64)
        self.positions = make(max_tokens, dtype=torch.int64)
        self.query_start_loc = make(max_reqs + 1, dtype=torch.int32)
        self.seq_lens = make(max_reqs, dtype=torch.int32)
        self.idx_mapping = make(max_reqs, dtype=torch.int32)
        self.wanted = [make(max_reqs, dtype=torch.int64) for _ in range(settings.num_micro_batches)]
        self.num_computed_tokens_cpu = torch.zeros(max_reqs, dtype=torch.int32)
        self._settings = settings

    def fill(self, batch: Batch, rows: Rows) -> None:
        """Write a batch into the host's halves, and copy them to the device's.

        Nothing waits for the copies: the host must not write again before they have ended.

        Args:
            batch: The batch.
            rows: Of the block tables.
        """
        num_computed_tokens = self.num_computed_tokens_cpu.numpy()
        self.query_start_loc.np[1 : batch.num_reqs + 1] = batch.query_lens.cumsum()
        for padded in (self.input_ids.np, self.positions.np, self.seq_lens.np, num_computed_tokens):
            padded[:] = 0
        self.idx_mapping.np[:] = NO_ROW
        for index, entry in enumerate(batch.entries):
            request, start = entry.request, self.query_start_loc.np[index]
            computed = request.num_computed_tokens
            end = computed + entry.num_new_tokens
            tokens = slice(start, start + entry.num_new_tokens)
            self.input_ids.np[tokens] = request.token_ids[computed:end]
            self.positions.np[tokens] = np.arange(computed, end)
            self.seq_lens.np[index] = end
            num_computed_tokens[index] = computed
            self.idx_mapping.np[index] = rows.row_of(request.request_id)
        for buffer in (self.input_ids, self.positions):
            buffer.copy_to_gpu(batch.num_tokens)
        for buffer in (self.seq_lens, self.idx_mapping):
            buffer.copy_to_gpu(batch.num_reqs)
        self.query_start_loc.copy_to_gpu(batch.num_reqs + 1)

    def copy_wanted(self, number: int, wanted: npt.NDArray[np.int64]) -> torch.Tensor:
        """Copy the tokens whose logits are wanted to the device, and pad their number.

        Args:
            number: Of the micro-batch.
            wanted: Their places in it.

        Returns:
            They and padding, on the device: never none. Token 0 stands for padding.
        """
        size = self._settings.pad_reqs(max(1, len(wanted)))
        buffer = self.wanted[number]
        buffer.np[:] = 0
        buffer.np[: len(wanted)] = wanted
        return buffer.copy_to_gpu(size)

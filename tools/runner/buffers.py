"""The worker's persistent buffers for the batch of a step, on the host and the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

import fast
from conformance.engine.input_batch import InputBatch
from conformance.engine.padded_batch import BatchBuffers
from conformance.engine.scheduler_output import SchedulerOutput
from tools.runner.batch import Batch
from tools.runner.settings import Settings


class Buffers(BatchBuffers):
    """The buffers of a batch, with its tokens and where logits are computed.

    Args:
        settings: The settings of the engine.
        device: The device of their other halves.

    Attributes:
        input_ids: int64[max_num_tokens], the tokens; 0 for padding.
        part_logits_indices: For each micro-batch int64[max_num_reqs], the tokens whose logits are
            computed, then padding; each has its own, since several copies are in flight at once.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        def make(size: int, dtype: str) -> fast.CpuGpuBuffer:
            is_cuda = device.type == "cuda"
            return fast.CpuGpuBuffer(
                size, dtype=getattr(torch, dtype), device=device, pin_memory=is_cuda
            )

        super().__init__(settings, make)
        self.input_ids = make(self.max_num_tokens, "int64")
        self.part_logits_indices = [
            make(self.max_num_reqs, "int64") for _ in range(settings.micro_batches)
        ]
        self._settings = settings

    def copy_batch(
        self, step: SchedulerOutput, batch: Batch, input_batch: InputBatch, rows: Sequence[int]
    ) -> None:
        """Write a batch into the host's halves, and copy them to the device's.

        Nothing waits for the copies: the host must not write again before they have ended.

        Args:
            step: The step, with its tokens.
            batch: The same, in the batch's order.
            input_batch: With the computed tokens, in the batch's order.
            rows: The row of each request in the block tables, in the batch's order.
        """
        computed = input_batch.num_computed_tokens_cpu[: batch.num_reqs]
        self.fill(rows, batch.query_lens, computed, batch.num_padded_reqs)
        self.input_ids.np[batch.num_tokens :] = 0
        self.input_ids.np[: batch.num_tokens] = np.concatenate(
            [step.token_ids[req_id] for req_id in batch.req_ids]
        )
        for buffer in (self.input_ids, self.positions):
            buffer.copy_to_gpu(batch.num_padded_tokens)
        for buffer in (self.seq_lens, self.idx_mapping):
            buffer.copy_to_gpu(batch.num_padded_reqs)
        self.query_start_loc.copy_to_gpu(batch.num_padded_reqs + 1)

    def copy_logits_indices(
        self, number: int, logits_indices: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """Copy the tokens whose logits are computed to the device, and pad their number.

        Args:
            number: The number of the micro-batch.
            logits_indices: The tokens, relative to its first.

        Returns:
            The tokens and padding (token 0) on the device, at least one entry.
        """
        size = self._settings.padded(max(1, len(logits_indices)))
        buffer = self.part_logits_indices[number]
        buffer.np[:] = 0
        buffer.np[: len(logits_indices)] = logits_indices
        return buffer.copy_to_gpu(size)

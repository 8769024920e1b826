"""The worker: executes a step, with `fast` for everything between scheduler and model."""

from __future__ import annotations

import dataclasses

import torch
from transformers import PreTrainedModel

import fast
from conformance.engine.input_batch import InputBatch
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.engine.table_rows import TableRows
from tools.runner.batch import Batch, make_batch
from tools.runner.buffers import Buffers
from tools.runner.caches import make_caches
from tools.runner.forward import ForwardContext, forward, plug_in
from tools.runner.layers import find_layers
from tools.runner.parts import ForwardPass, ForwardPassBuilder
from tools.runner.settings import Settings
from tools.runner.wrong_slot import WrongSlot


class Worker:
    """Executes steps with a model.

    Args:
        model: The model; it is changed to use paged attention.
        settings: The settings of the engine.
        wrong_slot: Shifts a slot on purpose, or None.

    Attributes:
        caches: The model's KV caches.
        part_builder: Makes the inputs of the forward passes, and counts micro-batches.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: Settings,
        wrong_slot: WrongSlot | None = None,
    ) -> None:
        device = model.device
        self._model = model
        self._settings = settings
        self._wrong_slot = wrong_slot
        self._layers = find_layers(model)
        self.caches = make_caches(self._layers, settings, device)
        plug_in(model, self._layers)
        # One order of the batch serves all groups, so the lowest threshold counts.
        self._decode_threshold = min(
            builder.reorder_batch_threshold for builder in self.caches.builders
        )
        self._buffers = Buffers(settings, device)
        self._tables = tables = fast.BlockTables(
            self.caches.block_sizes,
            self._buffers.max_num_reqs,
            self._buffers.max_num_tokens,
            settings.max_model_len,
            device,
            pin_memory=device.type == "cuda",
        )
        self._rows = TableRows(
            lambda method, *args: getattr(tables, method)(*args),
            self._buffers.max_num_reqs,
            len(self.caches.block_sizes),
        )
        self._input_batch = InputBatch(self._buffers.max_num_reqs)
        self.part_builder = ForwardPassBuilder(self.caches, self._buffers, settings)

    def execute(self, step: SchedulerOutput) -> dict[str, int]:
        """Execute a step.

        Args:
            step: The scheduler's next one.

        Returns:
            The next token of each request whose known tokens are all computed now, by id.
        """
        self._rows.remove(step.removed_req_ids, compacts=True)
        self._rows.append(self._with_kernel_blocks(step))
        batch = make_batch(step, self._input_batch, self._settings, self._decode_threshold)
        rows = [self._rows.row_of(req_id) for req_id in batch.req_ids]
        self._buffers.copy_batch(step, batch, self._input_batch, rows)
        block_tables, slot_mappings = self._find_slots(batch)
        if self._wrong_slot is not None:
            self._wrong_slot.put(step, batch, slot_mappings, self.caches.block_sizes)
        parts = self.part_builder.build(batch, block_tables, slot_mappings)
        sampled = [self._run(part) for part in parts]

        # The host waits for the device, which has all its work by now. It does so in every step,
        # also if nothing is sampled: the next step overwrites buffers that copies of this one read.
        token_ids = [
            token_id
            for part, padded in zip(parts, sampled, strict=True)
            for token_id in padded.tolist()[: part.num_logits]
        ]
        return dict(zip(batch.sampled_req_ids, token_ids, strict=True))

    def _with_kernel_blocks(self, step: SchedulerOutput) -> SchedulerOutput:
        """Replace new blocks of the scheduler by the smaller ones that the kernels work on."""
        return dataclasses.replace(
            step,
            new_block_ids={
                req_id: tuple(
                    fast.map_to_kernel_blocks(torch.tensor(ids, dtype=torch.int32), count).tolist()
                    for ids, count in zip(by_group, self.caches.blocks_per_kv_block, strict=True)
                )
                for req_id, by_group in step.new_block_ids.items()
            },
        )

    def _find_slots(self, batch: Batch) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Gather each group's block tables in batch order, and compute the tokens' slots."""
        buffers = self._buffers
        block_tables = self._tables.gather_block_tables(
            buffers.idx_mapping.gpu[: batch.num_padded_reqs]
        )
        slot_mappings = self._tables.compute_slot_mappings(
            buffers.query_start_loc.gpu[: batch.num_padded_reqs + 1],
            buffers.positions.gpu[: batch.num_padded_tokens],
        )
        return block_tables, slot_mappings

    def _run(self, part: ForwardPass) -> torch.Tensor:
        """Run the model over a part, and return the likeliest token at each logits index."""
        logits = forward(
            self._model,
            ForwardContext(self._layers, part.attn_metadata),
            self._buffers.input_ids.gpu[part.tokens],
            self._buffers.positions.gpu[part.tokens],
            part.logits_indices,
        )
        return logits.argmax(-1)

"""The worker: executes a step, with `fast` for everything between scheduler and model."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

import fast
from tools.runner.batch import Batch, make_batch
from tools.runner.buffers import Buffers
from tools.runner.caches import make_caches
from tools.runner.forward import ForwardContext, forward, plug_in
from tools.runner.layers import find_layers
from tools.runner.parts import Part, PartBuilder
from tools.runner.rows import Rows
from tools.runner.scheduler import Step
from tools.runner.settings import Settings
from tools.runner.wrong_slot import WrongSlot


class Worker:
    """Executes steps with a model.

    Args:
        model: The model; it is plugged into its caches.
        settings: Of the engine.
        wrong_slot: Puts a slot wrong on purpose; None: nothing does.

    Attributes:
        caches: The model's.
        part_builder: Makes what the forward passes compute, and counts micro-batches.
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
        self._tables = fast.BlockTables(
            self.caches.block_sizes,
            settings.pad_reqs(settings.max_num_seqs),
            settings.pad_tokens(settings.token_budget),
            settings.max_model_len,
            device,
            pin_memory=device.type == "cuda",
        )
        self._rows = Rows(self._tables, self.caches.blocks_per_kv_block)
        self._buffers = Buffers(settings, device)
        self.part_builder = PartBuilder(self.caches, self._buffers, settings)

    def execute(self, step: Step) -> dict[str, int]:
        """Execute a step.

        Args:
            step: The scheduler's next one.

        Returns:
            The next token of each request whose known tokens are all computed now, by id.
        """
        self._rows.update(step)
        batch = make_batch(step, self._settings, self._decode_threshold)
        self._buffers.fill(batch, self._rows)
        block_tables, slot_mappings = self._find_slots(batch)
        if self._wrong_slot is not None:
            self._wrong_slot.put(step, batch, slot_mappings, self.caches.block_sizes)
        parts = self.part_builder.build(batch, block_tables, slot_mappings)
        sampled = [self._run(part) for part in parts]

        # Here the host waits for the device, which has all its work by now. It does in every step,
        # also where nothing is sampled: the next step writes what this one's copies may still read.
        token_ids = [
            token_id
            for part, padded in zip(parts, sampled, strict=True)
            for token_id in padded.tolist()[: part.num_logits]
        ]
        req_ids = [entry.request.request_id for entry in batch.entries if entry.is_sampled]
        return dict(zip(req_ids, token_ids, strict=True))

    def _find_slots(self, batch: Batch) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Gather each group's block tables in the batch's order, and find the tokens' slots."""
        buffers = self._buffers
        block_tables = self._tables.gather_block_tables(buffers.idx_mapping.gpu[: batch.num_reqs])
        slot_mappings = self._tables.compute_slot_mappings(
            buffers.query_start_loc.gpu[: batch.num_reqs + 1],
            buffers.positions.gpu[: batch.num_tokens],
        )
        return block_tables, slot_mappings

    def _run(self, part: Part) -> torch.Tensor:
        """Run the model over a part, and return the likeliest token at each wanted place."""
        logits = forward(
            self._model,
            ForwardContext(self._layers, part.attn_metadata),
            self._buffers.input_ids.gpu[part.tokens],
            self._buffers.positions.gpu[part.tokens],
            part.logits_indices,
        )
        return logits.argmax(-1)

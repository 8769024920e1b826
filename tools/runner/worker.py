"""The worker: executes a step, with `fast` for all that stands between scheduler and model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

import fast
from tools.runner.buffers import Buffers
from tools.runner.caches import Caches, make_caches
from tools.runner.forward import ForwardContext, forward, plug_in
from tools.runner.input_batch import InputBatch, Rows
from tools.runner.layers import find_layers
from tools.runner.scheduler import ScheduledRequest, Step
from tools.runner.settings import Settings
from tools.runner.wrong_slot import WrongSlot

DECODE_THRESHOLD = 1


@dataclass(frozen=True)
class Batch:
    """A step's requests in the batch's order, padded as for a CUDA graph.

    Attributes:
        entries: The requests.
        num_reqs: How many, with padding.
        num_tokens: How many tokens, with padding.
        query_lens: int32[num_reqs], the new tokens of each, padded requests' zeros too.
        wanted: int64[num_wanted], the tokens whose logits are wanted: the last of each request
            that gets a next token.
    """

    entries: list[ScheduledRequest]
    num_reqs: int
    num_tokens: int
    query_lens: npt.NDArray[np.int32]
    wanted: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """What one forward pass computes: a batch, or a micro-batch of it.

    Attributes:
        tokens: Its tokens.
        attn_metadata: What each layer is told, by name.
        wanted: The tokens whose logits are wanted, counted from the part's first.
        is_narrowed: Whether layers that share a cache compute these alone.
    """

    tokens: slice
    attn_metadata: dict[str, Any]
    wanted: npt.NDArray[np.int64]
    is_narrowed: bool


class Worker:
    """Executes steps with a model.

    Args:
        model: The model; it is plugged into its caches.
        settings: Of the engine.
        wrong_slot: Puts a slot wrong on purpose; None: nothing does.

    Attributes:
        num_micro_batched_steps: How many steps were cut into micro-batches.
        num_cut_requests: How often a request was cut by one of these.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: Settings,
        wrong_slot: WrongSlot | None = None,
    ) -> None:
        device = model.device
        self.num_micro_batched_steps = 0
        self.num_cut_requests = 0
        self._model = model
        self._settings = settings
        self._wrong_slot = wrong_slot
        self._layers = find_layers(model)
        self.caches: Caches = make_caches(self._layers, settings, device)
        plug_in(model, self._layers)
        self._tables = fast.BlockTables(
            self.caches.block_sizes,
            settings.pad_reqs(settings.max_num_seqs),
            settings.pad_tokens(settings.token_budget),
            settings.max_model_len,
            device,
            pin_memory=device.type == "cuda",
        )
        self._rows = Rows(self._tables)
        self._buffers = Buffers(settings, device)

    def execute(self, step: Step) -> dict[str, int]:
        """Execute a step.

        Args:
            step: The scheduler's next one.

        Returns:
            The next token of each request whose known tokens are all computed now, by id.
        """
        self._update_rows(step)
        batch = self._make_batch(step)
        self._buffers.fill(batch, self._rows)
        block_tables, slot_mappings = self._find_slots(batch)
        if self._wrong_slot is not None:
            self._wrong_slot.put(step, batch, slot_mappings)
        num_tokens = int(batch.query_lens.sum())
        if 1 < self._settings.num_micro_batches <= num_tokens:
            parts = self._cut_into_micro_batches(batch, block_tables, slot_mappings)
        else:
            parts = [self._make_whole(batch, block_tables, slot_mappings)]
        token_ids = [token_id for part in parts for token_id in self._run(part)]
        sampled = [entry.request.request_id for entry in batch.entries if entry.is_sampled]
        return dict(zip(sampled, token_ids, strict=True))

    def _update_rows(self, step: Step) -> None:
        """Free the rows of requests that are gone, and give the others their new blocks."""
        for req_id in step.gone_ids:
            self._rows.remove(req_id)
        entries = step.scheduled.values()
        for entry in entries:
            if entry.is_admitted:
                self._rows.add(entry.request.request_id)
        cu_num_new_blocks, new_block_ids = [], []
        for group, count in enumerate(self.caches.blocks_per_kv_block):
            ends, ids = [0], []
            for entry in entries:
                # The scheduler's blocks are made of smaller ones, which the kernels work on.
                block_ids = torch.tensor(entry.new_block_ids[group], dtype=torch.int32)
                ids += fast.map_to_kernel_blocks(block_ids, count).tolist()
                ends.append(len(ids))
            cu_num_new_blocks.append(ends)
            new_block_ids.append(ids)
        self._tables.append_block_ids(
            [self._rows.row_of(req_id) for req_id in step.scheduled],
            cu_num_new_blocks,
            new_block_ids,
            [entry.is_admitted for entry in entries],
        )

    def _make_batch(self, step: Step) -> Batch:
        """Order the step's requests, decodes first, and pad their number and that of tokens."""
        order = InputBatch(
            {req_id: entry.request.num_computed_tokens for req_id, entry in step.scheduled.items()}
        )
        fast.reorder_batch_to_split_decodes_and_prefills(order, step, DECODE_THRESHOLD)
        entries = [step.scheduled[req_id] for req_id in order.req_ids]
        num_reqs = self._settings.pad_reqs(len(entries))
        query_lens = np.zeros(num_reqs, np.int32)
        query_lens[: len(entries)] = [entry.num_new_tokens for entry in entries]
        last_tokens = query_lens.cumsum(dtype=np.int64)[: len(entries)] - 1
        return Batch(
            entries=entries,
            num_reqs=num_reqs,
            num_tokens=self._settings.pad_tokens(int(query_lens.sum())),
            query_lens=query_lens,
            wanted=last_tokens[[entry.is_sampled for entry in entries]],
        )

    def _find_slots(self, batch: Batch) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Gather each group's block tables in the batch's order, and find the tokens' slots."""
        buffers = self._buffers
        idx_mapping = buffers.idx_mapping.copy_to_gpu(batch.num_reqs)
        block_tables = self._tables.gather_block_tables(idx_mapping)
        slot_mappings = self._tables.compute_slot_mappings(
            buffers.query_start_loc.copy_to_gpu(batch.num_reqs + 1),
            buffers.positions.copy_to_gpu(batch.num_tokens),
        )
        buffers.seq_lens.copy_to_gpu(batch.num_reqs)
        buffers.input_ids.copy_to_gpu(batch.num_tokens)
        return block_tables, slot_mappings

    def _make_whole(
        self, batch: Batch, block_tables: tuple[torch.Tensor, ...], slot_mappings: torch.Tensor
    ) -> Part:
        """Let the builders tell the layers of the whole batch."""
        attn_metadata = fast.build_attn_metadata(
            self.caches.builders,
            batch.num_reqs,
            batch.num_tokens,
            self._buffers.query_start_loc,
            self._buffers.seq_lens,
            self._buffers.num_computed_tokens.cpu,
            block_tables,
            slot_mappings,
            self.caches.config,
        )
        common = {
            group: self._make_common(batch, block_tables[group], slot_mappings[group])
            for group in self.caches.fast_prefill_groups
        }
        return self._make_part(slice(0, batch.num_tokens), 0, attn_metadata, common, batch.wanted)

    def _make_common(
        self, batch: Batch, block_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> fast.CommonAttentionMetadata:
        """Put together what backends are told of the batch in one KV cache group."""
        buffers, num_reqs = self._buffers, batch.num_reqs
        return fast.CommonAttentionMetadata(
            query_start_loc=buffers.query_start_loc.gpu[: num_reqs + 1],
            query_start_loc_cpu=buffers.query_start_loc.cpu[: num_reqs + 1],
            seq_lens=buffers.seq_lens.gpu[:num_reqs],
            seq_lens_cpu=buffers.seq_lens.cpu[:num_reqs],
            num_computed_tokens_cpu=buffers.num_computed_tokens.cpu[:num_reqs],
            num_reqs=num_reqs,
            num_actual_tokens=batch.num_tokens,
            max_query_len=int(batch.query_lens.max()),
            max_seq_len=int(buffers.seq_lens.np[:num_reqs].max()),
            block_table_tensor=block_table,
            slot_mapping=slot_mapping,
        )

    def _cut_into_micro_batches(
        self, batch: Batch, block_tables: tuple[torch.Tensor, ...], slot_mappings: torch.Tensor
    ) -> list[Part]:
        """Cut the batch into micro-batches of about as many tokens, in the midst of requests."""
        count, num_tokens = self._settings.num_micro_batches, int(batch.query_lens.sum())
        points = [num_tokens * k // count for k in range(1, count)]
        slices = fast.create_ubatch_slices(batch.query_lens, points)
        starts = self._buffers.query_start_loc.np[: batch.num_reqs + 1]
        self.num_micro_batched_steps += 1
        self.num_cut_requests += len(set(points) - set(starts.tolist()))
        # The padding goes with the last one.
        last = slices[-1]
        slices[-1] = fast.UBatchSlice(
            slice(last.request_slice.start, batch.num_reqs),
            slice(last.token_slice.start, batch.num_tokens),
        )
        common_of_parts = list(
            zip(
                *(
                    fast.split_attn_metadata(slices, self._make_common(batch, table, slots))
                    for table, slots in zip(block_tables, slot_mappings, strict=True)
                ),
                strict=True,
            )
        )
        parts = []
        for number, (ubatch_slice, common) in enumerate(zip(slices, common_of_parts, strict=True)):
            attn_metadata = {}
            for group, attn_group in enumerate(self.caches.attn_groups):
                built = attn_group.get_metadata_builder(number).build(0, common[group])
                attn_metadata |= dict.fromkeys(attn_group.layer_names, built)
            tokens = ubatch_slice.token_slice
            is_inside = (tokens.start <= batch.wanted) & (batch.wanted < tokens.stop)
            wanted = batch.wanted[is_inside] - tokens.start
            of_group = {group: common[group] for group in self.caches.fast_prefill_groups}
            parts.append(self._make_part(tokens, number, attn_metadata, of_group, wanted))
        return parts

    def _make_part(
        self,
        tokens: slice,
        number: int,
        attn_metadata: dict[str, Any],
        common_of_groups: dict[int, fast.CommonAttentionMetadata],
        wanted: npt.NDArray[np.int64],
    ) -> Part:
        """Let layers that share a cache compute the wanted tokens alone, unless all are wanted."""
        is_narrowed = any(common.max_query_len > 1 for common in common_of_groups.values())
        logits_fields: dict[str, Any] = {}
        if is_narrowed:
            logits_fields["logits_indices_padded"] = self._buffers.pad_wanted(number, wanted)
            logits_fields["num_logits_indices"] = len(wanted)
        for group, common in common_of_groups.items():
            attn_group = self.caches.fast_prefill_groups[group]
            builder = attn_group.get_metadata_builder(number)
            built = builder.build(0, dataclasses.replace(common, **logits_fields))
            attn_metadata |= dict.fromkeys(attn_group.layer_names, built)
        return Part(tokens, attn_metadata, wanted, is_narrowed)

    def _run(self, part: Part) -> list[int]:
        """Run the model over a part, and return the likeliest token at each wanted place."""
        indices = np.arange(len(part.wanted)) if part.is_narrowed else part.wanted
        logits = forward(
            self._model,
            ForwardContext(self._layers, part.attn_metadata),
            self._buffers.input_ids.gpu[part.tokens],
            self._buffers.positions.gpu[part.tokens],
            torch.from_numpy(indices).to(self._model.device),
        )
        return logits.argmax(-1).tolist()

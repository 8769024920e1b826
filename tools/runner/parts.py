"""The forward passes of a step: the whole batch or its micro-batches, and their metadata."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import fast
from tools.runner.batch import Batch
from tools.runner.buffers import Buffers
from tools.runner.caches import Caches
from tools.runner.settings import Settings


@dataclass(frozen=True)
class ForwardPass:
    """What one forward pass computes: a batch, or a micro-batch of it.

    Attributes:
        tokens: Its tokens.
        attn_metadata: The metadata of each layer, by name.
        logits_indices: int64[num_logits_padded] on the device: the tokens with logits, relative to
            the part's first, then padding. None: all tokens that leave the last layer, since the
            layers that share a cache compute only tokens with logits.
        num_logits: How many of them are not padding.
    """

    tokens: slice
    attn_metadata: dict[str, Any]
    logits_indices: torch.Tensor | None
    num_logits: int


class ForwardPassBuilder:
    """Builds the parts of each step.

    Args:
        caches: The groups and builders of the layers.
        buffers: The buffers with the batch of a step.
        settings: The settings of the engine.

    Attributes:
        num_micro_batched_steps: How many steps were cut into micro-batches.
        num_cut_requests: How often a request was cut by a micro-batch.
    """

    def __init__(self, caches: Caches, buffers: Buffers, settings: Settings) -> None:
        self.num_micro_batched_steps = 0
        self.num_cut_requests = 0
        self._caches = caches
        self._buffers = buffers
        self._settings = settings

    def build(
        self, batch: Batch, block_tables: Sequence[torch.Tensor], slot_mappings: torch.Tensor
    ) -> list[ForwardPass]:
        """Make a step's parts.

        Args:
            batch: The batch, which is in the buffers.
            block_tables: For each KV cache group int32[num_reqs, max_blocks].
            slot_mappings: int64[num_groups, num_tokens].

        Returns:
            The whole batch, or its micro-batches: to be computed in this order, since a request
            that is cut reads what its tokens before the cut have written.
        """
        if 1 < self._settings.micro_batches <= batch.num_tokens:
            return self._cut_into_micro_batches(batch, block_tables, slot_mappings)
        return [self._make_whole(batch, block_tables, slot_mappings)]

    def _make_whole(
        self, batch: Batch, block_tables: Sequence[torch.Tensor], slot_mappings: torch.Tensor
    ) -> ForwardPass:
        """Build the metadata of the whole batch."""
        attn_metadata = fast.build_attn_metadata(
            self._caches.builders,
            batch.num_padded_reqs,
            batch.num_padded_tokens,
            self._buffers.query_start_loc,
            self._buffers.seq_lens,
            self._buffers.num_computed_tokens.cpu,
            block_tables,
            slot_mappings,
            self._caches.config,
        )
        common = {
            group: self._make_common(batch, block_tables[group], slot_mappings[group])
            for group in self._caches.fast_prefill_groups
        }
        return self._make_part(
            0, slice(0, batch.num_padded_tokens), batch.logits_indices, attn_metadata, common
        )

    def _make_common(
        self, batch: Batch, block_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> fast.CommonAttentionMetadata:
        """Make the common metadata of the batch in one KV cache group.

        `build_attn_metadata` makes it internally, for whole batches only. Micro-batches are cut
        from it, and fast prefill also needs the logits indices.
        """
        buffers, num_reqs = self._buffers, batch.num_padded_reqs
        return fast.CommonAttentionMetadata(
            query_start_loc=buffers.query_start_loc.gpu[: num_reqs + 1],
            query_start_loc_cpu=buffers.query_start_loc.cpu[: num_reqs + 1],
            seq_lens=buffers.seq_lens.gpu[:num_reqs],
            seq_lens_cpu=buffers.seq_lens.cpu[:num_reqs],
            num_computed_tokens_cpu=buffers.num_computed_tokens.cpu[:num_reqs],
            num_reqs=num_reqs,
            num_actual_tokens=batch.num_padded_tokens,
            max_query_len=int(batch.query_lens.max()),
            max_seq_len=int(buffers.seq_lens.np[:num_reqs].max()),
            block_table_tensor=block_table,
            slot_mapping=slot_mapping,
        )

    def _cut_into_micro_batches(
        self, batch: Batch, block_tables: Sequence[torch.Tensor], slot_mappings: torch.Tensor
    ) -> list[ForwardPass]:
        """Cut the batch into micro-batches of about equal size, also inside requests."""
        count, num_tokens = self._settings.micro_batches, batch.num_tokens
        points = [num_tokens * k // count for k in range(1, count)]
        slices = fast.create_ubatch_slices(batch.query_lens, points)
        starts = self._buffers.query_start_loc.np[: batch.num_padded_reqs + 1]
        self.num_micro_batched_steps += 1
        self.num_cut_requests += len(set(points) - set(starts.tolist()))
        # The last one gets the padding.
        last = slices[-1]
        slices[-1] = fast.UBatchSlice(
            slice(last.request_slice.start, batch.num_padded_reqs),
            slice(last.token_slice.start, batch.num_padded_tokens),
        )
        common_of_groups = [
            fast.split_attn_metadata(slices, self._make_common(batch, table, slots))
            for table, slots in zip(block_tables, slot_mappings, strict=True)
        ]
        parts = []
        for number, ubatch_slice in enumerate(slices):
            common = {group: cut[number] for group, cut in enumerate(common_of_groups)}
            attn_metadata = {}
            for group, attn_group in enumerate(self._caches.attn_groups):
                built = attn_group.get_metadata_builder(number).build(0, common[group])
                attn_metadata |= dict.fromkeys(attn_group.layer_names, built)
            tokens = ubatch_slice.token_slice
            is_inside = (tokens.start <= batch.logits_indices) & (
                batch.logits_indices < tokens.stop
            )
            indices = batch.logits_indices[is_inside] - tokens.start
            parts.append(self._make_part(number, tokens, indices, attn_metadata, common))
        return parts

    def _make_part(
        self,
        number: int,
        tokens: slice,
        indices: npt.NDArray[np.int64],
        attn_metadata: dict[str, Any],
        common: dict[int, fast.CommonAttentionMetadata],
    ) -> ForwardPass:
        """Make a part, in which layers that share a cache compute only tokens with logits.

        Args:
            number: The number of the micro-batch; each has its own builders and buffer.
            tokens: Its tokens.
            indices: The tokens with logits, relative to the first.
            attn_metadata: The metadata of all other layers; that of sharing layers is added.
            common: The common metadata of each group, at least of those with sharing layers.
        """
        # The builders of fast prefill count the logits of each request, which synchronises.
        # All parts are made before the first one runs, so the device has nothing else to do.
        logits_indices = self._buffers.copy_logits_indices(number, indices)
        is_narrowed = False
        for group, attn_group in self._caches.fast_prefill_groups.items():
            of_group = common[group]
            if of_group.max_query_len > 1:
                is_narrowed = True
                of_group = dataclasses.replace(
                    of_group, logits_indices_padded=logits_indices, num_logits_indices=len(indices)
                )
            built = attn_group.get_metadata_builder(number).build(0, of_group)
            attn_metadata |= dict.fromkeys(attn_group.layer_names, built)
        return ForwardPass(
            tokens, attn_metadata, None if is_narrowed else logits_indices, len(indices)
        )

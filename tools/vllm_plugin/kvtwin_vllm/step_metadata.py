"""The metadata of a step: `GPUModelRunner._build_attention_metadata` in the usual case.

KV cache groups with equal specs differ only in their block tables and slots. vLLM builds the
metadata of such groups once, if their backend can replace a block table; the CPU backend cannot.
vLLM also copies the batch for each group, and compares the specs in each step. Here both are done
only if they are needed.
"""

from __future__ import annotations

from copy import copy
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import torch

from kvtwin_vllm.registry import ORIGINALS, VllmObject, replaces


class _Group(NamedTuple):
    """An attention group of vLLM.

    Attributes:
        kv_cache_group: The index of its KV cache group.
        group: vLLM's object.
        leader: The index of the attention group whose metadata is reused; None: it builds its own.
    """

    kv_cache_group: int
    group: VllmObject
    leader: int | None


UPDATE: Final = "CPUAttentionMetadataBuilder.update_block_table"
"""The replacement below that lets groups share metadata on a CPU."""

_GROUPS: Final[WeakKeyDictionary[VllmObject, list[_Group]]] = WeakKeyDictionary()
"""The attention groups of each runner, by the first of them; none if one has an encoder."""


@replaces("vllm.v1.worker.gpu_model_runner", "GPUModelRunner")
def _build_attention_metadata(
    self: VllmObject,
    num_tokens: int,
    num_reqs: int,
    max_query_len: int,
    num_tokens_padded: int | None = None,
    num_reqs_padded: int | None = None,
    ubatch_slices: list[VllmObject] | None = None,
    logits_indices: torch.Tensor | None = None,
    max_num_sampled_tokens: int | None = None,
    use_spec_decode: bool = False,
    for_cudagraph_capture: bool = False,
    num_scheduled_tokens: dict[str, int] | None = None,
    slot_mappings: dict[int, torch.Tensor] | None = None,
) -> tuple[VllmObject, VllmObject | None]:
    """Build the metadata of each layer; the second result is None, since nothing is speculated."""
    is_padded = num_tokens_padded is not None or num_reqs_padded is not None
    is_usual = not (is_padded or for_cudagraph_capture or ubatch_slices) and _is_usual(self)
    groups = _groups_of(self) if is_usual else []
    if not groups:
        return ORIGINALS["GPUModelRunner._build_attention_metadata"](
            self,
            num_tokens,
            num_reqs,
            max_query_len,
            num_tokens_padded,
            num_reqs_padded,
            ubatch_slices,
            logits_indices,
            max_num_sampled_tokens,
            use_spec_decode,
            for_cudagraph_capture,
            num_scheduled_tokens,
            slot_mappings,
        )
    from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: PLC0415

    batch = self.input_batch
    starts, lens = self.query_start_loc, self.optimistic_seq_lens_cpu[:num_reqs]
    is_prefilling = batch.num_computed_tokens_cpu[:num_reqs] < batch.num_prompt_tokens[:num_reqs]
    shared = {
        "query_start_loc": starts.gpu[: num_reqs + 1],
        "query_start_loc_cpu": starts.cpu[: num_reqs + 1],
        "seq_lens": self.seq_lens[:num_reqs],
        "seq_lens_cpu_upper_bound": lens,
        "num_reqs": num_reqs,
        "num_actual_tokens": num_tokens,
        "max_query_len": max_query_len,
        "max_seq_len": int(lens.numpy().max()),
        "causal": True,
        "is_prefilling": torch.from_numpy(is_prefilling),
        "positions": self.positions[:num_tokens],
    }
    assert slot_mappings is not None  # noqa: S101  # as in vLLM
    built = []
    by_layer = {}
    for kv_cache_group, group, leader in groups:
        table = batch.block_table[kv_cache_group].get_device_tensor(num_reqs)
        if leader is None:
            metadata = group.build_metadata(
                CommonAttentionMetadata(
                    **shared, block_table_tensor=table, slot_mapping=slot_mappings[kv_cache_group]
                )
            )
        else:
            metadata = group.get_metadata_builder().update_block_table(
                built[leader], group.map_to_kernel_block_table(table), slot_mappings[kv_cache_group]
            )
        built.append(metadata)
        by_layer.update(dict.fromkeys(group.layer_names, metadata))
    return by_layer, None


@replaces("vllm.v1.attention.backends.cpu_attn", "CPUAttentionMetadataBuilder")
def update_block_table(
    self: VllmObject,
    metadata: VllmObject,
    blk_table: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> VllmObject:
    """Return metadata with other blocks and slots."""
    del self
    updated = copy(metadata)
    updated.block_table, updated.slot_mapping = blk_table, slot_mapping
    return updated


def _is_usual(runner: VllmObject) -> bool:
    """Return whether the batch needs only the fields that are set above."""
    config = runner.cache_config
    return (
        runner.speculative_config is None
        and runner.dcp_world_size == 1
        and not runner.is_mm_prefix_lm
        and runner.model_config.rswa_window is None
        and not runner.model_config.is_encoder_decoder
        and not config.use_replayssm
        and not config.kv_sharing_fast_prefill
    )


def _groups_of(runner: VllmObject) -> list[_Group]:
    """Return the attention groups of a runner; none if one has an encoder, or there are none."""
    if not runner.attn_groups or not runner.attn_groups[0]:
        return []
    key = runner.attn_groups[0][0]
    if key not in _GROUPS:
        _GROUPS[key] = _find_groups(runner)
    return _GROUPS[key]


def _find_groups(runner: VllmObject) -> list[_Group]:
    found: list[_Group] = []
    for index, attention_groups in enumerate(runner.attn_groups):
        for group in attention_groups:
            if type(group.kv_cache_spec).__name__ in {
                "EncoderOnlyAttentionSpec",
                "CrossAttentionSpec",
            }:
                return []
            leaders = (i for i, other in enumerate(found) if _is_alike(group, other.group))
            found.append(_Group(index, group, next(leaders, None)))
    return found


def _is_alike(group: VllmObject, other: VllmObject) -> bool:
    """Return whether the metadata of two groups differs only in block tables and slots."""
    builder, other_builder = group.get_metadata_builder(), other.get_metadata_builder()
    if group.kv_cache_spec != other.kv_cache_spec or type(builder) is not type(other_builder):
        return False
    on_cpu = any(cls.__name__ == UPDATE.partition(".")[0] for cls in type(builder).__mro__)
    return builder.supports_update_block_table or (
        on_cpu
        and UPDATE in ORIGINALS
        and builder.num_heads == other_builder.num_heads
        and builder.window_size == other_builder.window_size
    )

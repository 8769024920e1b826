"""The methods of vLLM that prepare a step, above all on a CPU.

vLLM writes each buffer on the host and copies it to the device, computes there, and builds metadata
for each KV cache group. On a CPU a buffer and its copy are the same memory, and groups with equal
specs differ only in their block tables and slots: here each is written, and built, once.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from fast._native.memory import check_written, locate, locate_table
from fast._native.slots import write_slots
from kvtwin_vllm import ORIGINALS, replaces

BLOCK_TABLE: Final = "vllm.v1.worker.block_table"
RUNNER: Final = "vllm.v1.worker.gpu_model_runner"

# Block tables. `fast.compute_slot_mapping` handles one group, and checks all inputs in each call,
# which takes 9 of its 10 us with 12 requests. `MultiGroupBlockTable` checks its buffers, which stay
# the same, on first use, and the batch once for all groups.

_SLOTS: Final[WeakKeyDictionary[Any, list[tuple[Any, Any]]]] = WeakKeyDictionary()
"""By table, the first and the last arguments of `write_slots` for each group with slots."""


@replaces(BLOCK_TABLE, "BlockTable")
def commit_block_table(self: Any, num_reqs: int) -> None:
    """Copy a block table to the device, if that has memory of its own."""
    if not _is_on_host(self):
        ORIGINALS["BlockTable.commit_block_table"](self, num_reqs)


@replaces(BLOCK_TABLE, "MultiGroupBlockTable")
def compute_slot_mapping(
    self: Any, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor
) -> None:
    """Write the slots of each group's tokens, and -1 after them."""
    groups = _SLOTS.get(self)
    if groups is None:
        if not all(map(_is_on_host, self.block_tables)):
            original = ORIGINALS["MultiGroupBlockTable.compute_slot_mapping"]
            original(self, num_reqs, query_start_loc, positions)
            return
        groups = _SLOTS[self] = list(map(_locate, filter(_has_slots, self.block_tables)))
    starts_at, starts = locate("query_start_loc", query_start_loc, torch.int32)
    positions_at, places = locate("positions", positions, torch.int64)
    num_tokens = places.nelement()
    table = self.block_tables[0]
    if not num_reqs < starts.nelement() or num_reqs > table.max_num_reqs:
        raise ValueError(
            f"num_reqs is {num_reqs}, but query_start_loc has {starts.nelement()} entries, and"
            f" block_table has {table.max_num_reqs} rows"
        )
    if num_tokens > table.max_num_batched_tokens:
        raise ValueError(
            f"positions has {num_tokens} entries, expected at most {table.max_num_batched_tokens}"
        )
    for blocks, slots in groups:
        if not write_slots(*blocks, starts_at, num_reqs, positions_at, num_tokens, *slots):
            raise ValueError(f"positions has {num_tokens} entries, fewer than query_start_loc says")


def _has_slots(table: Any) -> bool:
    """Return whether the tokens of a group have slots, which those of Mamba groups do not."""
    return bool(table.slot_mapping_mode.name == "TOKEN_TO_KV_SLOT")


def _is_on_host(table: Any) -> bool:
    """Return whether a table is on the CPU; if so, make each buffer its own copy on the device.

    vLLM's runner for CPUs does this too, but not for the tables of several groups, which it makes
    later.
    """
    blocks, slots = table.block_table, table.slot_mapping
    if blocks.gpu is not blocks.cpu and blocks.gpu.is_cpu:
        blocks.gpu, slots.gpu = blocks.cpu, slots.cpu
    return blocks.gpu is blocks.cpu


def _locate(table: Any) -> tuple[Any, Any]:
    """Return the arguments of `write_slots` that locate a group's blocks and slots."""
    address, rows, *strides = locate_table("block_table", table.block_table.cpu, torch.int32)
    slots = table.slot_mapping.np
    check_written("slot_mapping", slots, np.int64, 1)
    if table.max_num_reqs > rows.shape[0] or table.max_num_batched_tokens > len(slots):
        raise ValueError(
            f"block_table has {rows.shape[0]} rows and slot_mapping {len(slots)} entries, expected"
            f" at least {table.max_num_reqs} and {table.max_num_batched_tokens}"
        )
    ranks = (table.dcp_world_size, table.dcp_rank, table.cp_kv_cache_interleave_size)
    return (address, *strides, rows.shape[1]), (slots, table.block_size, table.block_size, *ranks)


# The inputs of a step.


class _Views(NamedTuple):
    """The memory of a runner's tensors that have no NumPy array."""

    num_computed_tokens: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    optimistic_seq_lens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]


_VIEWS: Final[WeakKeyDictionary[Any, _Views]] = WeakKeyDictionary()
"""By runner: making them in each step would take 20 us."""


@replaces(RUNNER, "GPUModelRunner")
def _prepare_inputs(
    self: Any,
    scheduler_output: Any,
    num_scheduled_tokens: npt.NDArray[np.int32],
) -> tuple[torch.Tensor, None, int]:
    """Write the inputs of a step into the runner's buffers.

    Returns:
        int32[num_reqs], the tokens whose logits are needed; None, since nothing is speculated; and
        the most tokens that a request samples.
    """
    if not _has_usual_inputs(self):
        return ORIGINALS["GPUModelRunner._prepare_inputs"](
            self, scheduler_output, num_scheduled_tokens
        )
    batch = self.input_batch
    num_reqs = batch.num_reqs
    num_tokens = scheduler_output.total_num_scheduled_tokens
    batch.block_table.commit_block_table(num_reqs)

    starts = self.query_start_loc.np
    starts[0] = 0
    np.add.accumulate(num_scheduled_tokens, out=starts[1 : num_reqs + 1])
    starts[num_reqs + 1 :] = num_tokens
    self.num_scheduled_tokens.np[:num_reqs] = num_scheduled_tokens

    num_computed_tokens = batch.num_computed_tokens_cpu[:num_reqs]
    views = _VIEWS.get(self) or _view(self)
    views.num_computed_tokens[:num_reqs] = num_computed_tokens
    seq_lens = views.seq_lens
    np.add(num_computed_tokens, num_scheduled_tokens, out=seq_lens[:num_reqs])
    seq_lens[num_reqs:] = 0
    views.optimistic_seq_lens[:] = seq_lens

    requests = self.arange_np[:num_reqs].repeat(num_scheduled_tokens)
    self.req_indices.np[:num_tokens] = requests
    # A token's place in its query: its place in the batch less where its query starts.
    places = np.subtract(
        self.arange_np[:num_tokens], starts[requests], out=self.query_pos.np[:num_tokens]
    )
    positions = np.add(num_computed_tokens[requests], places, out=views.positions[:num_tokens])
    self.input_ids.np[:num_tokens] = batch.token_ids_cpu[requests, positions]

    # Tokens that are sampled before the end of a prompt are discarded.
    num_known_tokens = batch.num_tokens_no_spec[:num_reqs]
    np.less(seq_lens[:num_reqs], num_known_tokens, out=self.discard_request_mask.np[:num_reqs])
    self.num_accepted_tokens.np.fill(1)
    self.prev_positions.np[:num_reqs] = -1  # no token of the step before is on the device

    query_start_loc = self.query_start_loc.cpu[: num_reqs + 1]
    batch.block_table.compute_slot_mapping(num_reqs, query_start_loc, self.positions[:num_tokens])
    return query_start_loc[1:] - 1, None, 1


def _view(runner: Any) -> _Views:
    views = _VIEWS[runner] = _Views(
        runner.num_computed_tokens.numpy(),
        runner.seq_lens.numpy(),
        runner.optimistic_seq_lens_cpu.numpy(),
        runner.positions.numpy(),
    )
    return views


def _has_usual_inputs(runner: Any) -> bool:
    """Return whether the inputs are only token IDs, on the CPU, of requests without drafts."""
    batch = runner.input_batch
    return (
        runner.query_start_loc.gpu is runner.query_start_loc.cpu
        and runner.speculative_config is None
        and runner.num_accepted_tokens_event is None
        and runner.lora_config is None
        and not runner.uses_mrope
        and not runner.enable_prompt_embeds
        and not batch.req_prompt_embeds
        and not batch.prev_req_id_to_index
        and batch.prev_sampled_token_ids is None
        and runner._pp_recv_work is None  # noqa: SLF001  # the method is the runner's own
    )


# The metadata of a step. vLLM builds the metadata of groups with equal specs once, if their backend
# can replace a block table, which the CPU's cannot.


class _Group(NamedTuple):
    """An attention group of vLLM."""

    kv_cache_group: int  # the index of its KV cache group
    group: Any  # vLLM's object
    leader: int | None  # the attention group whose metadata is reused; None: it builds its own


UPDATE: Final = "CPUAttentionMetadataBuilder.update_block_table"
"""The replacement below that lets groups share metadata on a CPU."""

_GROUPS: Final[WeakKeyDictionary[Any, list[_Group]]] = WeakKeyDictionary()
"""The attention groups of each runner, by the first of them; none if one has an encoder."""


@replaces(RUNNER, "GPUModelRunner")
def _build_attention_metadata(
    self: Any,
    num_tokens: int,
    num_reqs: int,
    max_query_len: int,
    num_tokens_padded: int | None = None,
    num_reqs_padded: int | None = None,
    ubatch_slices: list[Any] | None = None,
    logits_indices: torch.Tensor | None = None,
    max_num_sampled_tokens: int | None = None,
    use_spec_decode: bool = False,
    for_cudagraph_capture: bool = False,
    num_scheduled_tokens: dict[str, int] | None = None,
    slot_mappings: dict[int, torch.Tensor] | None = None,
) -> tuple[Any, Any | None]:
    """Build the metadata of each layer; the second result is None, since nothing is speculated."""
    is_padded = num_tokens_padded is not None or num_reqs_padded is not None
    is_special = is_padded or for_cudagraph_capture or ubatch_slices
    groups = _groups_of(self) if not is_special and _has_usual_metadata(self) else []
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
    self: Any,
    metadata: Any,
    blk_table: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> Any:
    """Return metadata with other blocks and slots."""
    del self
    updated = copy(metadata)
    updated.block_table, updated.slot_mapping = blk_table, slot_mapping
    return updated


def _has_usual_metadata(runner: Any) -> bool:
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


def _groups_of(runner: Any) -> list[_Group]:
    """Return the attention groups of a runner; none if one has an encoder, or there are none."""
    if not runner.attn_groups or not runner.attn_groups[0]:
        return []
    key = runner.attn_groups[0][0]
    if key not in _GROUPS:
        _GROUPS[key] = _find_groups(runner)
    return _GROUPS[key]


def _find_groups(runner: Any) -> list[_Group]:
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


def _is_alike(group: Any, other: Any) -> bool:
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

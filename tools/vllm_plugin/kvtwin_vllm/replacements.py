"""Functions of `fast` with the names, parameters and results of vLLM's.

A replacement calls vLLM's own function for arguments that `fast` does not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

import fast
from kvtwin_vllm.batches import make_batch, to_vllm
from kvtwin_vllm.registry import ORIGINALS, VllmObject, replaces

ATTENTION: Final = "vllm.v1.attention.backends.utils"
UBATCH: Final = "vllm.v1.worker.ubatch_utils"
WORKER: Final = "vllm.v1.worker.utils"


@replaces("vllm.v1.worker.block_table", "BlockTable")
def compute_slot_mapping(
    self: VllmObject, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor
) -> None:
    """Write the slots of a KV cache group's tokens, and -1 after them."""
    if self.slot_mapping_mode.name != "TOKEN_TO_KV_SLOT":  # a group of Mamba states has no slots
        ORIGINALS["BlockTable.compute_slot_mapping"](self, num_reqs, query_start_loc, positions)
        return
    fast.compute_slot_mapping(
        self.block_table.gpu,
        query_start_loc[: num_reqs + 1],
        positions,
        self.block_size,
        cp_world_size=self.dcp_world_size,
        cp_rank=self.dcp_rank,
        cp_kv_cache_interleave_size=self.cp_kv_cache_interleave_size,
        out=self.slot_mapping.gpu,
    )


@replaces(ATTENTION)
def split_decodes_and_prefills(
    common_attn_metadata: VllmObject,
    decode_threshold: int = 1,
    require_uniform: bool = False,
    treat_short_extends_as_decodes: bool = True,
) -> tuple[int, int, int, int]:
    """Count decodes and prefills; vLLM's own counts short extends as prefills."""
    if not treat_short_extends_as_decodes:
        original = ORIGINALS["split_decodes_and_prefills"]
        return original(common_attn_metadata, decode_threshold, require_uniform, False)
    return fast.split_decodes_and_prefills(common_attn_metadata, decode_threshold, require_uniform)


@replaces(ATTENTION)
def split_decodes_prefills_and_extends(
    common_attn_metadata: VllmObject, decode_threshold: int = 1
) -> tuple[int, int, int, int, int, int]:
    """Count decodes, extends and prefills."""
    batch = make_batch(common_attn_metadata)
    return fast.split_decodes_prefills_and_extends(batch, decode_threshold)


@replaces(ATTENTION)
def reorder_batch_to_split_decodes_and_prefills(
    input_batch: VllmObject, scheduler_output: VllmObject, decode_threshold: int = 1
) -> bool:
    """Bring a batch into the order of vLLM's four regions."""
    return fast.reorder_batch_to_split_decodes_and_prefills(
        input_batch, scheduler_output, decode_threshold, regions=4
    )


@replaces(ATTENTION)
def make_kv_sharing_fast_prefill_common_attn_metadata(
    common_attn_metadata: VllmObject,
) -> VllmObject:
    """Make the metadata of the tokens whose logits are needed.

    On a GPU this is left to vLLM, since `fast` would synchronise: the indices are not on the host.
    """
    metadata = common_attn_metadata
    indices = metadata.logits_indices_padded
    if indices is None or not indices.is_cpu or metadata.seq_lens_cpu_upper_bound is None:
        return ORIGINALS["make_kv_sharing_fast_prefill_common_attn_metadata"](metadata)
    batch = make_batch(metadata)
    made = fast.make_kv_sharing_fast_prefill_common_attn_metadata(batch)
    return metadata if made is batch else to_vllm(made, metadata)


@replaces(UBATCH)
def maybe_create_ubatch_slices(
    should_ubatch: bool,
    num_scheduled_tokens: npt.NDArray[np.int32],
    num_tokens_padded: int,
    num_reqs_padded: int,
    num_ubatches: int,
    split_point: list[int] | int | None = None,
) -> tuple[Sequence[VllmObject] | None, Sequence[VllmObject] | None]:
    """Cut a batch into micro-batches of equal size, the last one also with its padding.

    Lists of split points, and micro-batches of only padding, are left to vLLM.
    """
    if not should_ubatch:
        return None, None
    size = num_tokens_padded // num_ubatches if split_point is None else split_point
    points = [] if isinstance(size, list) else [size * i for i in range(1, num_ubatches)]
    if not points or points[-1] >= num_scheduled_tokens.sum():
        return ORIGINALS["maybe_create_ubatch_slices"](
            should_ubatch,
            num_scheduled_tokens,
            num_tokens_padded,
            num_reqs_padded,
            num_ubatches,
            split_point,
        )
    slices = fast.create_ubatch_slices(num_scheduled_tokens, points)
    requests, tokens = slices[-1].request_slice, slices[-1].token_slice
    padded = fast.UBatchSlice(
        slice(requests.start, num_reqs_padded), slice(tokens.start, num_tokens_padded)
    )
    return slices, [*slices[:-1], padded]


@replaces(UBATCH)
def slice_query_start_locs(query_start_loc: torch.Tensor, request_slice: slice) -> torch.Tensor:
    """Return where the tokens of some requests start."""
    return fast.slice_query_start_locs(query_start_loc, request_slice)


@replaces(UBATCH, needs_exact_lengths=True)
def split_attn_metadata(
    ubatch_slices: list[VllmObject], common_attn_metadata: VllmObject
) -> list[VllmObject]:
    """Make the metadata of each micro-batch.

    Unlike vLLM's, it keeps `causal` and `is_prefilling`. Encoder lengths, and a `causal` for each
    request, are left to vLLM.
    """
    metadata = common_attn_metadata
    if metadata.encoder_seq_lens is not None or not isinstance(metadata.causal, bool):
        return ORIGINALS["split_attn_metadata"](ubatch_slices, metadata)
    made = fast.split_attn_metadata(ubatch_slices, make_batch(metadata))
    prefilling = metadata.is_prefilling
    return [
        to_vllm(
            piece,
            metadata,
            is_prefilling=None if prefilling is None else prefilling[ubatch_slice.request_slice],
        )
        for piece, ubatch_slice in zip(made, ubatch_slices, strict=True)
    ]


@replaces(ATTENTION)
def compute_causal_conv1d_metadata(
    query_start_loc_p_cpu: torch.Tensor, *, device: torch.device
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    """List the programs of a causal convolution.

    On a GPU this is left to vLLM: `fast` needs the starts there, and vLLM passes those on the host.
    """
    if device.type != "cpu":
        original = ORIGINALS["compute_causal_conv1d_metadata"]
        return original(query_start_loc_p_cpu, device=device)
    return fast.compute_causal_conv1d_metadata(query_start_loc_p_cpu)


@replaces(ATTENTION)
def get_dcp_local_seq_lens(
    seq_lens: torch.Tensor,
    dcp_size: int = 1,
    dcp_rank: int | torch.Tensor | None = None,
    cp_kv_cache_interleave_size: int = 1,
) -> torch.Tensor:
    """Count the positions that a rank holds.

    A rank in a tensor is left to vLLM, and so are lengths that are not an int32 vector.
    """
    if isinstance(dcp_rank, torch.Tensor) or seq_lens.dtype != torch.int32 or seq_lens.ndim != 1:
        original = ORIGINALS["get_dcp_local_seq_lens"]
        return original(seq_lens, dcp_size, dcp_rank, cp_kv_cache_interleave_size)
    return fast.get_dcp_local_seq_lens(seq_lens, dcp_size, dcp_rank, cp_kv_cache_interleave_size)


@replaces(ATTENTION)
def reshape_query_for_spec_decode(query: torch.Tensor, batch_size: int) -> torch.Tensor:
    """View the tokens of a uniform batch request by request."""
    return fast.reshape_query_for_spec_decode(query, batch_size)


@replaces(ATTENTION)
def reshape_attn_output_for_spec_decode(attn_output: torch.Tensor) -> torch.Tensor:
    """View the tokens of all requests one after another."""
    return fast.reshape_attn_output_for_spec_decode(attn_output)


@replaces(WORKER)
def select_common_block_size(
    kv_manager_block_size: int,
    backends: list[VllmObject],
    kv_cache_specs: Sequence[VllmObject] | None = None,
) -> int:
    """Select a block size that all backends support, each for its own KV cache spec."""
    specs = kv_cache_specs or [None] * len(backends)
    groups = [
        SimpleNamespace(backend=_BackendOfSpec(backend, spec))
        for backend, spec in zip(backends, specs, strict=True)
    ]
    return fast.select_common_block_size(kv_manager_block_size, groups)


class _BackendOfSpec:
    """A backend whose supported block sizes are those for one KV cache spec."""

    def __init__(self, backend: VllmObject, spec: VllmObject) -> None:
        self._backend, self._spec = backend, spec

    def get_supported_kernel_block_sizes(self) -> Sequence[VllmObject]:
        sizes: Sequence[VllmObject] = self._backend.get_supported_kernel_block_sizes(self._spec)
        return sizes


@replaces(WORKER)
def add_kv_sharing_layers_to_kv_cache_groups(
    shared_kv_cache_layers: dict[str, str],
    kv_cache_groups: list[VllmObject],
    runner_only_attn_layers: set[str] | None = None,
) -> None:
    """Add each layer that shares a cache to its target's group, once."""
    fast.add_kv_sharing_layers_to_kv_cache_groups(
        shared_kv_cache_layers, kv_cache_groups, runner_only_attn_layers
    )


@replaces("vllm.model_executor.models.utils")
def extract_layer_index(layer_name: str, num_attn_module: int = 1) -> int:
    """Return the index of a layer from its name."""
    return fast.extract_layer_index(layer_name, num_attn_module)


@replaces(WORKER)
def sanity_check_mm_encoder_outputs(mm_embeddings: VllmObject, expected_num_items: int) -> None:
    """Check the outputs of a multimodal encoder."""
    fast.sanity_check_mm_encoder_outputs(mm_embeddings, expected_num_items)

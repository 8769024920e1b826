"""Functions of `fast` with the names, parameters and results of vLLM's.

A replacement calls vLLM's own function for arguments that `fast` does not support.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

import fast
from fast._native.local_attention import find_virtual_requests, gather_columns
from kvtwin_vllm import ORIGINALS, replaces

ATTENTION: Final = "vllm.v1.attention.backends.utils"
UBATCH: Final = "vllm.v1.worker.ubatch_utils"
WORKER: Final = "vllm.v1.worker.utils"

KEPT: Final[dict[str, str | None]] = {
    "is_prefilling": "request_slice",
    "positions": "token_slice",
    "dcp_local_seq_lens_cpu_upper_bound": "request_slice",
    "max_logits_per_req": None,
    "req_idx": "request_slice",
}
"""The fields that micro-batches keep, and the slice that cuts each."""

# Functions with vLLM's parameters.
replaces(UBATCH)(fast.slice_query_start_locs)
replaces(ATTENTION)(fast.reshape_query_for_spec_decode)
replaces(ATTENTION)(fast.reshape_attn_output_for_spec_decode)
replaces(WORKER)(fast.add_kv_sharing_layers_to_kv_cache_groups)  # adds each layer once
replaces(WORKER)(fast.sanity_check_mm_encoder_outputs)
replaces("vllm.model_executor.models.utils")(fast.extract_layer_index)


def make_batch(metadata: Any) -> SimpleNamespace:
    """Return a batch with the fields that `fast` reads, from vLLM's metadata.

    vLLM has one field for lengths on the host, `seq_lens_cpu_upper_bound`, and none for
    computed tokens. Without speculative decoding the bound is exact.
    """
    seq_lens_cpu = metadata.seq_lens_cpu_upper_bound
    return SimpleNamespace(
        query_start_loc=metadata.query_start_loc,
        query_start_loc_cpu=metadata.query_start_loc_cpu,
        seq_lens=metadata.seq_lens,
        seq_lens_cpu=seq_lens_cpu,
        num_computed_tokens_cpu=seq_lens_cpu - metadata.query_start_loc_cpu.diff(),
        num_reqs=metadata.num_reqs,
        num_actual_tokens=metadata.num_actual_tokens,
        max_query_len=metadata.max_query_len,
        max_seq_len=metadata.max_seq_len,
        block_table_tensor=metadata.block_table_tensor,
        slot_mapping=metadata.slot_mapping,
        causal=metadata.causal,
        logits_indices_padded=metadata.logits_indices_padded,
        num_logits_indices=metadata.num_logits_indices,
        encoder_seq_lens=None,
        dcp_local_seq_lens=None,
    )


def to_vllm(made: fast.CommonAttentionMetadata, metadata: Any, **others: Any) -> Any:
    """Convert metadata that `fast` made to the class of vLLM's; `others` only this class has."""
    return type(metadata)(
        query_start_loc=made.query_start_loc,
        query_start_loc_cpu=made.query_start_loc_cpu,
        seq_lens=made.seq_lens,
        num_reqs=made.num_reqs,
        num_actual_tokens=made.num_actual_tokens,
        max_query_len=made.max_query_len,
        max_seq_len=made.max_seq_len,
        block_table_tensor=made.block_table_tensor,
        slot_mapping=made.slot_mapping,
        causal=made.causal,
        seq_lens_cpu_upper_bound=made.seq_lens_cpu,
        **others,
    )


@replaces("vllm.v1.worker.block_table", "BlockTable")
def compute_slot_mapping(
    self: Any, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor
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
    common_attn_metadata: Any,
    decode_threshold: int = 1,
    require_uniform: bool = False,
    treat_short_extends_as_decodes: bool = True,
) -> tuple[int, int, int, int]:
    """Count decodes and prefills; flags that are not on the host for each row are left to vLLM."""
    flags = common_attn_metadata.is_prefilling
    has_flags = flags is not None and flags.is_cpu and len(flags) == common_attn_metadata.num_reqs
    if not treat_short_extends_as_decodes and not has_flags:
        original = ORIGINALS["split_decodes_and_prefills"]
        return original(common_attn_metadata, decode_threshold, require_uniform, False)
    return fast.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform, treat_short_extends_as_decodes
    )


@replaces(ATTENTION)
def split_decodes_prefills_and_extends(
    common_attn_metadata: Any, decode_threshold: int = 1
) -> tuple[int, int, int, int, int, int]:
    """Count decodes, extends and prefills."""
    batch = make_batch(common_attn_metadata)
    return fast.split_decodes_prefills_and_extends(batch, decode_threshold)


@replaces(ATTENTION)
def reorder_batch_to_split_decodes_and_prefills(
    input_batch: Any, scheduler_output: Any, decode_threshold: int = 1
) -> bool:
    """Bring a batch into the order of vLLM's four regions."""
    return fast.reorder_batch_to_split_decodes_and_prefills(
        input_batch, scheduler_output, decode_threshold, regions=4
    )


@replaces(ATTENTION)
def make_kv_sharing_fast_prefill_common_attn_metadata(
    common_attn_metadata: Any,
) -> Any:
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
) -> tuple[Sequence[Any] | None, Sequence[Any] | None]:
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


@replaces(UBATCH, needs_exact_lengths=True)
def split_attn_metadata(ubatch_slices: list[Any], common_attn_metadata: Any) -> list[Any]:
    """Make the metadata of each micro-batch.

    Unlike vLLM's, it keeps `causal` and the fields of `KEPT`. Encoder lengths, and a `causal` for
    each request, are left to vLLM.
    """
    metadata = common_attn_metadata
    if metadata.encoder_seq_lens is not None or not isinstance(metadata.causal, bool):
        return ORIGINALS["split_attn_metadata"](ubatch_slices, metadata)
    made = fast.split_attn_metadata(ubatch_slices, make_batch(metadata))
    pieces = []
    for piece, ubatch_slice in zip(made, ubatch_slices, strict=True):
        kept: dict[str, Any] = {}
        for name, part in KEPT.items():
            value = getattr(metadata, name, None)
            if value is not None:
                kept[name] = value if part is None else value[getattr(ubatch_slice, part)]
        pieces.append(to_vllm(piece, metadata, **kept))
    return pieces


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


@replaces(WORKER)
def select_common_block_size(
    kv_manager_block_size: int,
    backends: list[Any],
    kv_cache_specs: Sequence[Any] | None = None,
) -> int:
    """Select a block size that all backends support, each for its own KV cache spec."""
    specs = kv_cache_specs or [None] * len(backends)
    sizes = [
        functools.partial(backend.get_supported_kernel_block_sizes, spec)
        for backend, spec in zip(backends, specs, strict=True)
    ]
    groups = [
        SimpleNamespace(backend=SimpleNamespace(get_supported_kernel_block_sizes=of_spec))
        for of_spec in sizes
    ]
    return fast.select_common_block_size(kv_manager_block_size, groups)


@replaces(ATTENTION)
def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> tuple[Any, Callable[[torch.Tensor], torch.Tensor]]:
    """Make one virtual request of each chunk, and a function that makes other groups' tables."""
    table = common_attn_metadata.block_table_tensor
    if block_size < 1 or attn_chunk_size % block_size or not table.is_cpu:
        return _make_with_checks(attn_chunk_size, common_attn_metadata, block_size)
    # The loops of `fast` without its metadata class: saves 50 us in a step.
    metadata, columns = common_attn_metadata, attn_chunk_size // block_size
    virtual = find_virtual_requests(
        metadata.query_start_loc_cpu,
        metadata.seq_lens,
        metadata.num_reqs,
        metadata.num_actual_tokens,
        attn_chunk_size,
        columns,
    )
    size, vectors, max_query_len, max_seq_len = virtual
    starts = torch.from_numpy(vectors[: size + 1])
    seq_lens = torch.from_numpy(vectors[size + 1 : 2 * size + 1])

    def make_block_table(block_table: torch.Tensor) -> torch.Tensor:
        return gather_columns(block_table, virtual, columns)

    made = type(metadata)(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seq_lens,
        num_reqs=size,
        num_actual_tokens=metadata.num_actual_tokens,
        max_query_len=max_query_len,
        max_seq_len=max_seq_len,
        block_table_tensor=make_block_table(table),
        slot_mapping=metadata.slot_mapping,
        seq_lens_cpu_upper_bound=seq_lens,
    )
    return made, make_block_table


def _make_with_checks(
    attn_chunk_size: int, metadata: Any, block_size: int
) -> tuple[Any, Callable[[torch.Tensor], torch.Tensor]]:
    """Do the same on a GPU, or raise the error of invalid sizes."""
    batch = SimpleNamespace(
        num_reqs=metadata.num_reqs,
        num_actual_tokens=metadata.num_actual_tokens,
        query_start_loc_cpu=metadata.query_start_loc_cpu,
        seq_lens_cpu=metadata.seq_lens.cpu(),  # synchronises, as vLLM does here
        block_table_tensor=metadata.block_table_tensor,
        slot_mapping=metadata.slot_mapping,
    )
    virtual = fast.make_local_attention_virtual_batches(attn_chunk_size, batch, block_size)

    def make_block_table(block_table: torch.Tensor) -> torch.Tensor:
        batch.block_table_tensor = block_table
        again = fast.make_local_attention_virtual_batches(attn_chunk_size, batch, block_size)
        return again.block_table_tensor

    return to_vllm(virtual, metadata), make_block_table

"""A stand-in for vLLM 0.33, for its adapter, its baseline and its plugin.

It has modules of the same names, with objects of the same shapes that `fast` computes.
"""

from __future__ import annotations

import dataclasses
import importlib.machinery
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import fast


@dataclasses.dataclass
class CommonAttentionMetadata:
    """vLLM's fields: one copy of the lengths on the CPU, and no computed tokens."""

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool | torch.Tensor = True
    logits_indices_padded: torch.Tensor | None = None
    num_logits_indices: int | None = None
    max_logits_per_req: int | None = None
    encoder_seq_lens: torch.Tensor | None = None
    encoder_seq_lens_cpu: np.ndarray[Any, Any] | None = None
    dcp_local_seq_lens: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    is_prefilling: torch.Tensor | None = None
    seq_lens_cpu_upper_bound: torch.Tensor | None = None
    dcp_local_seq_lens_cpu_upper_bound: torch.Tensor | None = None
    req_idx: np.ndarray[Any, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FullAttentionSpec:
    """A spec that only takes keywords, with a field that ours lacks."""

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    non_causal: bool = False


@dataclasses.dataclass(frozen=True)
class MambaSpec:
    """A spec that is only used for its default type."""

    block_size: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    mamba_type: str = "mamba2"


class BlockTable:
    """A block table whose method writes the slots into its own buffer."""

    def __init__(self, block_size: int, slot_mapping_mode: str = "slots") -> None:
        raise NotImplementedError

    def compute_slot_mapping(
        self: Any, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """Write the slots of a step."""
        assert (len(query_start_loc) - 1, "slots") == (num_reqs, self.slot_mapping_mode)
        fast.compute_slot_mapping(
            self.block_table.gpu,
            query_start_loc,
            positions,
            self.block_size,
            out=self.slot_mapping.gpu,
        )


def _as_fast(theirs: CommonAttentionMetadata) -> fast.CommonAttentionMetadata:
    fields = {f.name for f in dataclasses.fields(fast.CommonAttentionMetadata)}
    fields.remove("encoder_seq_lens")  # ours is on the CPU
    given = {name: value for name, value in vars(theirs).items() if name in fields}
    lengths = theirs.seq_lens_cpu_upper_bound
    assert lengths is not None
    return fast.CommonAttentionMetadata(
        **given,
        seq_lens_cpu=lengths,
        num_computed_tokens_cpu=(lengths - theirs.query_start_loc_cpu.diff()).clamp(min=0),
        encoder_seq_lens=theirs.encoder_seq_lens_cpu,
    )


def _from_fast(found: fast.CommonAttentionMetadata) -> CommonAttentionMetadata:
    known = {f.name for f in dataclasses.fields(CommonAttentionMetadata)}
    known -= {"encoder_seq_lens", "seq_lens_cpu_upper_bound"}
    fields = {name: value for name, value in vars(found).items() if name in known}
    fields["max_query_len"] = np.int32(found.max_query_len)  # as in vLLM
    return CommonAttentionMetadata(
        **fields,
        seq_lens_cpu_upper_bound=found.seq_lens_cpu,
        encoder_seq_lens_cpu=found.encoder_seq_lens,
    )


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata,
    decode_threshold: int = 1,
    require_uniform: bool = False,
) -> tuple[Any, ...]:
    """Return the counts, some as tensors of no dimensions."""
    first, *rest = fast.split_decodes_and_prefills(
        _as_fast(common_attn_metadata), decode_threshold, require_uniform
    )
    return first, *map(torch.tensor, rest)


def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: CommonAttentionMetadata, block_size: int = 0
) -> tuple[CommonAttentionMetadata, Callable[..., None]]:
    """Return the metadata, and a function."""
    found = fast.make_local_attention_virtual_batches(
        attn_chunk_size, _as_fast(common_attn_metadata), block_size
    )
    return _from_fast(found), print


def reorder_batch_to_split_decodes_and_prefills(
    input_batch: types.SimpleNamespace,
    scheduler_output: types.SimpleNamespace,
    decode_threshold: int = 1,
) -> bool:
    """Reorder to four regions."""
    done_prefilling = 4
    return fast.reorder_batch_to_split_decodes_and_prefills(
        input_batch, scheduler_output, decode_threshold, regions=done_prefilling
    )


def split_attn_metadata(
    ubatch_slices: list[fast.UBatchSlice], common_attn_metadata: CommonAttentionMetadata
) -> list[CommonAttentionMetadata]:
    """Cut `positions`, as 0.33 does; unlike that, also keep all other fields."""
    slices = [fast.UBatchSlice(one.request_slice, one.token_slice) for one in ubatch_slices]
    made = fast.split_attn_metadata(slices, _as_fast(common_attn_metadata))
    return [_from_fast(part) for part in made]


MODULES: dict[str, tuple[Any, ...]] = {
    "v1.attention.backend": (CommonAttentionMetadata,),
    "v1.attention.backends.utils": (
        make_local_attention_virtual_batches,
        reorder_batch_to_split_decodes_and_prefills,
        split_decodes_and_prefills,
    ),
    "v1.kv_cache_interface": (FullAttentionSpec, MambaSpec),
    "v1.worker.block_table": (BlockTable,),
    "v1.worker.ubatch_utils": (split_attn_metadata,),
    "v1.worker.gpu.input_batch": (fast.expand_idx_mapping, fast.prepare_pos_seq_lens),
    "triton_utils": (),
    "platforms": (),
}
"""The contents of each module below `vllm`."""


def modules(
    contents: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, types.ModuleType]:
    """Return modules with these contents by name, for `sys.modules`; default: `MODULES`."""
    found: dict[str, types.ModuleType] = {}
    for name, members in (MODULES if contents is None else contents).items():
        parts = f"vllm.{name}".split(".")
        for i in range(1, len(parts) + 1):
            whole = ".".join(parts[:i])
            made = found.setdefault(whole, types.ModuleType(whole))
            made.__path__ = []
            made.__spec__ = importlib.machinery.ModuleSpec(whole, None, is_package=True)
        vars(found[f"vllm.{name}"]).update({member.__name__: member for member in members})
    vars(found["vllm"])["__version__"] = "0.33.0"
    if "vllm.triton_utils" in found:
        vars(found["vllm.triton_utils"])["HAS_TRITON"] = True
    if "vllm.platforms" in found:
        platform = types.SimpleNamespace(import_kernels=None)
        vars(found["vllm.platforms"])["current_platform"] = platform
    return found

"""Calls of vLLM's functions whose parameters or results differ from ours."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from conformance.adapters.base import Unsupported
from conformance.adapters.vllm.places import find


class Calls:
    """vLLM's functions whose parameters differ, with our parameters; others are called as they are.

    Args:
        ours: Returns our object for one of vLLM's.
    """

    def __init__(self, ours: Callable[[Any], Any]) -> None:
        self._ours = ours

    def compute_slot_mapping(
        self,
        block_table: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        block_size: int,
        *,
        kernel_block_size: int | None = None,
        cp_world_size: int = 1,
        cp_rank: int = 0,
        cp_kv_cache_interleave_size: int = 1,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Call the method of a `BlockTable` that holds these tensors.

        The kernel for CPUs supports one rank. It reads raw memory, so tensors must be contiguous.
        """
        if cp_world_size != 1:
            raise Unsupported("more than one rank, which the CPU kernel does not support")
        del cp_rank, cp_kv_cache_interleave_size
        tables, starts, tokens = (
            tensor.contiguous().resolve_neg()
            for tensor in (block_table, query_start_loc, positions)
        )
        size, device = len(tokens), positions.device
        slots = torch.full((size,), -1, device=device) if out is None else out.fill_(-1)
        if not slots.is_contiguous():
            raise Unsupported("an out of compute_slot_mapping that is not contiguous")
        mode = inspect.signature(find("BlockTable")).parameters["slot_mapping_mode"].default
        table = types.SimpleNamespace(
            block_size=block_size if kernel_block_size is None else kernel_block_size,
            max_num_batched_tokens=len(slots),
            block_table=_Halves(tables),
            slot_mapping=_Halves(slots),
            dcp_world_size=1,
            dcp_rank=0,
            cp_kv_cache_interleave_size=1,
            slot_mapping_mode=mode,
        )
        find("compute_slot_mapping")(table, len(starts) - 1, starts, tokens)
        return slots[: len(tokens)]

    def make_local_attention_virtual_batches(
        self, attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
    ) -> Any:
        """Return only the metadata; vLLM also returns a function for its block table."""
        make = find("make_local_attention_virtual_batches")
        return make(attn_chunk_size, common_attn_metadata, block_size)[0]

    def split_decodes_prefills_and_extends(
        self, common_attn_metadata: Any, decode_threshold: int = 1
    ) -> Any:
        """Pass the batch; vLLM derives the computed tokens from the lengths."""
        ours = getattr(common_attn_metadata, "converted_from", None)
        if ours is not None:
            query_lens = ours.query_start_loc_cpu.diff()
            computed = ours.seq_lens_cpu[: len(query_lens)] - query_lens
            is_other = computed != ours.num_computed_tokens_cpu[: len(query_lens)]
            if bool((is_other & (query_lens > 0)).any()):
                raise Unsupported("computed tokens that are not those before the query")
        return find("split_decodes_prefills_and_extends")(common_attn_metadata, decode_threshold)

    def make_kv_sharing_fast_prefill_common_attn_metadata(self, common_attn_metadata: Any) -> Any:
        """Pass the batch with the most logits of a request, which vLLM's runner counts."""
        ours = getattr(common_attn_metadata, "converted_from", None)
        if ours is not None:
            common_attn_metadata.max_logits_per_req = _most_logits(ours)
        return find("make_kv_sharing_fast_prefill_common_attn_metadata")(common_attn_metadata)

    def reorder_batch_to_split_decodes_and_prefills(
        self,
        input_batch: Any,
        scheduler_output: Any,
        decode_threshold: int = 1,
        *,
        regions: int = 3,
    ) -> bool:
        """Reorder into four regions; vLLM has no other order."""
        if regions != 4:
            raise Unsupported(f"{regions} regions, since vLLM has 4")
        reorder = find("reorder_batch_to_split_decodes_and_prefills")
        moved: bool = reorder(input_batch, scheduler_output, decode_threshold)
        return moved

    def compute_causal_conv1d_metadata(self, query_start_loc_p: torch.Tensor) -> Any:
        """Pass the starts, and the device of the results."""
        found = find("compute_causal_conv1d_metadata")
        return found(query_start_loc_p, device=query_start_loc_p.device)

    def build_attn_metadata(
        self,
        attn_metadata_builders: Sequence[Any],
        num_reqs: int,
        num_tokens: int,
        query_start_loc: Any,
        seq_lens: Any,
        num_computed_tokens_cpu: torch.Tensor,
        block_tables: Sequence[torch.Tensor],
        slot_mappings: Any,
        kv_cache_config: Any,
        max_query_len: int | None = None,
        max_seq_len: int | None = None,
        *,
        dcp_local_seq_lens: torch.Tensor | None = None,
        dcp_local_seq_lens_cpu_upper_bound: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        is_prefilling: torch.Tensor | None = None,
        req_idx: Any = None,
    ) -> Any:
        """Pass builders in groups of one each, the maxima, and vectors that vLLM's runner cuts."""
        del num_computed_tokens_cpu
        if seq_lens.cpu is None:
            raise Unsupported("lengths that the host does not know")
        starts, lengths = query_start_loc.cpu[: num_reqs + 1], seq_lens.cpu[:num_reqs]
        pairs = zip(attn_metadata_builders, kv_cache_config.kv_cache_groups, strict=False)
        if max_query_len is None:
            max_query_len = int(starts.diff().max()) if num_reqs else 0
        if max_seq_len is None:
            max_seq_len = int(lengths.max()) if num_reqs else 0
        return find("build_attn_metadata")(
            attn_groups=[
                [_Group(_Builder(builder, self._ours), group)] for builder, group in pairs
            ],
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            query_start_loc_gpu=query_start_loc.gpu[: num_reqs + 1],
            query_start_loc_cpu=starts,
            max_query_len=max_query_len,
            seq_lens=seq_lens.gpu,
            max_seq_len=max_seq_len,
            block_tables=block_tables,
            slot_mappings=slot_mappings,
            kv_cache_config=kv_cache_config,
            seq_lens_cpu_upper_bound=lengths,
            dcp_local_seq_lens=dcp_local_seq_lens,
            dcp_local_seq_lens_cpu_upper_bound=dcp_local_seq_lens_cpu_upper_bound,
            positions=None if positions is None else positions[:num_tokens],
            is_prefilling=None if is_prefilling is None else is_prefilling[:num_reqs],
            req_idx=None if req_idx is None else req_idx[:num_reqs],
        )

    # Functions that an engine calls when it starts.

    def bind_kv_cache(
        self,
        kv_caches: Mapping[str, Any],
        forward_context: Mapping[str, Any],
        runner_kv_caches: list[Any],
        num_attn_module: int = 1,
    ) -> None:
        layers = {name: _Layer(layer) for name, layer in forward_context.items()}
        find("bind_kv_cache")(kv_caches, layers, runner_kv_caches, num_attn_module)

    def compute_mm_encoder_budget(
        self, scheduler_config: Any, max_tokens_by_modality: Mapping[str, int]
    ) -> Any:
        """Pass the tokens by position: their parameter was renamed."""
        return find("compute_mm_encoder_budget")(scheduler_config, max_tokens_by_modality)

    def select_common_block_size(
        self, kv_manager_block_size: int, attn_groups: Sequence[Any]
    ) -> int:
        """Pass the groups' backends."""
        backends = [_backend_of(group) for group in attn_groups]
        selected: int = find("select_common_block_size")(kv_manager_block_size, backends)
        return selected

    def prepare_kernel_block_sizes(self, kv_cache_config: Any, attn_groups: Any) -> Any:
        """Pass the groups with their specs, and no tensors: their layers are not packed."""
        groups = [
            [
                types.SimpleNamespace(
                    backend=_backend_of(group), kv_cache_spec=kv_cache_group.kv_cache_spec
                )
                for group in of_one
            ]
            for kv_cache_group, of_one in zip(
                kv_cache_config.kv_cache_groups, attn_groups, strict=False
            )
        ]
        config = types.SimpleNamespace(
            kv_cache_groups=kv_cache_config.kv_cache_groups, kv_cache_tensors=[]
        )
        return find("prepare_kernel_block_sizes")(config, groups)

    @property
    def AttentionBackend(self) -> type:  # noqa: N802  # vLLM's name
        """The base class, with the one abstract method that ours does not have."""
        base: Any = find("AttentionBackend")
        members = {"get_impl_cls": staticmethod(_no_implementation)}
        return _classes.setdefault(base, type("AttentionBackend", (base,), members))

    def create_fast_prefill_custom_backend(self, prefix: str, underlying_attn_backend: Any) -> Any:
        """Return the backend; what its builders build from vLLM's metadata is not checked."""
        found = find("create_fast_prefill_custom_backend")
        backend = found(prefix, underlying_attn_backend)
        backend.get_builder_cls().build = _unsupported_build
        return backend

    def KVCacheTensor(self, size: int, shared_by: list[str]) -> Any:  # noqa: N802  # vLLM's name
        """Raise `Unsupported`: a tensor is a part of one allocation for all layers."""
        del size, shared_by
        raise Unsupported("tensors of some layers: all layers have one allocation")


_classes: dict[type, type] = {}


def _unsupported_build(*_: Any, **__: Any) -> Any:
    raise Unsupported("builders of fast prefill, which are called with vLLM's metadata")


def _no_implementation() -> type:
    raise NotImplementedError


def _backend_of(group: Any) -> Any:
    """Return a group's backend, whose sizes are vLLM's `MultipleOf` and Python's ints."""
    multiple_of = find("MultipleOf")
    sizes = [
        multiple_of(size.base) if type(size).__name__ == "MultipleOf" else int(size)
        for size in group.backend.get_supported_kernel_block_sizes()
    ]
    return types.SimpleNamespace(
        get_supported_kernel_block_sizes=lambda _=None: sizes, get_name=lambda: "backend"
    )


class _Layer:
    """A layer with `bind_kv_cache`; setting its cache sets ours, which is in a list."""

    def __init__(self, ours: Any) -> None:
        object.__setattr__(self, "_ours", ours)

    def bind_kv_cache(self, cache: Any) -> None:
        self._ours.kv_cache = [cache]

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ours, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours, name)


class _Halves:
    """A CPU tensor in place of vLLM's buffer on two devices."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.cpu = self.gpu = tensor
        self.np = tensor.numpy()


class _Builder:
    """A builder that converts vLLM's metadata to ours."""

    supports_update_block_table = False

    def __init__(self, builder: Any, ours: Callable[[Any], Any]) -> None:
        self.builder, self.ours = builder, ours

    def build(self, common_prefix_len: int, common_attn_metadata: Any, **rest: Any) -> Any:
        return self.builder.build(
            common_prefix_len=common_prefix_len,
            common_attn_metadata=self.ours(common_attn_metadata),
            **rest,
        )


class _Group:
    """The attention group of one builder, as `build_attn_metadata` reads it."""

    def __init__(self, builder: _Builder, group: Any) -> None:
        self.builder, self.layer_names = builder, group.layer_names
        self.kv_cache_spec = getattr(group, "kv_cache_spec", None)

    def get_metadata_builder(self, _: int = 0) -> _Builder:
        return self.builder

    def build_metadata(self, common_attn_metadata: Any, _: int = 0) -> Any:
        return self.builder.build(0, common_attn_metadata)


def _most_logits(ours: Any) -> int | None:
    """Return the most logits indices of one request, or None if the batch has none."""
    number, indices = ours.num_logits_indices, ours.logits_indices_padded
    if number is None or indices is None:
        return None
    requests = torch.bucketize(indices[:number].cpu(), ours.query_start_loc_cpu[1:], right=True)
    return int(torch.bincount(requests, minlength=1).max())

"""Calls of vLLM's functions whose parameters or results differ from ours, in any release."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from conformance.adapters.base import Unsupported
from conformance.adapters.vllm.places import find

LAYOUT = "the layout, which depends on the configuration and is cached after the first read"
"""Why the layout of the KV cache is not set or read."""


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
        method = find("compute_slot_mapping")
        takes_indices = "req_indices" in inspect.signature(method).parameters
        if cp_world_size != 1 and not takes_indices:
            raise Unsupported("more than one rank, which the CPU kernel does not support")
        if cp_world_size != 1 and kernel_block_size not in {None, block_size}:
            raise Unsupported("kernel blocks on several ranks")
        tables, starts, tokens = (
            tensor.contiguous() for tensor in (block_table, query_start_loc, positions)
        )
        size, device = len(tokens), positions.device
        slots = torch.full((size,), -1, device=device) if out is None else out.fill_(-1)
        if not slots.is_contiguous():
            raise Unsupported("an out of compute_slot_mapping that is not contiguous")
        table = types.SimpleNamespace(
            block_size=block_size if kernel_block_size is None else kernel_block_size,
            kv_cache_block_size=block_size,
            blocks_per_kv_block=block_size // (kernel_block_size or block_size),
            max_num_blocks_per_req=tables.shape[1],
            max_num_batched_tokens=len(slots),
            block_table=_Halves(tables),
            slot_mapping=_Halves(slots),
            dcp_world_size=cp_world_size,
            dcp_rank=cp_rank,
            pcp_world_size=1,
            pcp_rank=0,
            cp_kv_cache_interleave_size=cp_kv_cache_interleave_size,
            slot_mapping_mode=_default(find("BlockTable"), "slot_mapping_mode"),
        )
        if takes_indices:
            requests = torch.repeat_interleave(starts.diff().long())
            method(table, requests.numpy(), tokens[: len(requests)].numpy())
        else:
            method(table, len(starts) - 1, starts, tokens)
        return slots[: len(tokens)]

    def map_to_kernel_blocks(
        self, block_ids: torch.Tensor, blocks_per_kv_block: int
    ) -> torch.Tensor:
        """Pass one row as an array, with the offsets that a `BlockTable` keeps."""
        if block_ids.dim() != 1:
            raise Unsupported("block IDs of several rows")
        if block_ids.dtype not in {torch.int32, torch.int64}:
            raise Unsupported("block IDs of other types than int32 and int64")
        ids = block_ids.numpy()
        offsets = np.arange(blocks_per_kv_block, dtype=ids.dtype).reshape(1, -1)
        mapped = find("map_to_kernel_blocks")(ids, blocks_per_kv_block, offsets)
        return block_ids if mapped is ids else torch.from_numpy(mapped)

    def make_local_attention_virtual_batches(
        self, attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
    ) -> Any:
        """Return only the metadata; since 0.13 vLLM also returns a function for its block table."""
        found = find("make_local_attention_virtual_batches")
        made = found(attn_chunk_size, common_attn_metadata, block_size)
        return made[0] if isinstance(made, tuple) else made

    def make_kv_sharing_fast_prefill_common_attn_metadata(self, common_attn_metadata: Any) -> Any:
        """Return the metadata; until 0.28 the configuration turns fast prefill on and off."""
        found = find("make_kv_sharing_fast_prefill_common_attn_metadata")
        given = common_attn_metadata
        indices = given.logits_indices_padded, given.num_logits_indices
        is_used = all(part is not None for part in indices)
        if given.max_query_len != 1 and not is_used and _asserts_indices(found):
            raise Unsupported("no logits indices: the configuration turns fast prefill off")
        return found(given)

    def split_decodes_prefills_and_extends(
        self, common_attn_metadata: Any, decode_threshold: int = 1
    ) -> Any:
        """Pass the batch; since 0.32, vLLM derives the computed tokens from the lengths."""
        ours = getattr(common_attn_metadata, "converted_from", None)
        if ours is not None and not hasattr(common_attn_metadata, "num_computed_tokens_cpu"):
            query_lens = ours.query_start_loc_cpu.diff()
            computed = ours.seq_lens_cpu[: len(query_lens)] - query_lens
            is_other = computed != ours.num_computed_tokens_cpu[: len(query_lens)]
            if bool((is_other & (query_lens > 0)).any()):
                raise Unsupported("computed tokens that are not those before the query")
        return find("split_decodes_prefills_and_extends")(common_attn_metadata, decode_threshold)

    def reorder_batch_to_split_decodes_and_prefills(
        self,
        input_batch: Any,
        scheduler_output: Any,
        decode_threshold: int = 1,
        *,
        regions: int = 3,
    ) -> bool:
        """Reorder into the regions that the release has: three in 0.12, four since 0.20.

        Releases between these have three other regions.
        """
        found = find("reorder_batch_to_split_decodes_and_prefills")
        known = 4 if "done_prefilling" in found.__code__.co_varnames else 3
        if regions != known:
            raise Unsupported(f"{regions} regions, since this release has {known}")
        if known == 3 and not _moves_a_new_token_up(found):
            raise Unsupported("three regions: a request without context is never a decode")
        moved: bool = found(input_batch, scheduler_output, decode_threshold)
        return moved

    def create_ubatch_slices(self, num_scheduled_tokens: Any, split_points: Any) -> Any:
        """Pass the only split point, which old releases take as an int."""
        points = [split_points] if np.ndim(split_points) == 0 else [*split_points]
        if len(points) != 1:
            raise Unsupported("a batch split at other than one point")
        return find("create_ubatch_slices")(num_scheduled_tokens, int(points[0]))

    def compute_causal_conv1d_metadata(self, query_start_loc_p: torch.Tensor) -> Any:
        """Pass the starts, or their copy on the CPU and the device of the results."""
        found = find("compute_causal_conv1d_metadata")
        if "device" not in inspect.signature(found).parameters:
            return found(query_start_loc_p)
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
    ) -> Any:
        """Pass builders, as they are or in groups of one each, and what else the release takes."""
        known = inspect.signature(find("build_attn_metadata")).parameters
        if max_query_len is not None and "max_query_len" not in known:
            raise Unsupported("max_query_len of build_attn_metadata")
        starts, lengths = query_start_loc.cpu[: num_reqs + 1], seq_lens.cpu[:num_reqs]
        own = lengths if "seq_lens_np" in known else None
        builders = [_Builder(builder, self._ours, own) for builder in attn_metadata_builders]
        groups = [
            [_Group(builder, group)]
            for builder, group in zip(builders, kv_cache_config.kv_cache_groups, strict=False)
        ]
        longest_query = int(starts.diff().max()) if num_reqs else 0
        longest = int(lengths.max()) if num_reqs else 0
        return call_with_known(
            find("build_attn_metadata"),
            attn_groups=groups,
            attn_metadata_builders=builders,
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            query_start_loc_gpu=query_start_loc.gpu[: num_reqs + 1],
            query_start_loc_cpu=starts,
            max_query_len=longest_query if max_query_len is None else max_query_len,
            seq_lens=seq_lens.gpu,
            seq_lens_np=lengths.numpy(),
            max_seq_len=longest if max_seq_len is None else max_seq_len,
            num_computed_tokens_cpu=num_computed_tokens_cpu[:num_reqs],
            block_tables=block_tables,
            slot_mappings=slot_mappings,
            kv_cache_config=kv_cache_config,
            seq_lens_cpu_upper_bound=lengths,
        )

    # Functions that an engine calls when it starts.

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
        """Make a tensor; since 0.28 it is a part of one allocation for all layers."""
        cls = find("KVCacheTensor")
        if "shared_by" not in inspect.signature(cls).parameters:
            raise Unsupported("tensors of some layers: all layers have one allocation")
        return cls(size, shared_by)

    def bind_kv_cache(
        self,
        kv_caches: Mapping[str, Any],
        forward_context: Mapping[str, Any],
        runner_kv_caches: list[Any],
        num_attn_module: int | None = 1,
    ) -> None:
        """Bind caches; 0.12 binds several layers of one index on GPUs only."""
        try:
            find("bind_kv_cache")(kv_caches, forward_context, runner_kv_caches, num_attn_module)
        except NotImplementedError:
            raise Unsupported("several layers of one index, on CPUs") from None

    def is_residual_scattered_for_sp(self, vllm_config: Any, num_input_tokens: int) -> Any:
        """Return the result; since 0.20 sequence parallelism needs a graph that is not split."""
        found = find("is_residual_scattered_for_sp")
        config = vllm_config.compilation_config
        if (
            "compile_sizes" not in found.__code__.co_names
            and config.pass_config.enable_sp
            and vllm_config.parallel_config.tensor_parallel_size > 1
        ):
            if not hasattr(config, "use_inductor_graph_partition"):
                raise Unsupported("a configuration without use_inductor_graph_partition")
            if config.splitting_ops and not config.use_inductor_graph_partition:
                raise Unsupported("sequence parallelism in a graph that is split")
        return found(vllm_config, num_input_tokens)

    def subclass_attention_metadata(self, *_: Any, **__: Any) -> Any:
        """Raise `Unsupported`: vLLM's class has none of the properties that ours promises."""
        raise Unsupported("classes that are neither frozen nor made once, in the module `types`")

    def get_kv_cache_layout(self) -> Any:
        """Raise `Unsupported`, since vLLM caches the layout."""
        raise Unsupported(LAYOUT)

    def set_kv_cache_layout(self, *_: Any, **__: Any) -> None:
        """Raise `Unsupported`, since vLLM caches the layout."""
        raise Unsupported(LAYOUT)


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
    backend = types.SimpleNamespace(
        get_supported_kernel_block_sizes=lambda _=None: sizes, get_name=lambda: "backend"
    )
    backend.backend = backend  # old releases take groups
    return backend


def call_with_known(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function with the arguments that it has parameters for."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})


def _asserts_indices(make: Callable[..., Any]) -> bool:
    """Return whether fast prefill needs logits indices, rather than doing nothing without them."""
    without = types.SimpleNamespace(
        max_query_len=2, logits_indices_padded=None, num_logits_indices=None
    )
    try:
        make(without)
    except AssertionError:
        return True
    return False


def _moves_a_new_token_up(reorder: Callable[..., bool]) -> bool:
    """Return whether a new request of one token is a decode, and goes before an extend."""
    batch = types.SimpleNamespace(
        req_ids=["extend", "new"],
        num_computed_tokens_cpu=np.array([3, 0]),
        swap_states=lambda *_: None,
    )
    step = types.SimpleNamespace(num_scheduled_tokens={"extend": 5, "new": 1})
    return bool(reorder(batch, step, 1))


def _default(cls: Any, parameter: str) -> Any:
    """Return the default of a parameter of a class, None if it has no such parameter."""
    found = inspect.signature(cls).parameters.get(parameter)
    return None if found is None else found.default


class _Halves:
    """A CPU tensor in place of vLLM's buffer on two devices."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.cpu = self.gpu = tensor
        self.np = tensor.numpy()


class _Builder:
    """A builder that converts vLLM's metadata to ours.

    Args:
        builder: Ours.
        ours: Returns our metadata for vLLM's.
        lengths: The lengths of requests, if vLLM takes them as an array. vLLM wraps the
            array in a new tensor: the same memory in another storage.
    """

    supports_update_block_table = False

    def __init__(
        self, builder: Any, ours: Callable[[Any], Any], lengths: torch.Tensor | None = None
    ) -> None:
        self.builder, self.ours, self.lengths = builder, ours, lengths

    def build(self, common_prefix_len: int, common_attn_metadata: Any, **rest: Any) -> Any:
        """Return what the builder builds for our metadata."""
        theirs = common_attn_metadata
        if self.lengths is not None and theirs.seq_lens_cpu.data_ptr() == self.lengths.data_ptr():
            theirs.seq_lens_cpu = self.lengths
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
        """Return the builder."""
        return self.builder

    def build_metadata(self, common_attn_metadata: Any, _: int = 0) -> Any:
        """Return what the builder builds."""
        return self.builder.build(0, common_attn_metadata)

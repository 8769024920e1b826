"""Attention backends, and the builders that make metadata for their layers."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch

import fast
from tools.runner.attention import PagedAttentionImpl, PagedMetadata


class PagedBuilder(fast.AttentionMetadataBuilder[PagedMetadata]):
    """Builds one `PagedMetadata` for all layers, which must have the same parameters.

    Args:
        kv_cache_spec: The spec of the layers, with the kernels' block size.
        layer_names: The layers.
        vllm_config: The configuration of the engine, with the layers.
        device: The device of the tensors.

    Raises:
        ValueError: The layers have different parameters.
    """

    def __init__(
        self,
        kv_cache_spec: fast.KVCacheSpec,
        layer_names: list[str],
        vllm_config: fast.VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1)
        per_layer = fast.get_per_layer_parameters(vllm_config, layer_names, PagedAttentionImpl)
        self.parameters = fast.infer_global_hyperparameters(per_layer)
        if not self.parameters.has_same_all_params:
            raise ValueError(f"layers of one group have different parameters: {per_layer}")

    def build(
        self,
        common_prefix_len: int,  # noqa: ARG002  # no cascade attention
        common_attn_metadata: fast.CommonAttentionMetadata,
        fast_build: bool = False,  # noqa: ARG002  # there is but one way
    ) -> PagedMetadata:
        """Build the metadata of a batch.

        Args:
            common_prefix_len: Not read.
            common_attn_metadata: The batch.
            fast_build: Not read.
        """
        common = common_attn_metadata
        num_decodes, *_ = fast.split_decodes_and_prefills(common, self.reorder_batch_threshold)
        return PagedMetadata(
            query_start_loc=common.query_start_loc,
            query_start_loc_cpu=common.query_start_loc_cpu,
            seq_lens=common.seq_lens,
            seq_lens_cpu=common.seq_lens_cpu,
            max_seq_len=common.max_seq_len,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            num_decodes=num_decodes,
            window_left=self.parameters.window_left,
            scale=self.parameters.sm_scale,
        )


class PagedBackend(fast.AttentionBackend):
    """Paged attention in torch, on blocks of 4 or 8 tokens."""

    @staticmethod
    def get_name() -> str:
        """Return the backend's name."""
        return "PAGED_TORCH"

    @staticmethod
    def get_builder_cls() -> type[PagedBuilder]:
        """Return the class of the builders."""
        return PagedBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int]:
        """Return the block sizes that the kernels work on, smaller than the scheduler's."""
        return [4, 8]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",  # noqa: ARG004  # keys and values as they are
    ) -> tuple[int, ...]:
        """Return the shape of a layer's cache: keys and values, blocks, tokens, heads, elements.

        Args:
            num_blocks: Blocks of the cache.
            block_size: Tokens in a block.
            num_kv_heads: Heads of keys and values.
            head_size: Elements of a head.
            cache_dtype_str: Not read.
        """
        return 2, num_blocks, block_size, num_kv_heads, head_size

    @staticmethod
    def get_kv_cache_stride_order() -> tuple[int, ...]:
        """Return the order in memory: blocks outermost, then as the layout says."""
        if fast.get_kv_cache_layout() == "HND":
            return 1, 0, 3, 2, 4
        return 1, 0, 2, 3, 4


class ChunkedLocalBuilder(PagedBuilder):
    """Builds the metadata of chunked local attention: each chunk becomes a request of its own."""

    attention_chunk_size: ClassVar[int]

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: fast.CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> PagedMetadata:
        """Build the metadata of a batch.

        Args:
            common_prefix_len: Not read.
            common_attn_metadata: The batch.
            fast_build: Not read.
        """
        virtual = fast.make_local_attention_virtual_batches(
            self.attention_chunk_size, common_attn_metadata, self.kv_cache_spec.block_size
        )
        return super().build(common_prefix_len, virtual, fast_build)


@functools.cache  # layers of one group must have the same class
def make_chunked_backend(attention_chunk_size: int) -> type[Any]:
    """Make the backend of layers with chunked local attention.

    Args:
        attention_chunk_size: Positions in a chunk.

    Example:
        >>> make_chunked_backend(32).__name__
        'ChunkedLocalPagedBackend'
    """
    builder_cls = type(
        "ChunkedLocalBuilder",
        (ChunkedLocalBuilder,),
        {"attention_chunk_size": attention_chunk_size},
    )
    return fast.subclass_attention_backend("ChunkedLocal", PagedBackend, builder_cls)

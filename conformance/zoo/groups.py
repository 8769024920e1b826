"""A model's KV cache specs, groups and `KVCacheConfig`, made with an implementation.

Groups share one pool of blocks. If a block has the same bytes in several groups, they have the same
number of layers, and their i-th layers share one tensor. The last group of a kind may have fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.targets.target import Answer, Target
from conformance.zoo.models import (
    CHUNKED_LOCAL,
    CROSS,
    ENCODER_ONLY,
    FULL,
    LATENT,
    MAMBA,
    SLIDING_WINDOW,
    Layer,
    Model,
)

_SPEC_CLASSES = {
    FULL: "FullAttentionSpec",
    SLIDING_WINDOW: "SlidingWindowSpec",
    CHUNKED_LOCAL: "ChunkedLocalAttentionSpec",
    LATENT: "MLAAttentionSpec",
    CROSS: "CrossAttentionSpec",
    ENCODER_ONLY: "EncoderOnlyAttentionSpec",
    MAMBA: "MambaSpec",
}
_OWN_FIELDS = {
    SLIDING_WINDOW: "sliding_window",
    CHUNKED_LOCAL: "attention_chunk_size",
    LATENT: "cache_dtype_str",
}
"""What the specs of a kind have in addition."""


@dataclass(frozen=True, kw_only=True)
class CacheGroup:
    """Layers of one kind whose KV caches share one block table."""

    kind: str
    layers: tuple[Layer, ...]  # without caches if it is encoder-only
    block_size: int  # in tokens; of states, the longest sequence, so that one block is enough
    page_size_padded: int | None = None  # bytes of a page of states; None: no padding

    @property
    def layer_names(self) -> list[str]:
        """The names of the layers."""
        return [layer.name for layer in self.layers]

    @property
    def attention_chunk_size(self) -> int | None:
        """Tokens of a chunk of chunked local attention; None: no chunks."""
        return self.layers[0].attention_chunk_size

    def num_blocks(self, num_tokens: int) -> int:
        """Return the blocks of a sequence of so many tokens; encoder-only attention needs none."""
        return 0 if self.kind == ENCODER_ONLY else -(-num_tokens // self.block_size)


def make_groups(target: Target, model: Model) -> tuple[CacheGroup, ...]:
    """Sort the layers of a model into KV cache groups, in their order, encoder-only ones last.

    Layers that share the cache of another are in none: `make_kv_cache_config` adds them. Pages of
    states are padded to the bytes of a page of attention.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> from conformance.zoo.models import MODELS
        >>> groups = make_groups(REFERENCE, MODELS["jamba-v0.1"])
        >>> [(group.kind, len(group.layers), group.block_size) for group in groups[-2:]]
        [('mamba', 4, 4096), ('full', 4, 80)]
    """
    sorted_layers: dict[tuple[str, str], list[Layer]] = {}
    for layer in model.layers:
        if layer.has_kv_cache:
            sorted_layers.setdefault((layer.kind, layer.backend), []).append(layer)
    page_size_padded = None
    if model.is_hybrid:
        attention = next(layer for layer in model.layers if layer.kind == FULL)
        spec = _make_spec(target, attention, model.block_size)
        page_size_padded = target.attribute(spec, "page_size_bytes")
    maximum = min(len(layers) for layers in sorted_layers.values())
    groups = []
    for (kind, _), layers in sorted_layers.items():
        of_states = kind == MAMBA
        groups += [
            CacheGroup(
                kind=kind,
                layers=tuple(layers[first : first + maximum]),
                block_size=model.max_model_len if of_states else model.block_size,
                page_size_padded=page_size_padded if of_states else None,
            )
            for first in range(0, len(layers), maximum)
        ]
    encoder = tuple(layer for layer in model.layers if layer.kind == ENCODER_ONLY)
    if encoder:
        groups.append(CacheGroup(kind=ENCODER_ONLY, layers=encoder, block_size=model.block_size))
    return tuple(groups)


def make_kv_cache_config(
    target: Target, model: Model, groups: Sequence[CacheGroup], memory_bytes: int
) -> Answer:
    """Return a `KVCacheConfig` with as many blocks as fit into `memory_bytes`.

    Layers that share the cache of another are in its group, and in its tensor.
    """
    specs = [_make_group_spec(target, group) for group in groups]
    group_specs = [
        target.call("KVCacheGroupSpec", group.layer_names, spec)
        for group, spec in zip(groups, specs, strict=True)
    ]
    tensors = _page_sizes_by_tensor(target, groups)
    num_blocks = memory_bytes // sum(page_size for page_size, _ in tensors)
    shared = shared_kv_cache_layers(model)
    target.call("add_kv_sharing_layers_to_kv_cache_groups", shared, group_specs)
    return target.call(
        "KVCacheConfig",
        num_blocks=num_blocks,
        kv_cache_tensors=[
            target.call(
                "KVCacheTensor",
                size=num_blocks * page_size,
                shared_by=[*names, *(layer for layer, own in shared.items() if own in names)],
            )
            for page_size, names in tensors
        ],
        kv_cache_groups=group_specs,
    )


def shared_kv_cache_layers(model: Model) -> dict[str, str]:
    """Map the name of each layer that reads another's cache to the name of that other layer."""
    return {
        layer.name: layer.kv_sharing_target
        for layer in model.layers
        if layer.kv_sharing_target is not None
    }


def block_bytes(target: Target, groups: Sequence[CacheGroup]) -> int:
    """Return the bytes of one block in all tensors."""
    return sum(page_size for page_size, _ in _page_sizes_by_tensor(target, groups))


def _make_group_spec(target: Target, group: CacheGroup) -> Answer:
    specs = [
        _make_spec(target, layer, group.block_size, group.page_size_padded)
        for layer in group.layers
    ]
    return target.call(f"{type(specs[0]).__name__}.merge", specs)


def _make_spec(
    target: Target, layer: Layer, block_size: int, page_size_padded: int | None = None
) -> Answer:
    make = _SPEC_CLASSES[layer.kind]
    if layer.kind == MAMBA:
        return target.call(
            make,
            block_size=block_size,
            shapes=tuple(state.shape for state in layer.states),
            dtypes=tuple(target.dtype(state.dtype) for state in layer.states),
            page_size_padded=page_size_padded,
            mamba_type=layer.mamba_type,
        )
    own = [_OWN_FIELDS[layer.kind]] if layer.kind in _OWN_FIELDS else []
    return target.call(
        make,
        block_size=block_size,
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        dtype=target.dtype(layer.dtype),
        **{name: getattr(layer, name) for name in own},
    )


def _page_sizes_by_tensor(
    target: Target, groups: Sequence[CacheGroup]
) -> list[tuple[int, list[str]]]:
    """Return the bytes of a page in each tensor, and the layers that own it."""
    tensors: dict[tuple[int, int], list[str]] = {}
    for group in groups:
        if group.kind != ENCODER_ONLY:
            page_size = target.attribute(_make_group_spec(target, group), "page_size_bytes")
            for number, name in enumerate(group.layer_names):
                tensors.setdefault((page_size, number), []).append(name)
    return [(page_size, names) for (page_size, _), names in tensors.items()]

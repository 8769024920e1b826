"""A model's KV cache specs, groups and `KVCacheConfig`, made with an implementation.

Groups share one pool of blocks, and a block has the same bytes in each. So groups of different
kinds have the same number of layers: the i-th layers of all groups share one tensor. The last group
of a kind may have fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    Serving,
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
    layers: tuple[Layer, ...]  # one rank's part of each; without caches if it is encoder-only
    block_size: int  # in tokens; of states, the longest sequence, so that one block is enough
    page_size_padded: int | None = None  # bytes of a page of states; None: no padding
    encoder_tokens: int = 0  # tokens of each request that cross attention attends to

    @property
    def layer_names(self) -> list[str]:
        """The names of the layers."""
        return [layer.name for layer in self.layers]

    @property
    def attention_chunk_size(self) -> int | None:
        """Tokens of a chunk of chunked local attention; None: no chunks."""
        return self.layers[0].attention_chunk_size

    def num_blocks(self, num_tokens: int) -> int:
        """Return the blocks of a request with so many tokens of the decoder.

        Cross attention needs blocks for the encoder's tokens, and encoder-only attention needs
        none.
        """
        if self.kind == ENCODER_ONLY:
            return 0
        return -(-(self.encoder_tokens or num_tokens) // self.block_size)


def make_groups(target: Target, serving: Serving) -> tuple[CacheGroup, ...]:
    """Sort the layers of a model into KV cache groups, in their order, encoder-only ones last.

    Layers that share the cache of another are in none: `make_kv_cache_config` adds them. Pages of
    states are padded to the bytes of a page of attention.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> from conformance.zoo.models import MODELS
        >>> groups = make_groups(REFERENCE, Serving(model=MODELS["jamba-v0.1"]))
        >>> [(group.kind, len(group.layers), group.block_size) for group in groups[-2:]]
        [('mamba', 4, 4096), ('full', 4, 80)]
    """
    by_kind: dict[str, list[Layer]] = {}
    for layer in serving.layers:
        if layer.has_kv_cache or layer.kind == ENCODER_ONLY:
            by_kind.setdefault(layer.kind, []).append(layer)
    without_cache = by_kind.pop(ENCODER_ONLY, [])
    block_size, page_size_padded = serving.model.block_size, None
    if serving.is_hybrid:
        spec = _make_spec(target, by_kind[FULL][0], block_size)
        page_size_padded = target.attribute(spec, "page_size_bytes")
    whole = CacheGroup(kind="", layers=(), block_size=block_size)
    maximum = min(len(layers) for layers in by_kind.values())
    groups = [
        replace(
            whole,
            kind=kind,
            layers=tuple(layers[first : first + maximum]),
            block_size=serving.max_model_len if kind == MAMBA else block_size,
            page_size_padded=page_size_padded if kind == MAMBA else None,
            encoder_tokens=serving.model.encoder_tokens if kind == CROSS else 0,
        )
        for kind, layers in by_kind.items()
        for first in range(0, len(layers), maximum)
    ]
    if without_cache:
        groups.append(replace(whole, kind=ENCODER_ONLY, layers=tuple(without_cache)))
    return tuple(groups)


def make_group_spec(target: Target, group: CacheGroup) -> Answer:
    """Return the spec of a group: its layers' common spec, or uniform specs if they differ."""
    specs = {
        layer.name: _make_spec(target, layer, group.block_size, group.page_size_padded)
        for layer in group.layers
    }
    distinct = list(specs.values())
    if any(spec != distinct[0] for spec in distinct):
        return target.call("UniformTypeKVCacheSpecs.from_specs", specs)
    return target.call(f"{type(distinct[0]).__name__}.merge", distinct)


def make_kv_cache_config(
    target: Target, serving: Serving, groups: Sequence[CacheGroup], memory_bytes: int
) -> Answer:
    """Return a `KVCacheConfig` with as many blocks as fit into `memory_bytes` of each device.

    Layers that share the cache of another are in its group, and in its tensor.
    """
    specs = [make_group_spec(target, group) for group in groups]
    group_specs = [
        target.call("KVCacheGroupSpec", group.layer_names, spec)
        for group, spec in zip(groups, specs, strict=True)
    ]
    tensors = _page_sizes_by_tensor(target, groups, specs)
    num_blocks = memory_bytes // sum(page_size for page_size, _ in tensors)
    shared = shared_kv_cache_layers(serving)
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


def shared_kv_cache_layers(serving: Serving) -> dict[str, str]:
    """Map the name of each layer that reads another's cache to the name of that other layer."""
    return {
        layer.name: layer.kv_sharing_target
        for layer in serving.layers
        if layer.kv_sharing_target is not None
    }


def block_bytes(target: Target, groups: Sequence[CacheGroup]) -> int:
    """Return the bytes of one block in all tensors."""
    specs = [make_group_spec(target, group) for group in groups]
    return sum(page_size for page_size, _ in _page_sizes_by_tensor(target, groups, specs))


def _make_spec(
    target: Target, layer: Layer, block_size: int, page_size_padded: int | None = None
) -> Answer:
    make = _SPEC_CLASSES[layer.kind]
    if layer.kind == MAMBA:
        return target.call(
            make,
            block_size=block_size,
            shapes=tuple(state.shape for state in layer.states),
            dtypes=tuple(target.dtype(str(state.dtype)) for state in layer.states),
            page_size_padded=page_size_padded,
            mamba_type=layer.mamba_type,
        )
    own = [_OWN_FIELDS[layer.kind]] if layer.kind in _OWN_FIELDS else []
    return target.call(
        make,
        block_size=block_size,
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        dtype=target.dtype(str(layer.dtype)),
        **{name: getattr(layer, name) for name in own},
    )


def _page_sizes_by_tensor(
    target: Target, groups: Sequence[CacheGroup], specs: Sequence[Answer]
) -> list[tuple[int, list[str]]]:
    """Return the bytes of a page in each tensor, and the layers that own it."""
    caching = [(g, s) for g, s in zip(groups, specs, strict=True) if g.kind != ENCODER_ONLY]
    if len(caching) == 1:
        [(group, spec)] = caching
        inner = getattr(spec, "kv_cache_specs", dict.fromkeys(group.layer_names, spec))
        return [(target.attribute(inner[name], "page_size_bytes"), [name]) for name in inner]
    page_size = target.attribute(caching[0][1], "page_size_bytes")
    maximum = max(len(group.layers) for group, _ in caching)
    return [
        (page_size, [g.layer_names[i] for g, _ in caching if i < len(g.layers)])
        for i in range(maximum)
    ]

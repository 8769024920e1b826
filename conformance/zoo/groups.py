"""Layers sorted into KV cache groups, which share one pool of blocks.

A block has the same bytes in every group, so groups of different kinds have the same number of
layers: the i-th layers of all groups share one tensor. The last group of a kind may have fewer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from conformance.targets.target import Answer, Target
from conformance.zoo.layer import CHUNKED_LOCAL, CROSS, ENCODER_ONLY, MAMBA, SLIDING_WINDOW, Layer
from conformance.zoo.serving import Serving
from conformance.zoo.specs import make_spec

ATTENTION_BLOCK_ALIGNMENT = 16
"""Hybrid models raise the block size of attention to a multiple of this."""


@dataclass(frozen=True, kw_only=True)
class CacheGroup:
    """Layers of one kind whose KV caches share one block table.

    Attributes:
        kind: The kind of the layers.
        layers: One rank's part of each layer. Each has its own cache, or none if the group is
            encoder-only.
        block_size: Tokens in a block. For states, the maximum sequence length: one block is enough.
        page_size_padded: The bytes of a page of states, padding included; None: no padding.
        encoder_tokens: Tokens of each request that cross attention attends to.
    """

    kind: str
    layers: tuple[Layer, ...]
    block_size: int
    page_size_padded: int | None = None
    encoder_tokens: int = 0

    @property
    def layer_names(self) -> list[str]:
        """The names of the layers."""
        return [layer.name for layer in self.layers]

    @property
    def sliding_window(self) -> int | None:
        """Keys that a query of its layers attends to, its own included; None: all."""
        return self.layers[0].sliding_window

    @property
    def attention_chunk_size(self) -> int | None:
        """Tokens of a chunk of chunked local attention; None: no chunks."""
        return self.layers[0].attention_chunk_size

    @property
    def has_kv_cache(self) -> bool:
        """Whether its layers have caches."""
        return self.kind != ENCODER_ONLY

    def num_blocks(self, num_tokens: int) -> int:
        """Return the number of blocks of a request with so many tokens of the decoder.

        Cross attention needs blocks for the encoder's tokens; states always need one.
        """
        if not self.has_kv_cache:
            return 0
        num_positions = self.encoder_tokens if self.kind == CROSS else num_tokens
        return -(-num_positions // self.block_size)

    def num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """Return the number of a request's first blocks that no later token reads."""
        first_read = 0
        if self.kind == SLIDING_WINDOW:
            first_read = max(num_computed_tokens - int(self.sliding_window or 0) + 1, 0)
        elif self.kind == CHUNKED_LOCAL:
            chunk = int(self.attention_chunk_size or 1)
            first_read = num_computed_tokens // chunk * chunk
        return first_read // self.block_size


def make_groups(target: Target, serving: Serving) -> tuple[CacheGroup, ...]:
    """Sort the layers of a model into KV cache groups, in their order, encoder-only ones last.

    Layers that share the cache of another are in none: `make_kv_cache_config` adds them.

    Raises:
        ValueError: Layers of different kinds whose blocks cannot have the same bytes.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> from conformance.zoo.models import get_model
        >>> groups = make_groups(REFERENCE, Serving(model=get_model("jamba-v0.1")))
        >>> [(group.kind, len(group.layers), group.block_size) for group in groups[-2:]]
        [('mamba', 4, 262144), ('full', 4, 80)]
    """
    by_kind: dict[str, list[Layer]] = {}
    for layer in serving.layers:
        if layer.has_kv_cache or layer.kind == ENCODER_ONLY:
            by_kind.setdefault(layer.kind, []).append(layer)
    without_cache = by_kind.pop(ENCODER_ONLY, [])
    block_size, page_size_padded = _common_page(target, serving, by_kind)
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
    """Return the spec of a group: its layers' common spec, or uniform specs if they differ.

    Example:
        >>> from conformance.targets.target import REFERENCE
        >>> from conformance.zoo.models import get_model
        >>> target = REFERENCE
        >>> [group] = make_groups(target, Serving(model=get_model("deepseek-v3.2-exp")))
        >>> make_group_spec(target, group).page_size_bytes // (61 * 64)  # 2 * 576 + 132
        1284
    """
    specs = {
        layer.name: make_spec(target, layer, group.block_size, group.page_size_padded)
        for layer in group.layers
    }
    distinct = list(specs.values())
    if any(spec != distinct[0] for spec in distinct):
        return target.call("UniformTypeKVCacheSpecs.from_specs", specs)
    return target.call(f"{type(distinct[0]).__name__}.merge", distinct)


def _common_page(
    target: Target, serving: Serving, by_kind: dict[str, list[Layer]]
) -> tuple[int, int | None]:
    """Return the block size of attention, and the bytes that pages of states are padded to.

    A block of attention must not be smaller than a request's states. Its block size is raised to
    that, and the page of states is then padded to the size of the block.
    """
    block_size = serving.block_size
    if len(by_kind) == 1:
        return block_size, None

    def page_sizes(block_size: int, *, states: bool) -> list[int]:
        specs = (
            make_spec(target, layer, block_size)
            for kind, layers in by_kind.items()
            for layer in layers
            if (kind == MAMBA) == states
        )
        return [target.attribute(spec, "page_size_bytes") for spec in specs]

    token_bytes = min(page_sizes(1, states=False))
    if serving.is_hybrid:
        needed = -(-max(page_sizes(block_size, states=True)) // token_bytes)
        alignment = max(ATTENTION_BLOCK_ALIGNMENT, block_size)
        block_size = max(block_size, -(-needed // alignment) * alignment)
    pages = set(page_sizes(block_size, states=False))
    if len(pages) > 1:
        raise ValueError(
            f"pages of {serving.model.name} have {sorted(pages)} bytes, but layers of "
            "different kinds need pages of the same size"
        )
    return block_size, pages.pop() if serving.is_hybrid else None

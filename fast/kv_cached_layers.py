"""Find the layers that keep a cache, each with its spec, raw tensor and page size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fast._checks import check_int, check_list, check_strs, check_tensor, is_kind
from fast.kv_cache_spec import KVCacheConfig, is_encoder_only


@dataclass(frozen=True)
class CachedLayer:
    """One layer of a group, with all that its view depends on.

    Attributes:
        name: The layer's name.
        spec: Its own spec, or that of the layer whose cache it shares.
        raw: Its raw tensor, int8[num_blocks * page_size_bytes].
        page_size_bytes: The bytes of a block.
        kernel_block_size: Positions in a block of the kernels; None: the spec's.
    """

    name: str
    spec: Any
    raw: torch.Tensor
    page_size_bytes: int
    kernel_block_size: int | None

    @property
    def num_blocks(self) -> int:
        """Blocks of the spec's size in the raw tensor."""
        return self.raw.numel() // self.page_size_bytes


def find_cached_groups(kv_cache_config: Any) -> list[Any]:
    """Return the groups that keep a cache, all but encoder-only ones; no layer may be in two."""
    check_list("kv_cache_config.kv_cache_groups", kv_cache_config.kv_cache_groups)
    groups = []
    seen: set[str] = set()
    for g, group in enumerate(kv_cache_config.kv_cache_groups):
        if is_encoder_only(group):
            continue
        groups.append(group)
        add_names(f"kv_cache_groups[{g}].layer_names", group.layer_names, seen)
    return groups


def add_names(where: str, names: list[str], seen: set[str]) -> None:
    """Add the layers of a list to those seen before it; a layer that is there is a ValueError."""
    check_strs(where, names)
    for i, name in enumerate(names):
        if name in seen:
            raise ValueError(f"{where}[{i}] is {name!r}, a layer that is named before")
        seen.add(name)


def find_layers(
    kv_cache_config: KVCacheConfig,
    raw_tensors: dict[str, torch.Tensor],
    kernel_block_sizes: list[int] | None,
) -> list[CachedLayer]:
    """Return the layers of all groups that keep a cache, in order."""
    groups = find_cached_groups(kv_cache_config)
    block_sizes: Sequence[int | None] = [None] * len(groups)
    if kernel_block_sizes is not None:
        check_list("kernel_block_sizes", kernel_block_sizes, len(groups))
        block_sizes = [
            check_int(f"kernel_block_sizes[{i}]", size, 1, None)
            for i, size in enumerate(kernel_block_sizes)
        ]
    layers: list[CachedLayer] = []
    first_over: dict[int, CachedLayer] = {}
    for group, kernel_block_size in zip(groups, block_sizes, strict=True):
        raws = {name: _get_raw(name, raw_tensors) for name in group.layer_names}
        for name, spec in _find_layer_specs(group, raws).items():
            if not is_kind(spec, "AttentionSpec") and not is_kind(spec, "MambaSpec"):
                raise NotImplementedError(
                    f"layer {name!r} has a spec of class {type(spec).__name__}, "
                    "expected AttentionSpec or MambaSpec"
                )
            where = f"page_size_bytes of layer {name!r}"
            page_size = check_int(where, spec.page_size_bytes, 1, None)
            layer = CachedLayer(name, spec, raws[name], page_size, kernel_block_size)
            first = first_over.setdefault(id(layer.raw), layer)
            if page_size != first.page_size_bytes:
                raise ValueError(
                    f"page_size_bytes of layer {name!r} is {page_size}, but that of "
                    f"{first.name!r} with the same raw tensor is {first.page_size_bytes}"
                )
            if layer.raw.numel() % page_size:
                raise ValueError(
                    f"kv_cache_raw_tensors[{name!r}] has {layer.raw.numel()} bytes, expected a "
                    f"multiple of its page_size_bytes {page_size}"
                )
            layers.append(layer)
    return layers


def _find_layer_specs(group: Any, raws: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the spec of each layer of a group: in a uniform spec its own, or that of its target.

    The target is the first layer of the group that has a spec and the same raw tensor.
    """
    if not is_kind(group.kv_cache_spec, "UniformTypeKVCacheSpecs"):
        return dict.fromkeys(raws, group.kv_cache_spec)
    own = group.kv_cache_spec.kv_cache_specs
    over: dict[int, Any] = {}
    for name, raw in raws.items():
        if name in own:
            over.setdefault(id(raw), own[name])
    specs = {}
    for name, raw in raws.items():
        if name not in own and id(raw) not in over:
            raise KeyError(
                f"kv_cache_specs lacks layer {name!r} and every layer of its group with the "
                "same raw tensor"
            )
        specs[name] = own[name] if name in own else over[id(raw)]
    return specs


def _get_raw(name: str, raw_tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the raw tensor of a layer, which must be contiguous int8."""
    if name not in raw_tensors:
        raise KeyError(f"kv_cache_raw_tensors lacks layer {name!r}")
    raw = raw_tensors[name]
    check_tensor(f"kv_cache_raw_tensors[{name!r}]", raw, torch.int8, 1)
    if not raw.is_contiguous():
        raise ValueError(
            f"kv_cache_raw_tensors[{name!r}] must be contiguous, got stride {raw.stride(0)}"
        )
    return raw

"""Share the cache of a target layer with layers that have none of their own."""

from typing import Any

from fast._checks import check_list, check_strs, check_type
from fast.kv_cache_spec import KVCacheGroupSpec


def initialize_kv_cache_for_kv_sharing(
    shared_kv_cache_layers: dict[str, str],
    kv_cache_groups: list[KVCacheGroupSpec],
    kv_caches: dict[str, Any],
) -> None:
    """Give each sharing layer the cache of its target, and add it to its target's group.

    Definition: `reference.initialize_kv_cache_for_kv_sharing`.
    """
    check_type("kv_caches", kv_caches, dict, "a dict")
    joined = _find_groups_to_join(shared_kv_cache_layers, kv_cache_groups)
    for layer, target in shared_kv_cache_layers.items():
        if target not in kv_caches:
            raise KeyError(f"kv_caches lacks {target!r}, whose cache layer {layer!r} shares")
    _join(joined)
    for layer, target in shared_kv_cache_layers.items():
        kv_caches[layer] = kv_caches[target]


def add_kv_sharing_layers_to_kv_cache_groups(
    shared_kv_cache_layers: dict[str, str],
    kv_cache_groups: list[KVCacheGroupSpec],
    runner_only_attn_layers: set[str] | None = None,
) -> None:
    """Add each sharing layer to its target's group.

    Definition: `reference.add_kv_sharing_layers_to_kv_cache_groups`.
    """
    check_type("runner_only_attn_layers", runner_only_attn_layers, set | None, "a set or None")
    _join(_find_groups_to_join(shared_kv_cache_layers, kv_cache_groups))
    if runner_only_attn_layers is not None:
        runner_only_attn_layers.update(shared_kv_cache_layers)


def _find_groups_to_join(
    shared_kv_cache_layers: dict[str, str], kv_cache_groups: list[KVCacheGroupSpec]
) -> dict[str, KVCacheGroupSpec]:
    """Return the target's group for each sharing layer that is not in it already."""
    check_type("shared_kv_cache_layers", shared_kv_cache_layers, dict, "a dict")
    check_list("kv_cache_groups", kv_cache_groups)
    groups_of: dict[str, list[KVCacheGroupSpec]] = {}
    for g, group in enumerate(kv_cache_groups):
        check_strs(f"kv_cache_groups[{g}].layer_names", group.layer_names)
        for name in group.layer_names:
            groups_of.setdefault(name, []).append(group)
    joined = {}
    for layer, target in shared_kv_cache_layers.items():
        check_type("a layer of shared_kv_cache_layers", layer, str, "a str")
        check_type(f"shared_kv_cache_layers[{layer!r}]", target, str, "a str")
        name = f"shared_kv_cache_layers[{layer!r}] is {target!r},"
        if layer == target:
            raise ValueError(f"{name} the layer itself, expected another")
        if target in shared_kv_cache_layers:
            raise KeyError(
                f"{name} which shares a cache itself, expected a layer with a cache of its own"
            )
        if target not in groups_of:
            raise KeyError(f"{name} which kv_cache_groups lack")
        home, *_ = groups_of[target]
        if layer not in groups_of:
            joined[layer] = home
        elif any(group is not home for group in groups_of[layer]):
            other = next(
                g
                for g, group in enumerate(kv_cache_groups)
                if layer in group.layer_names and group is not home
            )
            raise ValueError(
                f"{name} which is not in kv_cache_groups[{other}], the group of {layer!r}"
            )
    return joined


def _join(joined: dict[str, KVCacheGroupSpec]) -> None:
    for layer, group in joined.items():
        group.layer_names.append(layer)

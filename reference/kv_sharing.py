"""Sharing: layers without a cache of their own use that of a target layer."""

from __future__ import annotations

from typing import Any

from reference._checks import check_list, check_strs, check_type
from reference.kv_cache_spec import KVCacheGroupSpec


def initialize_kv_cache_for_kv_sharing(
    shared_kv_cache_layers: dict[str, str],
    kv_cache_groups: list[KVCacheGroupSpec],
    kv_caches: dict[str, Any],
) -> None:
    """Give each sharing layer the cache of its target, and add it to its target's group.

    For each pair, in order, `kv_caches[layer]` becomes `kv_caches[target]`, the same object,
    whatever the layer had before; and `layer` is appended to the `layer_names` of the group that
    has `target`, unless it is in it already.

    Args:
        shared_kv_cache_layers: The name of the target of each sharing layer, by the layer's name.
        kv_cache_groups: The groups; their `layer_names` are changed.
        kv_caches: The cache of each layer by name; it is changed.

    Raises:
        KeyError: A target that is in no group, has no cache, or itself shares.
        TypeError: An argument of the wrong type.
        ValueError: A layer that is its own target, or is in another group than its target. After an
            error nothing has changed.

    Example:
        >>> from reference.kv_cache_spec import KVCacheGroupSpec, KVCacheSpec
        >>> group = KVCacheGroupSpec(["layers.0.attn"], KVCacheSpec(16))
        >>> kv_caches = {"layers.0.attn": "cache 0"}
        >>> initialize_kv_cache_for_kv_sharing(
        ...     {"layers.1.attn": "layers.0.attn"}, [group], kv_caches
        ... )
        >>> kv_caches["layers.1.attn"], group.layer_names
        ('cache 0', ['layers.0.attn', 'layers.1.attn'])

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("kv_caches", kv_caches, dict)
    new_groups = _find_new_groups(shared_kv_cache_layers, kv_cache_groups)
    for layer_name, target in shared_kv_cache_layers.items():
        if target not in kv_caches:
            raise KeyError(f"kv_caches lacks {target!r}, whose cache layer {layer_name!r} shares")

    for layer_name, target in shared_kv_cache_layers.items():
        kv_caches[layer_name] = kv_caches[target]
    _add_layers(new_groups)


def add_kv_sharing_layers_to_kv_cache_groups(
    shared_kv_cache_layers: dict[str, str],
    kv_cache_groups: list[KVCacheGroupSpec],
    runner_only_attn_layers: set[str] | None = None,
) -> None:
    """Add each sharing layer to its target's group.

    For each pair, in order, `layer` is appended to the `layer_names` of the group that has
    `target`, unless it is in it already.

    Args:
        shared_kv_cache_layers: The name of the target of each sharing layer, by the layer's name.
        kv_cache_groups: The groups; their `layer_names` are changed.
        runner_only_attn_layers: The set of layers that only the runner has; each sharing layer is
            added to it. None: there is no such set.

    Raises:
        KeyError: A target that is in no group, or itself shares.
        TypeError: An argument of the wrong type.
        ValueError: A layer that is its own target, or is in another group than its target. After an
            error nothing has changed.

    Example:
        >>> from reference.kv_cache_spec import KVCacheGroupSpec, KVCacheSpec
        >>> group = KVCacheGroupSpec(["layers.0.attn"], KVCacheSpec(16))
        >>> runner_only = set()
        >>> add_kv_sharing_layers_to_kv_cache_groups(
        ...     {"layers.1.attn": "layers.0.attn"}, [group], runner_only
        ... )
        >>> group.layer_names, runner_only
        (['layers.0.attn', 'layers.1.attn'], {'layers.1.attn'})

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("runner_only_attn_layers", runner_only_attn_layers, set | None, "a set or None")
    new_groups = _find_new_groups(shared_kv_cache_layers, kv_cache_groups)

    _add_layers(new_groups)
    if runner_only_attn_layers is not None:
        runner_only_attn_layers.update(shared_kv_cache_layers)


def _find_new_groups(
    shared_kv_cache_layers: dict[str, str], kv_cache_groups: list[KVCacheGroupSpec]
) -> dict[str, KVCacheGroupSpec]:
    """Return the target's group for each sharing layer that is in no group, after all checks."""
    pairs = check_type("shared_kv_cache_layers", shared_kv_cache_layers, dict)
    groups_with: dict[str, list[int]] = {}  # by layer, the numbers of the groups that have it
    for g, group in enumerate(check_list("kv_cache_groups", kv_cache_groups)):
        for layer_name in check_strs(f"kv_cache_groups[{g}].layer_names", group.layer_names):
            groups_with.setdefault(layer_name, []).append(g)
    new_groups = {}
    for layer_name, target in pairs.items():
        check_type("a layer of shared_kv_cache_layers", layer_name, str)
        check_type(f"shared_kv_cache_layers[{layer_name!r}]", target, str)
        name = f"shared_kv_cache_layers[{layer_name!r}] is {target!r},"
        if target == layer_name:
            raise ValueError(f"{name} the layer itself, expected another")
        if target in pairs:
            raise KeyError(
                f"{name} which shares a cache itself, expected a layer with a cache of its own"
            )
        if target not in groups_with:
            raise KeyError(f"{name} which kv_cache_groups lack")
        target_group = kv_cache_groups[groups_with[target][0]]
        for g in groups_with.get(layer_name, []):
            if kv_cache_groups[g] is not target_group:
                raise ValueError(
                    f"{name} which is not in kv_cache_groups[{g}], the group of {layer_name!r}"
                )
        if layer_name not in groups_with:
            new_groups[layer_name] = target_group
    return new_groups


def _add_layers(new_groups: dict[str, KVCacheGroupSpec]) -> None:
    """Append layers to groups."""
    for layer_name, group in new_groups.items():
        group.layer_names.append(layer_name)

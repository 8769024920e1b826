"""Binding: each layer of a model gets its cache, and the runner gets a list of them in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reference._checks import check_int, check_list, check_type


def extract_layer_index(layer_name: str, num_attn_module: int | None = 1) -> int:
    """Return the index of a layer from its name.

    The integers of a name are its dot-separated components that consist of ASCII digits. With one
    attention module in each layer, or in a name without "attn", there must be one integer, the
    index. Otherwise one integer `a` gives `a`; two integers `a` and `b` give
    `a * num_attn_module + b`.

    Args:
        layer_name: The name, with components separated by dots.
        num_attn_module: Attention modules in a layer, at least 1; None: 1.

    Returns:
        The index.

    Raises:
        TypeError: An argument of the wrong type.
        ValueError: Another number of integers; a `num_attn_module` below 1.

    Example:
        >>> extract_layer_index("model.layers.7.self_attn")
        7
        >>> extract_layer_index("model.layers.20.attn.1", num_attn_module=2)
        41

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("layer_name", layer_name, str)
    modules = 1 if num_attn_module is None else check_int("num_attn_module", num_attn_module, 1)
    parts = layer_name.split(".")
    integers = [int(part) for part in parts if part.isascii() and part.isdigit()]
    if len(integers) == 1:
        return integers[0]
    if len(integers) != 2 or modules == 1 or "attn" not in layer_name:
        raise ValueError(
            f"layer_name is {layer_name!r} and has {len(integers)} integers between dots, "
            "expected 1, or 2 for an attention layer where num_attn_module is above 1"
        )
    return integers[0] * modules + integers[1]


def bind_kv_cache(
    kv_caches: dict[str, Any],
    forward_context: dict[str, Any],
    runner_kv_caches: list[Any],
    num_attn_module: int | None = 1,
) -> None:
    """Bind each layer's cache to the layer, and append all caches to the runner's list in order.

    `forward_context[name].kv_cache` becomes a list of that one cache. Layers of `forward_context`
    that have no cache are not changed.

    Args:
        kv_caches: The cache of each layer by name: an array, or a list of a Mamba layer's states.
        forward_context: The layers by name.
        runner_kv_caches: An empty list, which is filled with the caches by ascending layer index;
            those with the same index (self and cross attention of a decoder layer) in the order of
            `kv_caches`.
        num_attn_module: Attention modules in a layer, at least 1; None: 1.

    Raises:
        AttributeError: A layer whose `kv_cache` cannot be set.
        KeyError: A layer that `forward_context` lacks.
        TypeError: An argument of the wrong type.
        ValueError: A `runner_kv_caches` that is not empty, a name without a layer index, a
            `num_attn_module` below 1. After an error nothing is bound.

    Example:
        >>> from types import SimpleNamespace
        >>> layers = {"layers.0.attn": SimpleNamespace(), "layers.1.attn": SimpleNamespace()}
        >>> runner_kv_caches = []
        >>> bind_kv_cache(
        ...     {"layers.1.attn": "cache 1", "layers.0.attn": "cache 0"}, layers, runner_kv_caches
        ... )
        >>> runner_kv_caches, layers["layers.1.attn"].kv_cache
        (['cache 0', 'cache 1'], ['cache 1'])

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("kv_caches", kv_caches, dict)
    ordered = order_layers(kv_caches, forward_context, runner_kv_caches, num_attn_module)
    _give_caches(kv_caches, forward_context)
    runner_kv_caches.extend(kv_caches[layer_name] for layer_name in ordered)


def _give_caches(kv_caches: dict[str, Any], forward_context: dict[str, Any]) -> None:
    """Set each layer's `kv_cache`; if one layer raises, restore the others."""
    absent = object()
    had: list[tuple[Any, Any]] = []
    try:
        for layer_name, kv_cache in kv_caches.items():
            layer = forward_context[layer_name]
            before = getattr(layer, "kv_cache", absent)
            layer.kv_cache = [kv_cache]
            had.append((layer, before))
    except Exception:
        for layer, before in reversed(had):
            if before is absent:
                del layer.kv_cache
            else:
                layer.kv_cache = before
        raise


def order_layers(
    layer_names: Iterable[str],
    forward_context: dict[str, Any],
    runner_kv_caches: list[Any],
    num_attn_module: int | None,
) -> list[str]:
    """Return layers by ascending index, after all checks that binding them needs."""
    check_type("forward_context", forward_context, dict)
    if check_list("runner_kv_caches", runner_kv_caches):
        raise ValueError(f"runner_kv_caches has {len(runner_kv_caches)} entries, expected none")
    if num_attn_module is not None:
        check_int("num_attn_module", num_attn_module, 1)
    names = list(layer_names)
    for layer_name in names:
        if layer_name not in forward_context:
            raise KeyError(f"forward_context lacks layer {layer_name!r}")
    return sorted(names, key=lambda layer_name: extract_layer_index(layer_name, num_attn_module))

"""Binding: each layer gets its cache, and the runner a list of them by layer index."""

from typing import Any

from fast._checks import check_int, check_list, check_type


def extract_layer_index(layer_name: str, num_attn_module: int | None = 1) -> int:
    """Return the index that stands in a layer's name.

    Args:
        layer_name: words between dots; those of ASCII digits only are its integers.
        num_attn_module: attention modules in a layer; None is 1. Where there are several and the
            name holds "attn", a second integer counts them.

    Returns:
        The index.

    Raises:
        TypeError: an argument of another type.
        ValueError: `num_attn_module` is below 1, or the name has too many integers or none.

    Example:
        >>> extract_layer_index("model.layers.20.attn.1", num_attn_module=2)
        41

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("layer_name", layer_name, str, "a str")
    modules = (
        1 if num_attn_module is None else check_int("num_attn_module", num_attn_module, 1, None)
    )
    numbers = [int(word) for word in layer_name.split(".") if word.isascii() and word.isdigit()]
    if len(numbers) == 1:
        return numbers[0]
    if len(numbers) == 2 and modules > 1 and "attn" in layer_name:
        return numbers[0] * modules + numbers[1]
    raise ValueError(
        f"layer_name is {layer_name!r} and has {len(numbers)} integers between dots, "
        "expected 1, or 2 for an attention layer where num_attn_module is above 1"
    )


def bind_kv_cache(
    kv_caches: dict[str, Any],
    forward_context: dict[str, Any],
    runner_kv_caches: list[Any],
    num_attn_module: int | None = 1,
) -> None:
    """Give each layer its cache, and fill the runner's list of them. All or nothing.

    Args:
        kv_caches: each layer's cache, by name: a tensor, or a list of a Mamba layer's states.
        forward_context: each layer, by name; its `kv_cache` becomes a list of its cache alone.
        runner_kv_caches: an empty list, filled in ascending layer index, and in the order of
            `kv_caches` where layers have the same.
        num_attn_module: attention modules in a layer; None is 1.

    Raises:
        TypeError: an argument of another type.
        ValueError: `runner_kv_caches` is not empty, or a name has no index.
        KeyError: `forward_context` lacks a layer.
        AttributeError: a layer that takes no `kv_cache`.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace as Layer
        >>> layers = {"layers.0.attn": Layer(), "layers.1.attn": Layer()}
        >>> caches = {"layers.1.attn": torch.ones(1), "layers.0.attn": torch.zeros(1)}
        >>> runner_kv_caches = []
        >>> bind_kv_cache(caches, layers, runner_kv_caches)
        >>> runner_kv_caches, layers["layers.1.attn"].kv_cache
        ([tensor([0.]), tensor([1.])], [tensor([1.])])

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("kv_caches", kv_caches, dict, "a dict")
    names = order_layers(list(kv_caches), forward_context, runner_kv_caches, num_attn_module)
    _hand_out(kv_caches, forward_context)
    runner_kv_caches.extend(kv_caches[name] for name in names)


def _hand_out(kv_caches: dict[str, Any], forward_context: dict[str, Any]) -> None:
    """Set each layer's `kv_cache`, or that of none where one does not take it."""
    taken: list[tuple[Any, tuple[Any, ...]]] = []  # each layer, and what it had before, if anything
    try:
        for name, cache in kv_caches.items():
            layer = forward_context[name]
            old = (layer.kv_cache,) if hasattr(layer, "kv_cache") else ()
            layer.kv_cache = [cache]
            taken.append((layer, old))
    except Exception:
        for layer, old in reversed(taken):
            if old:
                (layer.kv_cache,) = old
            else:
                del layer.kv_cache
        raise


def order_layers(
    names: list[str],
    forward_context: dict[str, Any],
    runner_kv_caches: list[Any],
    num_attn_module: int | None,
) -> list[str]:
    """Return layers in ascending index, after all that binding them could meet is checked.

    Raises:
        TypeError: an argument of another type.
        ValueError: `runner_kv_caches` is not empty, or a name has no index.
        KeyError: `forward_context` lacks a layer.
    """
    check_type("forward_context", forward_context, dict, "a dict")
    check_list("runner_kv_caches", runner_kv_caches)
    if runner_kv_caches:
        raise ValueError(f"runner_kv_caches has {len(runner_kv_caches)} entries, expected none")
    if num_attn_module is not None:
        check_int("num_attn_module", num_attn_module, 1, None)
    indices = {}
    for name in names:
        indices[name] = extract_layer_index(name, num_attn_module)
        if name not in forward_context:
            raise KeyError(f"forward_context lacks layer {name!r}")
    return sorted(names, key=indices.__getitem__)

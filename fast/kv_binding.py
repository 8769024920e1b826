"""Bind caches to layers, and list them for the runner in the order of the layers."""

from typing import Any

from fast._checks import check_int, check_list, check_type


def extract_layer_index(layer_name: str, num_attn_module: int | None = 1) -> int:
    """Return the index of a layer from its name.

    Definition: `reference.extract_layer_index`.
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
    """Bind each layer's cache to the layer, and append all caches to the runner's list in order.

    Definition: `reference.bind_kv_cache`.
    """
    check_type("kv_caches", kv_caches, dict, "a dict")
    names = order_layers(list(kv_caches), forward_context, runner_kv_caches, num_attn_module)
    _set_layer_caches(kv_caches, forward_context)
    runner_kv_caches.extend(kv_caches[name] for name in names)


def _set_layer_caches(kv_caches: dict[str, Any], forward_context: dict[str, Any]) -> None:
    """Set each layer's `kv_cache`; if one layer raises, restore the others."""
    taken: list[tuple[Any, tuple[Any, ...]]] = []  # each layer, and its old `kv_cache`, if any
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
    """Check the arguments of `bind_kv_cache`, and return the layers by ascending index."""
    check_type("forward_context", forward_context, dict, "a dict")
    check_list("runner_kv_caches", runner_kv_caches)
    if runner_kv_caches:
        raise ValueError(f"runner_kv_caches has {len(runner_kv_caches)} entries, expected none")
    if num_attn_module is not None:
        check_int("num_attn_module", num_attn_module, 1, None)
    for name in names:
        if name not in forward_context:
            raise KeyError(f"forward_context lacks layer {name!r}")
    return sorted(names, key=lambda name: extract_layer_index(name, num_attn_module))

"""Views of the raw bytes of a layer's cache, for attention backends and as Mamba states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import reference
from conformance.contracts.contract import Contract
from conformance.invalid_inputs.kv_backends import BACKEND_INVALID_INPUTS
from conformance.invalid_inputs.kv_views import RESHAPE_INVALID_INPUTS
from conformance.strategies.kv_cache import Cache, Layer, is_encoder_only
from conformance.strategies.kv_cache_axes import AXES
from conformance.strategies.kv_cache_spec import DTYPES
from conformance.strategies.kv_plans import SMALL
from conformance.strategies.kv_views import reshape_calls
from conformance.values.call import Call


def _mamba(call: Call) -> list[Layer]:
    return [layer for layer in call.source.layers if layer.is_mamba]


def _backends(call: Call) -> list[Any]:
    return [call.source.backends[layer.name] for layer in call.source.attention_layers]


def _splits(call: Call) -> bool:
    cache: Cache = call.source
    return any(
        cache.kernel_blocks(layer)[1] < layer.spec.block_size
        for layer in call.source.attention_layers
    )


def _groups(call: Call) -> list[Any]:
    return [group.kv_cache_spec for group in call.source.config.kv_cache_groups]


def _is_uniform(spec: Any) -> bool:
    return isinstance(spec, reference.UniformTypeKVCacheSpecs) and not is_encoder_only(spec)


def _shares_within_group(call: Call) -> bool:
    """Return whether two layers of one group have different specs over one tensor."""
    seen: dict[tuple[int, int], set[Any]] = {}
    for layer in call.source.layers:
        seen.setdefault((layer.group, layer.tensor), set()).add(layer.spec)
    return any(len(specs) > 1 for specs in seen.values())


def _sharing_comes_first(call: Call) -> bool:
    layers = call.source.layers
    return any(
        not layer.has_own_spec
        and any(one.has_own_spec and one.tensor == layer.tensor for one in layers[i:])
        and not any(one.has_own_spec and one.tensor == layer.tensor for one in layers[:i])
        for i, layer in enumerate(layers)
    )


def _without_order(call: Call) -> set[tuple[str, bool]]:
    """Return how backends report that they have no stride order, and whether each is a caller's."""
    return {
        (backend.without_order, backend.is_own)
        for backend in _backends(call)
        if backend.stride_order is None
    }


def _formats(call: Call) -> set[object]:
    return {getattr(layer.spec, "cache_dtype_str", None) for layer in call.source.attention_layers}


def _has_dtype(dtype: object) -> Callable[[Call], bool]:
    return lambda call: any(layer.spec.dtype == dtype for layer in call.source.attention_layers)


test_reshape_kv_cache = Contract(
    "_reshape_kv_cache",
    reshape_calls,
    {
        "no groups": lambda call: not _groups(call),
        "several groups": lambda call: len(_groups(call)) > 1,
        "an encoder-only group": lambda call: any(map(is_encoder_only, _groups(call))),
        "an encoder-only group before one with a cache": lambda call: any(
            map(is_encoder_only, _groups(call)[:-1])
        ),
        "layers of two groups over one tensor": lambda call: any(
            a.tensor == b.tensor and a.group != b.group
            for a in call.source.layers
            for b in call.source.layers
        ),
        "layers of one group over one tensor": lambda call: (
            max(Counter((one.tensor, one.group) for one in call.source.layers).values(), default=0)
            > 1
        ),
        "tensors of different sizes": lambda call: (
            len({call.source.num_blocks(layer) for layer in call.source.layers}) > 1
        ),
        "no blocks": lambda call: any(
            call.source.num_blocks(one) == 0 for one in call.source.layers
        ),
        "a uniform group": lambda call: any(map(_is_uniform, _groups(call))),
        "a uniform group of different pages": lambda call: any(
            _is_uniform(spec)
            and len({one.page_size_bytes for one in spec.kv_cache_specs.values()}) > 1
            for spec in _groups(call)
        ),
        "a uniform group of attention and states": lambda call: any(
            _is_uniform(spec)
            and len({isinstance(o, reference.MambaSpec) for o in spec.kv_cache_specs.values()}) > 1
            for spec in _groups(call)
        ),
        "a layer without a spec of its own": lambda call: any(
            not layer.has_own_spec for layer in call.source.layers
        ),
        "a layer without a spec before its target": _sharing_comes_first,
        "one tensor seen in two ways by one group": _shares_within_group,
        "Mamba layers": lambda call: bool(_mamba(call)),
        "Mamba layers alone": lambda call: bool(_mamba(call)) and not call.source.attention_layers,
        "states of different dtypes": lambda call: any(
            len(set(layer.spec.dtypes)) > 1 for layer in _mamba(call)
        ),
        "padded pages of states": lambda call: any(
            layer.spec.page_size_padded for layer in _mamba(call)
        ),
        "a state of no axes": lambda call: any(() in layer.spec.shapes for layer in _mamba(call)),
        "attention next to states": lambda call: (
            bool(_mamba(call)) and bool(call.source.attention_layers)
        ),
        "blocks that are not outermost, next to states": lambda call: call.source.moves_blocks,
        "blocks that are not outermost, without states": lambda call: (
            not call.source.has_mamba
            and any(
                call.source.backends[layer.name].order[0] != call.source.block_dimension(layer)
                for layer in call.source.attention_layers
            )
        ),
        "kernel blocks": lambda call: call.get("kernel_block_sizes") is not None,
        "kernel blocks that split a block": _splits,
        "an order that is its inverse": lambda call: any(
            one.stride_order is not None and not one.is_three_cycle for one in _backends(call)
        ),
        "an order that is not its inverse": lambda call: any(
            one.is_three_cycle for one in _backends(call)
        ),
        "an order that is None": lambda call: ("None", True) in _without_order(call),
        "no order at all": lambda call: ("absent", True) in _without_order(call),
        "an order that is not implemented": lambda call: ("raises", True) in _without_order(call),
        "the base's order": lambda call: ("absent", False) in _without_order(call),
        "a backend that is an instance": lambda call: any(o.is_instance for o in _backends(call)),
        "a backend that is a class": lambda call: any(not o.is_instance for o in _backends(call)),
        "shapes and orders are lists of NumPy's ints": lambda call: any(
            one.is_listed and one.stride_order is not None for one in _backends(call)
        ),
        "a dimension of several axes": lambda call: any(
            len(axes) > 1 for one in _backends(call) for axes in one.shape
        ),
        "a backend that knows no cache_dtype_str": lambda call: any(
            not one.knows_dtype for one in _backends(call)
        ),
        "a cache_dtype_str": lambda call: bool(_formats(call) & {"auto", "fp8"}),
        "a cache_dtype_str without a letter": lambda call: "" in _formats(call),
        "fp8_ds_mla": lambda call: "fp8_ds_mla" in _formats(call),
        **{f"attention in {dtype.name}": _has_dtype(dtype) for dtype in DTYPES},
        "a tensor that is not requested": lambda call: (
            "layers.77.attn" in call["kv_cache_raw_tensors"]
        ),
    },
    pairs=(
        ("kernel blocks that split a block", "blocks that are not outermost, next to states"),
        ("kernel blocks that split a block", "an order that is not its inverse"),
        ("an order that is not its inverse", "blocks that are not outermost, next to states"),
        ("kernel blocks that split a block", "an encoder-only group before one with a cache"),
        ("kernel blocks that split a block", "a uniform group"),
    ),
    axes=AXES,
    invalid_inputs=[*RESHAPE_INVALID_INPUTS, *BACKEND_INVALID_INPUTS],
    refusal_presets=SMALL,
    compares_views=True,
    takes_objects=True,
    has_fixed_arrays=True,
)

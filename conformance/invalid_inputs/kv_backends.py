"""Bad calls of `_reshape_kv_cache`: of each thing that a backend answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from conformance.contracts import Call, Change, InvalidInput
from conformance.invalid_inputs.kv_views import (
    Chosen,
    anyone,
    choose,
    has_blocks,
    is_attention,
    with_raw,
)
from conformance.strategies.kv_cache import Cache, Layer
from conformance.strategies.kv_views import raw_bytes


def _backend(chosen: Chosen, **methods: Callable[..., object] | None) -> Change:
    """Return a fault that gives the backend of one attention layer other methods."""

    def breaks(call: Call) -> Call | None:
        layer = choose(call, lambda cache, one: not one.is_mamba and chosen(cache, one))
        if layer is None:
            return None
        found = call.arguments["attn_backends"]
        bad = dataclasses.replace(found[layer.name], methods=methods)
        return call.replacing(attn_backends={**found, layer.name: bad})

    return breaks


def _without_backend(call: Call) -> Call | None:
    layer = choose(call, is_attention)
    if layer is None:
        return None
    found = dict(call.arguments["attn_backends"])
    del found[layer.name]
    return call.replacing(attn_backends=found)


def _order(change: Callable[[tuple[int, ...]], object]) -> Change:
    """Return a fault in the stride order of one attention layer, which may have any length."""

    def breaks(call: Call) -> Call | None:
        layer = choose(call, is_attention)
        if layer is None:
            return None
        bad = change(call.arguments["attn_backends"][layer.name].order)
        return _backend(is_attention, get_kv_cache_stride_order=lambda: bad)(call)

    return breaks


def _shape(change: Callable[[list[int]], object], chosen: Chosen = anyone) -> Change:
    """Return a fault in the shape that the backend of one attention layer gives."""

    def breaks(call: Call) -> Call | None:
        layer = choose(call, lambda cache, one: not one.is_mamba and chosen(cache, one))
        if layer is None:
            return None
        backend = call.arguments["attn_backends"][layer.name]
        made = change([int(length) for length in call.facts.shape(layer)])
        if made is None:
            return None
        keeps_order = {"get_kv_cache_stride_order": lambda: backend.order}
        bad = {"get_kv_cache_shape": lambda *_, **__: made}
        return _backend(chosen, **keeps_order, **bad)(call)

    return breaks


def _two_negative(shape: list[int]) -> list[int] | None:
    return [-shape[0], -shape[1], *shape[2:]] if len(shape) > 1 and all(shape) else None


def _beside_mamba(cache: Cache, _: Layer) -> bool:
    return cache.has_mamba


def _growing(number: int) -> Callable[..., object]:
    """Return a shape of no bytes that grows in so many dimensions."""
    return lambda num_blocks, *_, **__: (0, *[num_blocks] * number)


def _shape_of_nothing(number: int) -> Change:
    """Return a fault of hybrid caches without blocks: no one dimension is that of the blocks."""

    def is_beside(cache: Cache, layer: Layer) -> bool:
        return cache.has_mamba and not layer.is_mamba

    bad: dict[str, Callable[..., object] | None] = {
        "get_kv_cache_shape": _growing(number),
        "get_kv_cache_stride_order": None,
    }

    def breaks(call: Call) -> Call | None:
        empty = with_raw(lambda *_: raw_bytes(0, 0), is_beside)(call)
        return empty and _backend(is_beside, **bad)(empty)

    return breaks


def _rank_grows(call: Call) -> Call | None:
    """Break a backend of a hybrid cache: one block more is one dimension more."""
    layer = choose(call, lambda cache, one: cache.has_mamba and not one.is_mamba)
    if layer is None:
        return None
    cache: Cache = call.facts
    num_blocks, _ = cache.kernel_blocks(layer)
    shape = cache.shape(layer)

    def get_kv_cache_shape(asked: int, *_: object, **__: object) -> tuple[int, ...]:
        return shape if asked == num_blocks else (*shape, 2)

    def get_kv_cache_stride_order() -> tuple[int, ...]:
        return tuple(range(len(shape)))

    both = (get_kv_cache_shape, get_kv_cache_stride_order)
    return _backend(_beside_mamba, **{f.__name__: f for f in both})(call)


def _deep(*_: object, **__: object) -> object:
    raise AttributeError("no such thing, deep inside")


SHAPE = "(get_kv_cache_shape|attn_backends)"


ORDER = "(get_kv_cache_stride_order|attn_backends)"

BACKEND_INVALID_INPUTS = [
    InvalidInput("a layer has no backend", KeyError, "attn_backends", _without_backend),
    InvalidInput(
        "an attribute is missing inside a backend",
        AttributeError,
        "deep inside",
        _backend(anyone, get_kv_cache_stride_order=_deep),
    ),
    InvalidInput(
        "an order names a dimension twice",
        ValueError,
        ORDER,
        _order(lambda p: (*p[:-1], p[0]) if len(p) > 1 else (1,)),
    ),
    InvalidInput("an order is too short", ValueError, ORDER, _order(lambda p: p[:-1])),
    InvalidInput("an order is too long", ValueError, ORDER, _order(lambda p: (*p, len(p)))),
    InvalidInput(
        "an order counts from the end",
        ValueError,
        ORDER,
        _order(lambda p: tuple(d - len(p) for d in p)),
    ),
    InvalidInput(
        "an order counts from 1", ValueError, ORDER, _order(lambda p: tuple(d + 1 for d in p))
    ),
    InvalidInput(
        "an order has bools",
        TypeError,
        ORDER,
        _order(lambda p: tuple(bool(d) if d < 2 else d for d in p)),
    ),
    InvalidInput(
        "an order has floats", TypeError, ORDER, _order(lambda p: tuple(float(d) for d in p))
    ),
    InvalidInput("an order is None", TypeError, ORDER, _order(lambda _: None)),
    InvalidInput("an order is an array", TypeError, ORDER, _order(np.array)),
    InvalidInput(
        "a shape too large",
        ValueError,
        SHAPE,
        _shape(lambda s: [2 * s[0] + 1, *s[1:]], has_blocks),
    ),
    InvalidInput(
        "a shape too small",
        ValueError,
        SHAPE,
        _shape(lambda s: [*s[:-1], s[-1] - 1] if all(s) else None),
    ),
    InvalidInput("a shape of no axes", ValueError, f"{SHAPE}|{ORDER}", _shape(lambda _: [])),
    InvalidInput("a shape of two negative lengths", ValueError, SHAPE, _shape(_two_negative)),
    InvalidInput("a length is a float", TypeError, SHAPE, _shape(lambda s: [float(s[0]), *s[1:]])),
    InvalidInput("a length is a bool", TypeError, SHAPE, _shape(lambda s: [True, *s])),
    InvalidInput("a shape is an int", TypeError, SHAPE, _shape(lambda _: 7)),
    InvalidInput("a shape is an array", TypeError, SHAPE, _shape(np.array)),
    InvalidInput(
        "no dimension of the blocks", ValueError, SHAPE, _shape(lambda s: s, _beside_mamba)
    ),
    InvalidInput("two dimensions of the blocks", ValueError, SHAPE, _shape_of_nothing(2)),
    InvalidInput("a rank that grows", ValueError, SHAPE, _rank_grows),
]

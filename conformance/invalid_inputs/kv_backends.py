"""Invalid inputs of `_reshape_kv_cache`: whatever a backend returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from conformance.calls import Call
from conformance.contracts import Change
from conformance.invalid_inputs.changes import changed, in_turn, refusals, without_key
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


def _attention(chosen: Chosen) -> Chosen:
    return lambda cache, layer: is_attention(cache, layer) and chosen(cache, layer)


def _backend(chosen: Chosen, **methods: Callable[..., object] | None) -> Change:
    """Return the change that gives the backend of one attention layer other methods."""

    def invalidate(call: Call) -> Call | None:
        layer = choose(call, _attention(chosen))
        if layer is None:
            return None
        backends = call.arguments["attn_backends"]
        bad = dataclasses.replace(backends[layer.name], methods=methods)
        return call.replacing(attn_backends={**backends, layer.name: bad})

    return invalidate


def _without_backend(call: Call) -> Call | None:
    layer = choose(call, is_attention)
    if layer is None:
        return None
    return changed("attn_backends", lambda backends: without_key(backends, layer.name))(call)


def _order(change: Callable[[tuple[int, ...]], object]) -> Change:
    """Return the change of the stride order of one attention layer."""

    def invalidate(call: Call) -> Call | None:
        layer = choose(call, is_attention)
        if layer is None:
            return None
        bad = change(call.arguments["attn_backends"][layer.name].order)
        return _backend(anyone, get_kv_cache_stride_order=lambda: bad)(call)

    return invalidate


def _shape(change: Callable[[list[int]], object], chosen: Chosen = anyone) -> Change:
    """Return the change of the shape that the backend of one attention layer gives."""

    def invalidate(call: Call) -> Call | None:
        layer = choose(call, _attention(chosen))
        if layer is None:
            return None
        order = call.arguments["attn_backends"][layer.name].order
        bad = change([int(length) for length in call.facts.shape(layer)])
        if bad is None:
            return None
        return _backend(
            chosen, get_kv_cache_stride_order=lambda: order, get_kv_cache_shape=lambda *_, **__: bad
        )(call)

    return invalidate


def _two_negative(shape: list[int]) -> list[int] | None:
    return [-shape[0], -shape[1], *shape[2:]] if len(shape) > 1 and all(shape) else None


def _beside_mamba(cache: Cache, layer: Layer) -> bool:
    return cache.has_mamba and not layer.is_mamba


@dataclasses.dataclass(frozen=True)
class SquareOfBlocks:
    """A `get_kv_cache_shape` of no bytes that has two dimensions of the blocks."""

    def __call__(self, num_blocks: int, *_: object, **__: object) -> tuple[int, ...]:
        """Return the shape of a number of blocks."""
        return (0, num_blocks, num_blocks)


@dataclasses.dataclass(frozen=True)
class GrowingRank:
    """A `get_kv_cache_shape` that has one dimension more for any other number of blocks.

    Attributes:
        shape: The shape.
        num_blocks: Of so many blocks.
    """

    shape: tuple[int, ...]
    num_blocks: int

    def __call__(self, num_blocks: int, *_: object, **__: object) -> tuple[int, ...]:
        """Return the shape of a number of blocks."""
        return self.shape if num_blocks == self.num_blocks else (*self.shape, 2)


NO_BLOCKS_GROWING_IN_TWO = in_turn(
    with_raw(lambda *_: raw_bytes(0, 0), _beside_mamba),
    _backend(_beside_mamba, get_kv_cache_shape=SquareOfBlocks(), get_kv_cache_stride_order=None),
)
"""Hybrid caches without blocks, so that no one dimension is that of the blocks."""


def _rank_grows(call: Call) -> Call | None:
    """Break a backend of a hybrid cache: one block more is one dimension more."""
    layer = choose(call, _beside_mamba)
    if layer is None:
        return None
    cache: Cache = call.facts
    num_blocks, _ = cache.kernel_blocks(layer)
    shape = cache.shape(layer)

    return _backend(
        _beside_mamba,
        get_kv_cache_shape=GrowingRank(shape, num_blocks),
        get_kv_cache_stride_order=lambda: tuple(range(len(shape))),
    )(call)


def _deep(*_: object, **__: object) -> object:
    raise AttributeError("no such thing, deep inside")


SHAPE = "(get_kv_cache_shape|attn_backends)"
ORDER = "(get_kv_cache_stride_order|attn_backends)"

BACKEND_INVALID_INPUTS = [
    *refusals(KeyError, attn_backends={"a layer has no backend": _without_backend}),
    *refusals(
        AttributeError,
        **{
            "deep inside": {
                "an attribute is missing inside a backend": _backend(
                    anyone, get_kv_cache_stride_order=_deep
                )
            }
        },
    ),
    *refusals(
        ValueError,
        **{
            ORDER: {
                "an order names a dimension twice": _order(
                    lambda p: (*p[:-1], p[0]) if len(p) > 1 else (1,)
                ),
                "an order is too short": _order(lambda p: p[:-1]),
                "an order is too long": _order(lambda p: (*p, len(p))),
                "an order counts from the end": _order(lambda p: tuple(d - len(p) for d in p)),
                "an order counts from 1": _order(lambda p: tuple(d + 1 for d in p)),
            },
            SHAPE: {
                "a shape too large": _shape(lambda s: [2 * s[0] + 1, *s[1:]], has_blocks),
                "a shape too small": _shape(lambda s: [*s[:-1], s[-1] - 1] if all(s) else None),
                "a shape of two negative lengths": _shape(_two_negative),
                "no dimension of the blocks": _shape(lambda s: s, _beside_mamba),
                "two dimensions of the blocks": NO_BLOCKS_GROWING_IN_TWO,
                "a rank that grows": _rank_grows,
            },
            f"{SHAPE}|{ORDER}": {"a shape of no axes": _shape(lambda _: [])},
        },
    ),
    *refusals(
        TypeError,
        **{
            ORDER: {
                "an order has bools": _order(lambda p: tuple(bool(d) if d < 2 else d for d in p)),
                "an order has floats": _order(lambda p: tuple(float(d) for d in p)),
                "an order is None": _order(lambda _: None),
                "an order is an array": _order(np.array),
            },
            SHAPE: {
                "a length is a float": _shape(lambda s: [float(s[0]), *s[1:]]),
                "a length is a bool": _shape(lambda s: [True, *s]),
                "a shape is an int": _shape(lambda _: 7),
                "a shape is an array": _shape(np.array),
            },
        },
    ),
]

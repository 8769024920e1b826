"""Invalid inputs of `_reshape_kv_cache`: wrong results of backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.contracts.contract import Change
from conformance.invalid_inputs.changes import Refusals, chained, change_maker, changed, refusals
from conformance.invalid_inputs.kv_views import (
    Chosen,
    anyone,
    choose,
    has_blocks,
    is_attention,
    with_raw,
    without_last,
)
from conformance.strategies.kv_cache import Cache, Layer
from conformance.strategies.kv_views import raw_bytes
from conformance.values.call import Call


@change_maker
def _backend(
    call: Call, chosen: Chosen, methods: Callable[[Cache, Layer], dict[str, Any] | None]
) -> Call | None:
    """Replace methods of one attention layer's backend, given the cache and the layer."""
    layer = choose(call, lambda cache, layer: not layer.is_mamba and chosen(cache, layer))
    other = layer and methods(call.source, layer)
    if layer is None or other is None:
        return None
    bad = dataclasses.replace(call.source.backends[layer.name], methods=other)
    return changed("attn_backends", lambda backends: {**backends, layer.name: bad})(call)


def _order(change: Callable[[tuple[int, ...]], object]) -> Change:
    """Return the change of the stride order of one attention layer."""

    def methods(cache: Cache, layer: Layer) -> dict[str, Any]:
        bad = change(cache.backends[layer.name].order)
        return {"get_kv_cache_stride_order": lambda: bad}

    return _backend(anyone, methods)


def _shape(change: Callable[[list[int]], object], chosen: Chosen = anyone) -> Change:
    """Return the change of the shape that the backend of one attention layer returns."""

    def methods(cache: Cache, layer: Layer) -> dict[str, Any] | None:
        order = cache.backends[layer.name].order
        bad = change([int(length) for length in cache.shape(layer)])
        shape = {"get_kv_cache_shape": lambda *_, **__: bad}
        return None if bad is None else {"get_kv_cache_stride_order": lambda: order, **shape}

    return _backend(chosen, methods)


def _two_negative(shape: list[int]) -> list[int] | None:
    return [-shape[0], -shape[1], *shape[2:]] if len(shape) > 1 and all(shape) else None


def _of_hybrid(cache: Cache, layer: Layer) -> bool:
    return cache.has_mamba and not layer.is_mamba


@dataclasses.dataclass(frozen=True)
class SquareOfBlocks:
    """A `get_kv_cache_shape` that returns an empty shape with two block dimensions."""

    def __call__(self, num_blocks: int, *_: object, **__: object) -> tuple[int, ...]:
        """Return the shape for a number of blocks."""
        return (0, num_blocks, num_blocks)


@dataclasses.dataclass(frozen=True)
class GrowingRank:
    """A `get_kv_cache_shape` with one more dimension for any other number of blocks.

    Attributes:
        shape: The shape for `num_blocks`.
        num_blocks: The number of blocks.
    """

    shape: tuple[int, ...]
    num_blocks: int

    def __call__(self, num_blocks: int, *_: object, **__: object) -> tuple[int, ...]:
        """Return the shape for a number of blocks."""
        return self.shape if num_blocks == self.num_blocks else (*self.shape, 2)


NO_BLOCKS_GROWING_IN_TWO = chained(
    with_raw(lambda *_: raw_bytes(0, 0), _of_hybrid),
    _backend(
        _of_hybrid,
        lambda *_: {"get_kv_cache_shape": SquareOfBlocks(), "get_kv_cache_stride_order": None},
    ),
)
"""Hybrid caches without blocks, in which two dimensions may be the block dimension."""


def _growing_rank(cache: Cache, layer: Layer) -> dict[str, Any]:
    """Return methods of a backend whose shape gets one more dimension with more blocks."""
    num_blocks, _ = cache.kernel_blocks(layer)
    shape = cache.shape(layer)
    return {
        "get_kv_cache_shape": GrowingRank(shape, num_blocks),
        "get_kv_cache_stride_order": lambda: tuple(range(len(shape))),
    }


def _deep(*_: object, **__: object) -> object:
    raise AttributeError("no such thing, deep inside")


SHAPE = "(get_kv_cache_shape|attn_backends)"
ORDER = "(get_kv_cache_stride_order|attn_backends)"

BACKEND_REFUSALS: Refusals = {
    (KeyError, "attn_backends"): {
        "a layer has no backend": without_last("attn_backends", is_attention)
    },
    (AttributeError, "deep inside"): {
        "an attribute is missing inside a backend": _backend(
            anyone, lambda *_: {"get_kv_cache_stride_order": _deep}
        )
    },
    (ValueError, ORDER): {
        "an order names a dimension twice": _order(
            lambda p: (*p[:-1], p[0]) if len(p) > 1 else (1,)
        ),
        "an order is too short": _order(lambda p: p[:-1]),
        "an order is too long": _order(lambda p: (*p, len(p))),
        "an order counts from the end": _order(lambda p: tuple(d - len(p) for d in p)),
        "an order counts from 1": _order(lambda p: tuple(d + 1 for d in p)),
    },
    (ValueError, SHAPE): {
        "a shape too large": _shape(lambda s: [2 * s[0] + 1, *s[1:]], has_blocks),
        "a shape too small": _shape(lambda s: [*s[:-1], s[-1] - 1] if all(s) else None),
        "a shape of two negative lengths": _shape(_two_negative),
        "no dimension of the blocks": _shape(lambda s: s, _of_hybrid),
        "two dimensions of the blocks": NO_BLOCKS_GROWING_IN_TWO,
        "a rank that grows": _backend(_of_hybrid, _growing_rank),
    },
    (ValueError, f"{SHAPE}|{ORDER}"): {"a shape of no axes": _shape(lambda _: [])},
    (TypeError, ORDER): {
        "an order has bools": _order(lambda p: tuple(bool(d) if d < 2 else d for d in p)),
        "an order has floats": _order(lambda p: tuple(float(d) for d in p)),
        "an order is None": _order(lambda _: None),
        "an order is an array": _order(np.array),
    },
    (TypeError, SHAPE): {
        "a length is a float": _shape(lambda s: [float(s[0]), *s[1:]]),
        "a length is a bool": _shape(lambda s: [True, *s]),
        "a shape is an int": _shape(lambda _: 7),
        "a shape is an array": _shape(np.array),
    },
}

BACKEND_INVALID_INPUTS = refusals(BACKEND_REFUSALS)

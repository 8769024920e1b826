"""Attention backends, drawn as factories: their cache shapes, stride orders and names.

A backend's logical shape is drawn as an order of axes ("blocks", "tokens", ...), some of which are
merged into one dimension; its physical order is drawn as a permutation of the dimensions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

import reference
from conformance.strategies import cached as st
from conformance.targets.factories import Factory, FactoryContext
from conformance.values.call import drawn_scalar

Dimension: TypeAlias = "tuple[str, ...]"
"""The axes that are merged into one dimension of a shape, the outermost first."""

AXES = ("kv", "blocks", "tokens", "heads", "size")
"""Key or value (2 long), blocks, tokens of a block, heads, elements of a head."""

SPLIT = (("kv",), ("blocks",), ("tokens",), ("heads",), ("size",))
"""One dimension for each axis, in the order of the definition."""

LATENT = (("blocks",), ("tokens",), ("heads", "size"))
"""The shape of MLA: one vector for each token."""

FP8_DS_MLA_BYTES = 656
"""The bytes of a token in the cache format `fp8_ds_mla`."""


@dataclasses.dataclass(frozen=True)
class Backend(Factory):
    """How to make a backend class, or an instance of one, for an implementation.

    Attributes:
        name: What `get_name()` returns; the class is named after it.
        shape: The axes of each dimension of the logical shape; "kv" is left out if each token has
            one vector.
        stride_order: What `get_kv_cache_stride_order()` returns; None: the identity, see
            `without_order`.
        without_order: What a backend without a stride order has: a method that "raises"
            `NotImplementedError`, an "absent" method (with `is_own`; the implementation's base
            class has one, which raises), or "None".
        is_listed: Whether shape and stride order are lists of NumPy ints instead of tuples.
        supported: What `get_supported_kernel_block_sizes()` returns: ints, `MultipleOf`s.
        builder: The builder class, or a factory of it.
        is_instance: Whether the backend is an instance of the class.
        is_own: Whether the class is an engine's own, without a base class.
        knows_dtype: Whether `get_kv_cache_shape` takes a `cache_dtype_str`.
        methods: Replacements of these methods by name: functions, which become static methods.
    """

    name: str = "PLAIN"
    shape: tuple[Dimension, ...] = SPLIT
    stride_order: tuple[int, ...] | None = None
    without_order: str = "raises"
    is_listed: bool = False
    supported: Sequence[object] = (reference.MultipleOf(1),)
    builder: object = None
    is_instance: bool = False
    is_own: bool = False
    knows_dtype: bool = True
    methods: Mapping[str, Callable[..., object] | None] = dataclasses.field(default_factory=dict)

    def make(self, converter: FactoryContext) -> Any:
        """Return the class, or an instance of it."""
        supported = [
            converter.convert(entry, f"supported[{i}]") for i, entry in enumerate(self.supported)
        ]
        builder = converter.convert(self.builder, "builder")
        found: dict[str, Callable[..., object] | None] = {
            "get_name": lambda: self.name,
            "get_builder_cls": lambda: builder,
            "get_supported_kernel_block_sizes": lambda: supported,
            "get_kv_cache_shape": self.shape_of if self.knows_dtype else self._shape_without_dtype,
        }
        if self.stride_order is not None:
            found["get_kv_cache_stride_order"] = lambda: self._sequence(self.stride_order or ())
        elif self.without_order == "raises":
            found["get_kv_cache_stride_order"] = _raise_not_implemented
        elif self.without_order == "None":
            found["get_kv_cache_stride_order"] = None
        found.update(self.methods)
        members = {name: method and staticmethod(method) for name, method in found.items()}
        # An implementation of other chapters only has no `AttentionBackend`.
        is_own = self.is_own or not converter.implementation.offers("AttentionBackend")
        base = object if is_own else converter.implementation.find("AttentionBackend")
        made = type(f"{self.name.title()}Backend", (base,), members)
        return made() if self.is_instance else made

    def shape_of(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> Sequence[int]:
        """Return the logical shape, as `get_kv_cache_shape` does."""
        if cache_dtype_str == "fp8_ds_mla":
            num_kv_heads, head_size = 1, FP8_DS_MLA_BYTES
        elif cache_dtype_str in {"fp8", ""}:  # as many bytes, so that only the shape differs
            num_kv_heads, head_size = head_size, num_kv_heads
        lengths = {"kv": 2, "blocks": num_blocks, "tokens": block_size, "one": 1}
        lengths |= {"heads": num_kv_heads, "size": head_size}
        return self._sequence([math.prod(lengths[axis] for axis in dim) for dim in self.shape])

    def _shape_without_dtype(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> Sequence[int]:
        return self.shape_of(num_blocks, block_size, num_kv_heads, head_size)

    def _sequence(self, values: Sequence[int]) -> Sequence[int]:
        return (
            [drawn_scalar(np.int64(value)) for value in values] if self.is_listed else tuple(values)
        )

    @property
    def order(self) -> tuple[int, ...]:
        """The permutation of the dimensions in memory, the outermost first."""
        return self.stride_order or tuple(range(len(self.shape)))

    @property
    def is_three_cycle(self) -> bool:
        """Whether the stride order is a permutation that is not its own inverse."""
        return any(self.order[p] != i for i, p in enumerate(self.order))


def _raise_not_implemented() -> object:
    raise NotImplementedError


def shapes(draw: st.DrawFn, *, has_kv: bool) -> tuple[Dimension, ...]:
    """Draw logical shapes of any rank: axes in any order, neighbours joined, dimensions of 1.

    Without `has_kv`, a latent is stored instead of keys and values.
    """
    axes = [axis for axis in AXES if has_kv or axis != "kv"]
    usual = [SPLIT, (("blocks",), ("kv",), *SPLIT[2:])] if has_kv else [LATENT, SPLIT[1:]]
    if draw(st.booleans()):
        return draw(st.sampled_from(usual))
    ordered = draw(st.permutations(axes))
    dimensions: list[Dimension] = []
    for axis in ordered:
        # Only axes after the blocks join them, so that a dimension still grows by whole blocks.
        can_join = bool(dimensions) and axis != "blocks"
        if can_join and draw(st.SOMETIMES):
            dimensions[-1] += (axis,)
        else:
            dimensions.append((axis,))
    if draw(st.RARELY):
        dimensions.insert(draw(st.integers(0, len(dimensions))), ("one",))
    return tuple(dimensions)


def stride_orders(draw: st.DrawFn, rank: int) -> tuple[int, ...] | None:
    """Draw permutations of that many dimensions, often 3-cycles; None for no stride order."""
    kind = draw(st.sampled_from(("none", "any", "cycle", "cycle")))
    if kind == "none":
        return None
    if kind == "any" or rank < 3:
        return tuple(draw(st.permutations(range(rank))))
    order = list(range(rank))
    i, j, k = draw(st.permutations(range(rank)))[:3]
    order[i], order[j], order[k] = order[j], order[k], order[i]
    return tuple(order)


NAMES = ("FLASH_ATTN", "FLASHINFER", "TRITON_MLA", "PLAIN")
"""Names of backends."""


@st.composite
def backends(draw: st.DrawFn, *, has_kv: bool = True) -> Backend:
    """Draw factories of backends of any shape and stride order."""
    shape = shapes(draw, has_kv=has_kv)
    return Backend(
        name=draw(st.sampled_from(NAMES)),
        shape=shape,
        stride_order=stride_orders(draw, len(shape)),
        without_order=draw(st.sampled_from(("raises", "absent", "None"))),
        is_listed=draw(st.booleans()),
        is_instance=draw(st.booleans()),
        is_own=draw(st.MOSTLY),
    )

"""Attention backends as factories: their cache shapes, stride orders, names and builders."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.harness.objects import Factory, Twin

KEYS_AND_VALUES: Final = ("kv", "blocks", "tokens", "heads", "size")
"""The axes of a cache: key or value (2), blocks, tokens of a block, heads, elements of a head."""

FP8_DS_MLA_BYTES: Final = 656
"""The bytes of a token in the cache format `fp8_ds_mla`."""


@dataclasses.dataclass
class Backend(Factory):
    """A backend class, or an instance of one."""

    name: str = "PLAIN"  # what `get_name()` returns; the class is named after it
    # The axes of each dimension of the logical shape, which it merges; an int is a length.
    shape: list[Any] = dataclasses.field(default_factory=lambda: [[a] for a in KEYS_AND_VALUES])
    # What `get_kv_cache_stride_order()` returns; None: see `without_order`.
    stride_order: Any = None
    # What a backend without an order has: a method that "raises" `NotImplementedError`, an "absent"
    # one (that of the base class raises), or "None"; with another text, the method raises
    # `AttributeError`.
    without_order: str = "raises"
    # What `get_supported_kernel_block_sizes()` returns.
    supported: list[Any] = dataclasses.field(default_factory=lambda: [reference.MultipleOf(1)])
    builder: Any = None  # the builder class, or a factory of it
    is_listed: bool = False  # whether a shape is a list of NumPy's ints instead of a tuple
    is_instance: bool = False  # whether it is an instance of the class
    is_own: bool = False  # whether the class is an engine's own, without a base class
    knows_dtype: bool = True  # whether `get_kv_cache_shape` takes a `cache_dtype_str`

    def make(self, twin: Twin) -> Any:
        found: dict[str, Callable[..., Any] | None] = {
            "get_name": lambda: self.name,
            "get_builder_cls": lambda: self.builder,
            "get_supported_kernel_block_sizes": lambda: self.supported,
            "get_kv_cache_shape": self.shape_of if self.knows_dtype else self._plain_shape,
        }
        if self.stride_order is not None:
            found["get_kv_cache_stride_order"] = lambda: self.stride_order
        elif self.without_order == "None":
            found["get_kv_cache_stride_order"] = None
        elif self.without_order != "absent":
            found["get_kv_cache_stride_order"] = self._fail
        members: dict[str, Any] = {
            name: method and staticmethod(method) for name, method in found.items()
        }
        has_base = twin.target is None or twin.target.offers("AttentionBackend")
        base = twin.find("AttentionBackend") if has_base and not self.is_own else object
        made = type(f"{self.name}Backend", (base,), members)
        return made() if self.is_instance else made

    def _fail(self) -> Any:
        raise NotImplementedError if self.without_order == "raises" else AttributeError

    def _plain_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> Any:
        return self.shape_of(num_blocks, block_size, num_kv_heads, head_size)

    def shape_of(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> Sequence[Any]:
        if cache_dtype_str == "fp8_ds_mla":
            num_kv_heads, head_size = 1, FP8_DS_MLA_BYTES
        elif cache_dtype_str in {"fp8", ""}:  # as many bytes, so that only the shape differs
            num_kv_heads, head_size = head_size, num_kv_heads
        if not isinstance(self.shape, list):
            return self.shape
        lengths = {"kv": 2, "blocks": num_blocks, "tokens": block_size, "one": 1}
        lengths |= {"heads": num_kv_heads, "size": head_size}
        shape = [
            math.prod(lengths[axis] if isinstance(axis, str) else axis for axis in dimension)
            if isinstance(dimension, list)
            else dimension
            for dimension in self.shape
        ]
        if self.is_listed:
            return [np.int64(length) if type(length) is int else length for length in shape]
        return tuple(shape)


def any_backend(rng: random.Random, *, has_kv: bool = True, **fields: Any) -> Backend:
    """Choose a backend of any shape and stride order, often the usual ones."""
    axes = [axis for axis in KEYS_AND_VALUES if has_kv or axis != "kv"]
    shape = [[axis] for axis in axes]
    kind = rng.randrange(4)
    if kind == 0 and has_kv:
        shape[:2] = shape[1::-1]
    elif kind == 0:
        shape = [["blocks"], ["tokens"], ["heads", "size"]]
    elif kind > 1:
        rng.shuffle(axes)
        shape = []
        for axis in axes:
            # Axes join those before; blocks join none, so that a dimension grows by whole blocks.
            if shape and axis != "blocks" and rng.random() < 0.25:
                shape[-1].append(axis)
            else:
                shape.append([axis])
        if rng.random() < 0.2:
            shape.insert(rng.randint(0, len(shape)), ["one"])
    order = [*range(len(shape))]
    if rng.random() < 0.7:  # most permutations of three or more are not their own inverses
        rng.shuffle(order)
    is_stated = rng.random() < 0.75
    return Backend(
        **{
            "shape": shape,
            "stride_order": rng.choice((tuple, list))(order) if is_stated else None,
            "without_order": rng.choice(("raises", "absent", "None")),
            "is_listed": rng.random() < 0.3,
            "is_instance": rng.random() < 0.3,
            "is_own": rng.random() < 0.5,
            **fields,
        }
    )


def backends(*, has_kv: bool = True, **fields: Any) -> st.SearchStrategy[Backend]:
    seeds = st.integers(0, 2**32 - 1)
    return seeds.map(lambda seed: any_backend(random.Random(seed), has_kv=has_kv, **fields))  # noqa: S311  # no secret

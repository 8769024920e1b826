"""Bad calls of what merges the specs of a group's layers, and asks whether they are uniform."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import reference
from conformance.blueprints import Blueprint
from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.arrays import changed
from conformance.invalid_inputs.kv_cache_spec import SPEC, guest, specs_dict_faults
from conformance.strategies.kv_cache_spec import ATTENTION, EXAMPLES, FULL

if TYPE_CHECKING:
    from conformance.conversion import Carrier

UNLIKE = 977
"""A size that no drawn spec has: a refusal must show it."""

NUMBERS = itertools.count()
"""Numbers of the faults, which tell them apart."""


def _of_kind(call: Call, kinds: Sequence[str], fault: int) -> Call | None:
    """Return a call that merges specs of one of some kinds, now and then an example of them."""
    if call.function.split(".")[0] in kinds:
        return call
    kind = guest(call, kinds, fault)
    return Call(f"{kind}.merge", {"specs": [EXAMPLES[kind]]}) if kind else None


def _with_other(change: Callable[[Any], Any], *kinds: str) -> Change:
    """Return a fault that merges the specs of some kinds with one more."""
    number = next(NUMBERS)

    def breaks(call: Call) -> Call | None:
        one = _of_kind(call, kinds, number)
        if one is None:
            return None
        specs = one.arguments["specs"]
        return one.replacing(specs=[*specs, change(specs[0])])

    return breaks


def _limits(window: int | None, chunk: int | None) -> Callable[[Any], Any]:
    return lambda spec: dataclasses.replace(spec, sliding_window=window, attention_chunk_size=chunk)


def _only(*changes: Callable[[Any], Any]) -> Change:
    """Return a fault that merges copies of one full-attention spec."""
    number = next(NUMBERS)

    def breaks(call: Call) -> Call | None:
        one = _of_kind(call, FULL, number)
        if one is None:
            return None
        spec = one.arguments["specs"][0]
        return one.replacing(specs=[change(spec) for change in changes])

    return breaks


def _as_kind(kind: str, **more: Any) -> Callable[[Any], Any]:
    return lambda spec: getattr(reference, kind)(
        spec.block_size, spec.num_kv_heads, spec.head_size, spec.dtype, **more
    )


def _another_dtype(spec: Any) -> Any:
    other = np.int8 if spec.dtype != np.dtype(np.int8) else np.uint8
    return dataclasses.replace(spec, dtype=other)


def _other(field: str) -> Callable[[Any], Any]:
    return lambda spec: dataclasses.replace(spec, **{field: UNLIKE})


@dataclasses.dataclass(frozen=True)
class EngineSpec(Blueprint):
    """A spec of a class of an engine's own, which extends the implementation's.

    Attributes:
        spec: What it is otherwise.
    """

    spec: Any

    def make(self, carrier: Carrier) -> Any:
        """Return the spec."""
        carried = carrier.carry(self.spec, "spec")
        cls = type(f"Engine{type(carried).__name__}", (type(carried),), {})
        return cls(**vars(carried))


MERGE_INVALID_INPUTS = [
    InvalidInput("specs are a tuple", TypeError, "specs", changed("specs", tuple)),
    InvalidInput("specs are None", TypeError, "specs", replaced("specs", None)),
    InvalidInput("there are no specs", ValueError, "specs", replaced("specs", [])),
    InvalidInput(
        "an entry is None", TypeError, "specs", changed("specs", lambda specs: [*specs, None])
    ),
    InvalidInput(
        "the first is a class", TypeError, "specs", changed("specs", lambda specs: [type(specs[0])])
    ),
    InvalidInput(
        "another block size",
        ValueError,
        "(specs|block_size)",
        changed("specs", lambda specs: [*specs, specs[0].copy_with_new_block_size(UNLIKE)]),
        also=str(UNLIKE),
    ),
    *(
        InvalidInput(
            f"another {field}",
            ValueError,
            f"(specs|{field})",
            _with_other(_other(field), *ATTENTION),
            also=str(UNLIKE),
        )
        for field in ("num_kv_heads", "head_size")
    ),
    InvalidInput(
        "another dtype", ValueError, "(specs|dtype)", _with_other(_another_dtype, *ATTENTION)
    ),
    InvalidInput(
        "two windows",
        ValueError,
        "sliding_window",
        _only(_limits(4, None), _limits(None, None), _limits(5, None)),
    ),
    InvalidInput(
        "two chunk sizes",
        ValueError,
        "attention_chunk_size",
        _only(_limits(None, 4), _limits(None, None), _limits(None, 5)),
    ),
    InvalidInput(
        "a window and a chunk size",
        ValueError,
        "sliding_window",
        _only(_limits(None, 4), _limits(4, None)),
    ),
    InvalidInput("one with both", ValueError, "sliding_window", _only(_limits(4, 4))),
    InvalidInput(
        "MLA among Full",
        ValueError,
        "specs",
        _with_other(_as_kind("MLAAttentionSpec"), "FullAttentionSpec"),
    ),
    InvalidInput(
        "an engine's own kind of MLA among Full",
        ValueError,
        "specs",
        _with_other(
            lambda spec: EngineSpec(_as_kind("MLAAttentionSpec")(spec)), "FullAttentionSpec"
        ),
    ),
    InvalidInput(
        "Full among MLA",
        ValueError,
        "specs",
        _with_other(_as_kind("FullAttentionSpec"), "MLAAttentionSpec"),
    ),
    InvalidInput(
        "a window's spec among Full",
        ValueError,
        "specs",
        _with_other(_as_kind("SlidingWindowSpec", sliding_window=4), "FullAttentionSpec"),
    ),
    InvalidInput(
        "another cache_dtype_str",
        ValueError,
        "(specs|cache_dtype_str)",
        _with_other(
            lambda spec: dataclasses.replace(spec, cache_dtype_str=f"{spec.cache_dtype_str}x"),
            "MLAAttentionSpec",
        ),
    ),
    InvalidInput(
        "one with another window",
        ValueError,
        "(specs|sliding_window)",
        _with_other(_other("sliding_window"), "SlidingWindowSpec"),
        also=str(UNLIKE),
    ),
    InvalidInput(
        "one of another kind and the same fields",
        ValueError,
        "specs",
        _with_other(_as_kind("EncoderOnlyAttentionSpec"), "AttentionSpec", "CrossAttentionSpec"),
    ),
]


def _first_is(spec: Any) -> Change:
    """Return a fault: the first spec is of a kind that is never uniform."""

    def breaks(call: Call) -> Call:
        block_size = next(iter(call.arguments["specs"].values())).block_size
        return call.replacing(specs={"layers.7.attn": spec.copy_with_new_block_size(block_size)})

    return breaks


UNIFORM_TYPE_INVALID_INPUTS = [
    *specs_dict_faults("specs"),
    *(
        InvalidInput(
            f"the first is a {type(spec).__name__}",
            NotImplementedError,
            type(spec).__name__,
            _first_is(spec),
        )
        for spec in (
            reference.KVCacheSpec(2),
            SPEC,
            reference.EncoderOnlyAttentionSpec(2, 1, 1, np.float16),
            reference.UniformTypeKVCacheSpecs(2, {"a": SPEC}),
        )
    ),
]

"""Invalid inputs of what merges the specs of a group's layers, and tells if they are uniform."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import reference
from conformance.calls import Call
from conformance.contracts import Change, InvalidInput
from conformance.factories import Factory, FactoryContext
from conformance.invalid_inputs.changes import changed, refusals, replaced, showing
from conformance.invalid_inputs.kinds import List, invalid_by_kind
from conformance.invalid_inputs.kv_cache_spec import SPEC, invalid_specs, of_kinds
from conformance.strategies.kv_cache_spec import ATTENTION, EXAMPLES, FULL

UNLIKE = 977
"""A size that no drawn spec has: a refusal must show it."""


def _with_other(change: Callable[[Any], Any]) -> Change:
    """Return the change that merges the specs with one more."""
    return changed("specs", lambda specs: [*specs, change(specs[0])])


def _limits(window: int | None, chunk: int | None) -> Callable[[Any], Any]:
    return lambda spec: dataclasses.replace(spec, sliding_window=window, attention_chunk_size=chunk)


def _only(*changes: Callable[[Any], Any]) -> Change:
    """Return the change that merges copies of one spec."""
    return changed("specs", lambda specs: [change(specs[0]) for change in changes])


def _of_kinds(*kinds: str, **changes: Mapping[str, Change]) -> list[InvalidInput]:
    """Return what is refused of specs of some kinds."""
    return of_kinds(
        kinds,
        refusals(ValueError, **changes),
        lambda call: call.function.split(".", maxsplit=1)[0],
        lambda kind: Call(f"{kind}.merge", {"specs": [EXAMPLES[kind]]}),
    )


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
class EngineSpec(Factory):
    """A spec of a class of an engine's own, which extends the implementation's.

    Attributes:
        spec: What it is otherwise.
    """

    spec: Any

    def make(self, converter: FactoryContext) -> Any:
        """Return the spec."""
        converted = converter.convert(self.spec, "spec")
        cls = type(f"Engine{type(converted).__name__}", (type(converted),), {})
        return cls(**vars(converted))


OTHER_SIZES = {
    f"(specs|{field})": {f"another {field}": _with_other(_other(field))}
    for field in ("num_kv_heads", "head_size")
}

MERGE_INVALID_INPUTS = [
    *invalid_by_kind(specs=List()),
    *refusals(ValueError, specs={"there are no specs": replaced("specs", [])}),
    *refusals(
        TypeError,
        specs={
            "an entry is None": changed("specs", lambda specs: [*specs, None]),
            "the first is a class": changed("specs", lambda specs: [type(specs[0])]),
        },
    ),
    *showing(
        str(UNLIKE),
        [
            *refusals(
                ValueError,
                **{
                    "(specs|block_size)": {
                        "another block size": _with_other(
                            lambda spec: spec.copy_with_new_block_size(UNLIKE)
                        )
                    }
                },
            ),
            *_of_kinds(*ATTENTION, **OTHER_SIZES),
            *_of_kinds(
                "SlidingWindowSpec",
                **{
                    "(specs|sliding_window)": {
                        "one with another window": _with_other(_other("sliding_window"))
                    }
                },
            ),
        ],
    ),
    *_of_kinds(*ATTENTION, **{"(specs|dtype)": {"another dtype": _with_other(_another_dtype)}}),
    *_of_kinds(
        *FULL,
        sliding_window={
            "two windows": _only(_limits(4, None), _limits(None, None), _limits(5, None)),
            "a window and a chunk size": _only(_limits(None, 4), _limits(4, None)),
            "one with both": _only(_limits(4, 4)),
        },
        attention_chunk_size={
            "two chunk sizes": _only(_limits(None, 4), _limits(None, None), _limits(None, 5))
        },
    ),
    *_of_kinds(
        "FullAttentionSpec",
        specs={
            "MLA among Full": _with_other(_as_kind("MLAAttentionSpec")),
            "an engine's own kind of MLA among Full": _with_other(
                lambda spec: EngineSpec(_as_kind("MLAAttentionSpec")(spec))
            ),
            "a window's spec among Full": _with_other(
                _as_kind("SlidingWindowSpec", sliding_window=4)
            ),
        },
    ),
    *_of_kinds(
        "MLAAttentionSpec",
        specs={"Full among MLA": _with_other(_as_kind("FullAttentionSpec"))},
        **{
            "(specs|cache_dtype_str)": {
                "another cache_dtype_str": _with_other(
                    lambda spec: dataclasses.replace(
                        spec, cache_dtype_str=f"{spec.cache_dtype_str}x"
                    )
                )
            }
        },
    ),
    *_of_kinds(
        "AttentionSpec",
        "CrossAttentionSpec",
        specs={
            "one of another kind and the same fields": _with_other(
                _as_kind("EncoderOnlyAttentionSpec")
            )
        },
    ),
]


def _first_is(spec: Any) -> Change:
    """Return the change that puts a spec of a kind that is never uniform first."""

    def invalidate(call: Call) -> Call:
        block_size = next(iter(call.arguments["specs"].values())).block_size
        return call.replacing(specs={"layers.7.attn": spec.copy_with_new_block_size(block_size)})

    return invalidate


NEVER_UNIFORM = (
    reference.KVCacheSpec(2),
    SPEC,
    reference.EncoderOnlyAttentionSpec(2, 1, 1, np.float16),
    reference.UniformTypeKVCacheSpecs(2, {"a": SPEC}),
)

UNIFORM_TYPE_INVALID_INPUTS = [
    *invalid_specs("specs"),
    *refusals(
        NotImplementedError,
        **{
            type(spec).__name__: {f"the first is a {type(spec).__name__}": _first_is(spec)}
            for spec in NEVER_UNIFORM
        },
    ),
]

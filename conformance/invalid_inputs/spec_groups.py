"""Invalid inputs of the functions that merge a group's specs, or check that they are uniform."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import reference
from conformance.contracts.contract import Change, InvalidInput
from conformance.invalid_inputs.changes import Refusals, change_maker, changed, refusals
from conformance.invalid_inputs.kinds import List, invalid_by_kind
from conformance.invalid_inputs.kv_cache_spec import SPEC, invalid_specs, of_kinds
from conformance.strategies.kv_cache_spec import ATTENTION, EXAMPLES, FULL
from conformance.targets.factories import Factory, FactoryContext
from conformance.values.call import Call

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


def _of_kinds(tables: Mapping[tuple[str, ...], Refusals], also: str = "") -> list[InvalidInput]:
    """Return the invalid inputs of specs of some kinds, from tables by kinds."""

    def example(kind: str) -> Call:
        return Call(f"{kind}.merge", {"specs": [EXAMPLES[kind]]})

    return [
        invalid
        for kinds, table in tables.items()
        for invalid in of_kinds(kinds, refusals(table, also=also), example=example)
    ]


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
    """A factory of a spec of an engine's own subclass of the implementation's class.

    Attributes:
        spec: The spec of the base class, with the same fields.
    """

    spec: Any

    def make(self, converter: FactoryContext) -> Any:
        """Return the spec."""
        converted = converter.convert(self.spec, "spec")
        cls = type(f"Engine{type(converted).__name__}", (type(converted),), {})
        return cls(**vars(converted))


INVALID_SPECS: Refusals = {
    (ValueError, "specs"): {"there are no specs": []},
    (TypeError, "specs"): {
        "an entry is None": _with_other(lambda _: None),
        "the first is a class": _only(type),
    },
}

UNLIKE_BLOCK_SIZE = _with_other(lambda spec: spec.copy_with_new_block_size(UNLIKE))

UNLIKE_SIZES: dict[tuple[str, ...], Refusals] = {
    ATTENTION: {
        (ValueError, f"(specs|{field})"): {f"another {field}": _with_other(_other(field))}
        for field in ("num_kv_heads", "head_size")
    },
    ("SlidingWindowSpec",): {
        (ValueError, "(specs|sliding_window)"): {
            "one with another window": _with_other(_other("sliding_window"))
        }
    },
}

UNLIKE_SPECS: dict[tuple[str, ...], Refusals] = {
    ATTENTION: {(ValueError, "(specs|dtype)"): {"another dtype": _with_other(_another_dtype)}},
    FULL: {
        (ValueError, "sliding_window"): {
            "two windows": _only(_limits(4, None), _limits(None, None), _limits(5, None)),
            "a window and a chunk size": _only(_limits(None, 4), _limits(4, None)),
            "one with both": _only(_limits(4, 4)),
        },
        (ValueError, "attention_chunk_size"): {
            "two chunk sizes": _only(_limits(None, 4), _limits(None, None), _limits(None, 5))
        },
    },
    ("FullAttentionSpec",): {
        (ValueError, "specs"): {
            "MLA among Full": _with_other(_as_kind("MLAAttentionSpec")),
            "an engine's own kind of MLA among Full": _with_other(
                lambda spec: EngineSpec(_as_kind("MLAAttentionSpec")(spec))
            ),
            "a window's spec among Full": _with_other(
                _as_kind("SlidingWindowSpec", sliding_window=4)
            ),
        }
    },
    ("MLAAttentionSpec",): {
        (ValueError, "specs"): {"Full among MLA": _with_other(_as_kind("FullAttentionSpec"))},
        (ValueError, "(specs|cache_dtype_str)"): {
            "another cache_dtype_str": _with_other(
                lambda spec: dataclasses.replace(spec, cache_dtype_str=f"{spec.cache_dtype_str}x")
            )
        },
    },
    ("AttentionSpec", "CrossAttentionSpec"): {
        (ValueError, "specs"): {
            "one of another kind and the same fields": _with_other(
                _as_kind("EncoderOnlyAttentionSpec")
            )
        }
    },
}

MERGE_INVALID_INPUTS = [
    *invalid_by_kind(specs=List()),
    *refusals(INVALID_SPECS),
    *refusals(
        {(ValueError, "(specs|block_size)"): {"another block size": UNLIKE_BLOCK_SIZE}},
        also=str(UNLIKE),
    ),
    *_of_kinds(UNLIKE_SIZES, also=str(UNLIKE)),
    *_of_kinds(UNLIKE_SPECS),
]


@change_maker
def _first_is(call: Call, spec: Any) -> Call:
    """Replace the specs with one of a kind that is never uniform."""
    block_size = next(iter(call.arguments["specs"].values())).block_size
    return call.replacing(specs={"layers.7.attn": spec.copy_with_new_block_size(block_size)})


NEVER_UNIFORM = (
    reference.KVCacheSpec(2),
    SPEC,
    reference.EncoderOnlyAttentionSpec(2, 1, 1, np.float16),
    reference.UniformTypeKVCacheSpecs(2, {"a": SPEC}),
)

FIRST_SPECS: Refusals = {
    (NotImplementedError, type(spec).__name__): {
        f"the first is a {type(spec).__name__}": _first_is(spec)
    }
    for spec in NEVER_UNIFORM
}

UNIFORM_TYPE_INVALID_INPUTS = [*invalid_specs("specs"), *refusals(FIRST_SPECS)]

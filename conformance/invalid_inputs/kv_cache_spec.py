"""Invalid inputs of the constructors and methods of KV cache specs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import reference
from conformance.contracts.contract import Change, InvalidInput
from conformance.invalid_inputs.changes import (
    Refusals,
    change_maker,
    changed,
    refusals,
    set_arguments,
)
from conformance.invalid_inputs.kinds import Dict, Dtype, Int, Str, invalid_by_kind
from conformance.strategies.kv_cache_spec import ATTENTION, EXAMPLES, FULL, UNIFORM, class_of
from conformance.values.call import Call

SPEC = reference.AttentionSpec(2, 1, 1, np.float16)
"""A spec of a kind that cannot be uniform."""


def of_kinds(
    kinds: Sequence[str],
    invalid_inputs: Iterable[InvalidInput],
    kind_of: Callable[[Call], str] = class_of,
    example: Callable[[str], Call] = lambda kind: Call(kind, vars(EXAMPLES[kind])),
) -> list[InvalidInput]:
    """Return invalid inputs that only some kinds of specs have.

    A run rarely draws one of a dozen kinds, so an example replaces one in eight other calls.

    Args:
        kinds: The kinds.
        invalid_inputs: The invalid inputs of calls of these kinds.
        kind_of: Returns the kind of a call, whose source is a drawn seed.
        example: Returns a call of a kind.
    """

    @change_maker
    def of_kind(call: Call, invalid: InvalidInput) -> Call | None:
        if kind_of(call) in kinds:
            return invalid.change(call)
        chance = zlib.crc32(f"{call.source} {invalid.name}".encode())
        kind = kinds[chance // 8 % len(kinds)]
        is_taken = chance % 8 == 0
        return invalid.change(replace(example(kind), source=call.source)) if is_taken else None

    return [replace(invalid, change=of_kind(invalid)) for invalid in invalid_inputs]


LIMITS = Int(is_optional=True)

ATTENTION_INVALID_INPUTS = [
    *invalid_by_kind(block_size=Int()),
    *of_kinds(ATTENTION, invalid_by_kind(num_kv_heads=Int(), head_size=Int(), dtype=Dtype())),
    *of_kinds(("SlidingWindowSpec",), invalid_by_kind(sliding_window=Int())),
    *of_kinds(("ChunkedLocalAttentionSpec",), invalid_by_kind(attention_chunk_size=Int())),
    *(
        replace(invalid, name=f"{invalid.name}, of full attention")
        for invalid in of_kinds(
            FULL, invalid_by_kind(sliding_window=LIMITS, attention_chunk_size=LIMITS)
        )
    ),
    *of_kinds(("MLAAttentionSpec",), invalid_by_kind(cache_dtype_str=Str(is_optional=True))),
]


def _first(argument: str, *values: object) -> Change:
    """Return the change that replaces the first entry of a sequence with values."""
    return changed(argument, lambda entries: (*values, *entries[1:]))


def _too_small_page(call: Call) -> Call | None:
    spec = reference.MambaSpec(**{**call.arguments, "page_size_padded": None})
    minimum = spec.page_size_bytes
    return call.replacing(page_size_padded=minimum - 1) if minimum > 1 else None


MAMBA_REFUSALS: Refusals = {
    (TypeError, "shapes"): {
        "shapes is an int": 4,
        "shapes is None": None,
        "a shape is an int": _first("shapes", 4),
        "a shape is an array": _first("shapes", np.array([2, 3])),
        "a length is a bool": _first("shapes", (True,)),
        "a length is a float": _first("shapes", (2.0,)),
    },
    (TypeError, "dtypes"): {
        "dtypes is a dtype": np.dtype(np.int8),
        "dtypes is None": None,
    },
    (ValueError, "page_size_padded"): {"page_size_padded is a byte too small": _too_small_page},
    (ValueError, "shapes"): {
        "a length is 0": _first("shapes", (2, 0)),
        "a length is negative": _first("shapes", (-1, -1)),
        "a shape too many": _first("shapes", (1,), (1,)),
        "no states": set_arguments(shapes=(), dtypes=(), page_size_padded=1),
    },
    (ValueError, "dtypes"): {"a dtype too many": _first("dtypes", np.int8, np.int8)},
}

MAMBA_INVALID_INPUTS = [
    *invalid_by_kind(
        block_size=Int(),
        page_size_padded=Int(is_optional=True),
        num_speculative_blocks=Int(0),
        mamba_type=Str(),
        **{"dtypes[0]": Dtype()},
    ),
    *refusals(MAMBA_REFUSALS),
]


def invalid_specs(argument: str) -> list[InvalidInput]:
    """Return the invalid inputs of an argument that is a dict of specs by layer name."""

    def with_spec(spec: object) -> Change:
        return changed(argument, lambda specs: {**specs, "layers.7.attn": spec})

    wrong_specs: Refusals = {
        (ValueError, argument): {f"{argument} is empty": {}},
        (TypeError, argument): {
            "a spec is None": with_spec(None),
            "a spec is a dict": with_spec({}),
            "a spec is a class": with_spec(reference.FullAttentionSpec),
        },
    }
    return [*invalid_by_kind(**{argument: Dict(has_str_keys=True)}), *refusals(wrong_specs)]


def _unlike_block_size(call: Call) -> Call:
    name, spec = list(call.arguments["kv_cache_specs"].items())[-1]
    other = spec.copy_with_new_block_size(spec.block_size + 1)
    return call.replacing(kv_cache_specs={"layers.7.attn": other, name: spec})


UNIFORM_INVALID_INPUTS = [
    *invalid_by_kind(block_size=Int()),
    *invalid_specs("kv_cache_specs"),
    *refusals(
        {(ValueError, "kv_cache_specs"): {"a spec of another block size": _unlike_block_size}}
    ),
]

COPY_INVALID_INPUTS = invalid_by_kind(block_size=Int())


def abstract_specs(method: str, *specs: Any, **arguments: Any) -> list[InvalidInput]:
    """Return the invalid inputs of a method that the classes of some specs do not define."""

    def calling(spec: Any) -> Change:
        return lambda _: Call(f"{type(spec).__name__}.{method}", {"self": spec, **arguments})

    names = {type(spec).__name__: spec for spec in specs}
    table: Refusals = {
        (NotImplementedError, name): {f"{name} does not say it": calling(spec)}
        for name, spec in names.items()
    }
    return refusals(table)


INNER = reference.UniformTypeKVCacheSpecs(16, {"a": reference.KVCacheSpec(16)})

ABSTRACT_INNER: Refusals = {
    (NotImplementedError, "KVCacheSpec"): {
        "an inner spec does not say it": lambda _: Call(
            f"{UNIFORM}.page_size_bytes", {"self": INNER}
        )
    }
}

PAGE_SIZE_INVALID_INPUTS = [
    *abstract_specs("page_size_bytes", reference.KVCacheSpec(16)),
    *refusals(ABSTRACT_INNER),
]

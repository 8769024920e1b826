"""Bad calls of specs: of their classes, and of their methods."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import reference
from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.arrays import changed
from conformance.strategies.kv_cache_spec import ATTENTION, EXAMPLES, FULL, UNIFORM

SPEC = reference.AttentionSpec(2, 1, 1, np.float16)
"""Some spec, of no kind that can be uniform."""

Bad = tuple[str, type[Exception], object]
"""What is wrong with a value, the error that it gets, and the value."""

NO_INTS: tuple[Bad, ...] = (
    ("a bool", TypeError, True),
    ("NumPy's bool", TypeError, np.True_),
    ("a float", TypeError, 2.0),
    ("a str", TypeError, "2"),
)


def bad_ints(least: int = 1, *, may_be_none: bool = False) -> tuple[Bad, ...]:
    """Return values that are no ints, or less than the least."""
    bad = (f"{least - 1}", ValueError, least - 1), ("far too small", ValueError, -(2**40))
    return (*bad, *NO_INTS) if may_be_none else (*bad, *NO_INTS, ("None", TypeError, None))


BAD_DTYPES: tuple[Bad, ...] = (
    ("a str", TypeError, "float16"),
    ("a type of Python's", TypeError, float),
    ("a dtype of objects", TypeError, np.dtype(object)),
    ("a dtype of two fields", TypeError, np.dtype([("a", np.int8), ("b", np.int8)])),
    ("None", TypeError, None),
)

NO_STR: tuple[Bad, ...] = (("bytes", TypeError, b"auto"), ("an int", TypeError, 8))


def guest(call: Call, kinds: Sequence[str], fault: object) -> str | None:
    """Return the kind whose example is to be broken in the place of a call; mostly none.

    Of a dozen kinds a run may draw one but rarely, and all its faults with it.

    Args:
        call: The call; its facts are the chance that was drawn.
        kinds: The kinds that have the fault.
        fault: What tells it from others.
    """
    chance = zlib.crc32(f"{call.facts} {fault}".encode())
    return None if chance % 8 else kinds[chance // 8 % len(kinds)]


def field_faults(field: str, bad: Sequence[Bad], *, of: Sequence[str] = ()) -> list[InvalidInput]:
    """Return the faults of one argument, of a call that makes one of some kinds (none: of any)."""

    def breaks(value: object) -> Change:
        def broken(call: Call) -> Call | None:
            if of and call.function not in of:
                kind = guest(call, of, (field, value))
                call = Call(str(kind), vars(EXAMPLES[kind])) if kind else call
            return None if of and call.function not in of else call.replacing(**{field: value})

        return broken

    return [
        InvalidInput(f"{field} is {what}", error, field, breaks(value))
        for what, error, value in bad
    ]


ATTENTION_INVALID_INPUTS = [
    *field_faults("block_size", bad_ints()),
    *field_faults("num_kv_heads", bad_ints(), of=(*ATTENTION,)),
    *field_faults("head_size", bad_ints(), of=(*ATTENTION,)),
    *field_faults("dtype", BAD_DTYPES, of=(*ATTENTION,)),
    *field_faults("sliding_window", bad_ints(may_be_none=True), of=(*FULL, "SlidingWindowSpec")),
    *(
        InvalidInput(f"{field} is None where there must be one", TypeError, field, fault.change)
        for field, kind in (
            ("sliding_window", "SlidingWindowSpec"),
            ("attention_chunk_size", "ChunkedLocalAttentionSpec"),
        )
        for fault in field_faults(field, [("None", TypeError, None)], of=(kind,))
    ),
    *field_faults(
        "attention_chunk_size",
        bad_ints(may_be_none=True),
        of=(*FULL, "ChunkedLocalAttentionSpec"),
    ),
    *field_faults("cache_dtype_str", NO_STR, of=("MLAAttentionSpec",)),
]


def _first(argument: str, *values: object) -> Change:
    """Return a fault that puts values in the place of the first entry of a sequence."""
    return changed(argument, lambda entries: (*values, *entries[1:]))


def _too_small_page(call: Call) -> Call | None:
    spec = reference.MambaSpec(**{**call.arguments, "page_size_padded": None})
    least = spec.page_size_bytes
    return call.replacing(page_size_padded=least - 1) if least > 1 else None


MAMBA_INVALID_INPUTS = [
    *field_faults("block_size", bad_ints()),
    *field_faults("page_size_padded", bad_ints(may_be_none=True)),
    InvalidInput(
        "page_size_padded is a byte too small", ValueError, "page_size_padded", _too_small_page
    ),
    *field_faults("num_speculative_blocks", bad_ints(0)),
    *field_faults("mamba_type", (*NO_STR, ("None", TypeError, None))),
    *field_faults("shapes", (("an int", TypeError, 4), ("None", TypeError, None))),
    InvalidInput("a shape is an int", TypeError, "shapes", _first("shapes", 4)),
    InvalidInput("a shape is an array", TypeError, "shapes", _first("shapes", np.array([2, 3]))),
    InvalidInput("a length is 0", ValueError, "shapes", _first("shapes", (2, 0))),
    InvalidInput("a length is negative", ValueError, "shapes", _first("shapes", (-1, -1))),
    InvalidInput("a length is a bool", TypeError, "shapes", _first("shapes", (True,))),
    InvalidInput("a length is a float", TypeError, "shapes", _first("shapes", (2.0,))),
    InvalidInput("a shape too many", ValueError, "shapes", _first("shapes", (1,), (1,))),
    InvalidInput("a dtype too many", ValueError, "dtypes", _first("dtypes", np.int8, np.int8)),
    InvalidInput(
        "no states",
        ValueError,
        "shapes",
        lambda call: call.replacing(shapes=(), dtypes=(), page_size_padded=1),
    ),
    *field_faults("dtypes", (("a dtype", TypeError, np.dtype(np.int8)), ("None", TypeError, None))),
    *(
        InvalidInput(f"a dtype is {what}", e, "dtypes", _first("dtypes", bad))
        for what, e, bad in BAD_DTYPES
    ),
]


def specs_dict_faults(argument: str) -> list[InvalidInput]:
    """Return the faults of an argument that is a dict of specs by layer name."""

    def with_entry(name: object, spec: object) -> Change:
        return changed(argument, lambda specs: {**specs, name: spec})

    return [
        InvalidInput(f"{argument} is a list", TypeError, argument, changed(argument, list)),
        InvalidInput(f"{argument} is None", TypeError, argument, replaced(argument, None)),
        InvalidInput(f"{argument} is empty", ValueError, argument, replaced(argument, {})),
        InvalidInput("a name is an int", TypeError, argument, with_entry(7, SPEC)),
        InvalidInput("a spec is None", TypeError, argument, with_entry("layers.7.attn", None)),
        InvalidInput("a spec is a dict", TypeError, argument, with_entry("layers.7.attn", {})),
        InvalidInput(
            "a spec is a class",
            TypeError,
            argument,
            with_entry("layers.7.attn", reference.FullAttentionSpec),
        ),
    ]


def _unlike_block_size(call: Call) -> Call:
    name, spec = list(call.arguments["kv_cache_specs"].items())[-1]
    other = spec.copy_with_new_block_size(spec.block_size + 1)
    return call.replacing(kv_cache_specs={"layers.7.attn": other, name: spec})


UNIFORM_INVALID_INPUTS = [
    *field_faults("block_size", bad_ints()),
    *specs_dict_faults("kv_cache_specs"),
    InvalidInput("a spec of another block size", ValueError, "kv_cache_specs", _unlike_block_size),
]

COPY_INVALID_INPUTS = field_faults("block_size", bad_ints())


def abstract_faults(method: str, *specs: Any, **arguments: Any) -> list[InvalidInput]:
    """Return the faults of asking specs for what their kinds do not say."""

    def breaks(spec: Any) -> Change:
        name = f"{type(spec).__name__}.{method}"
        return lambda _: Call(name, {"self": spec, **arguments})

    return [
        InvalidInput(
            f"{type(spec).__name__} does not say it",
            NotImplementedError,
            type(spec).__name__,
            breaks(spec),
        )
        for spec in specs
    ]


PAGE_SIZE_INVALID_INPUTS = [
    *abstract_faults("page_size_bytes", reference.KVCacheSpec(16)),
    InvalidInput(
        "an inner spec does not say it",
        NotImplementedError,
        "KVCacheSpec",
        lambda _: Call(
            f"{UNIFORM}.page_size_bytes",
            {"self": reference.UniformTypeKVCacheSpecs(16, {"a": reference.KVCacheSpec(16)})},
        ),
    ),
]

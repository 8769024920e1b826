"""Multimodal placeholders: embeddings are scattered to them, and gathered again."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.contracts.check import Check, property_check, same_in_any_order
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import check_equal, check_error, exception_of
from conformance.coverage.presets import MINIMAL
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.generation.profiles import Kind
from conformance.invalid_inputs.multimodal import (
    GATHER_INVALID_INPUTS,
    SANITY_INVALID_INPUTS,
    SCATTER_INVALID_INPUTS,
)
from conformance.strategies import cached as st
from conformance.strategies.multimodal import (
    ELEMENTS,
    FLOATS,
    ITEMS,
    LAYOUTS,
    NAN_BITS,
    PLACEHOLDERS,
    TOKENS,
    Rows,
    gather_calls,
    sanity_check_calls,
    scatter_calls,
    wide_calls,
)
from conformance.targets.target import REFERENCE, Target
from conformance.values.aliases import Alias, Relation
from conformance.values.call import Call
from conformance.values.comparison import as_bytes


def _rows(holds: Any) -> Any:
    return lambda call: call.source is not None and bool(holds(call.source))


def _has_run(rows: Rows) -> bool:
    """Return whether adjacent embeddings are followed by a separator and another embedding."""
    text = "".join("x" if entry else "." for entry in rows.mask)
    return "xx.x" in text


def _is_seen(rows: Rows) -> bool:
    return bool(rows.mask and rows.embed_dim)


ROW_GOALS: dict[str, Any] = {
    "no mask": lambda call: call.source is None,
    "no placeholders": _rows(lambda rows: not rows.mask),
    "no embeddings": _rows(lambda rows: rows.mask and not any(rows.mask)),
    "embeddings alone": _rows(lambda rows: all(rows.mask) and len(rows.mask) > 1),
    "one embedding": _rows(lambda rows: sum(rows.mask) == 1 and len(rows.mask) > 1),
    "runs with separators": _rows(_has_run),
    "a separator first": _rows(lambda rows: any(rows.mask) and not rows.mask[0]),
    "embeddings of no elements": _rows(lambda rows: not rows.embed_dim),
    "more placeholders than a tile": _rows(lambda rows: len(rows.mask) > 16),
    "rows of whole 16 bytes": _rows(lambda r: _is_seen(r) and r.row_bytes % 16 == 0),
    "rows of another number of bytes": _rows(lambda r: _is_seen(r) and r.row_bytes % 16),
    "rows of an odd number of bytes": _rows(lambda r: _is_seen(r) and r.row_bytes % 2),
    **{f"rows that lie {name}": _rows(lambda r, n=name: r.layout == n) for name in LAYOUTS},
    **{
        f"rows of {dtype.name}": _rows(lambda r, d=dtype: any(r.mask) and r.dtype == d)
        for dtype in FLOATS
    },
    "a strided mask": lambda call: call.source is not None and call["is_embed"].strides[0] > 1,
    "out is given": lambda call: "out" in call,
    "out is given, and no mask": lambda call: call.source is None and "out" in call,
    "out begins at no multiple of 16 bytes": lambda call: bool(
        "out" in call and call["out"].ctypes.data % 16
    ),
}

PAIRS = (
    ("rows that lie one element on", "rows of whole 16 bytes"),
    ("rows that lie wide rows", "rows of whole 16 bytes"),
    ("runs with separators", "more placeholders than a tile"),
    ("out begins at no multiple of 16 bytes", "rows of whole 16 bytes"),
)


ROW_AXES = {
    PLACEHOLDERS: Axis(lambda call: len(call.source.mask)),
    ELEMENTS: Axis(lambda call: call.source.embed_dim),
}


def _has_no_mask(call: Call) -> bool:
    return call.source is None and "out" not in call


OUT = Alias("", Relation.SAME, "out", lambda call: "out" in call)


test_scatter_mm_placeholders = Contract(
    "scatter_mm_placeholders",
    scatter_calls,
    ROW_GOALS,
    axes=ROW_AXES,
    pairs=PAIRS,
    invalid_inputs=SCATTER_INVALID_INPUTS,
    changes=frozenset({"out"}),
    aliases=(Alias("", Relation.SAME, "embeds", _has_no_mask), OUT),
    has_kernel=True,
    on_device=("is_embed", "out"),
    has_arrays=True,
)


test_gather_mm_placeholders = Contract(
    "gather_mm_placeholders",
    gather_calls,
    {
        **ROW_GOALS,
        "rows that hold no NaN": _rows(lambda rows: rows.dtype not in NAN_BITS),
        "the number of embeddings is reported": lambda call: bool(call.hints),
        "it must be counted": lambda call: (
            call.source is not None and not call.hints and "out" not in call
        ),
    },
    axes=ROW_AXES,
    pairs=PAIRS,
    invalid_inputs=GATHER_INVALID_INPUTS,
    changes=frozenset({"out"}),
    aliases=(Alias("", Relation.SAME, "placeholders", _has_no_mask), OUT),
    has_kernel=True,
    on_device=("is_embed", "out"),
    has_arrays=True,
)


test_sanity_check_mm_encoder_outputs = Contract(
    "sanity_check_mm_encoder_outputs",
    sanity_check_calls,
    {
        "no items": lambda call: not len(call["mm_embeddings"]),
        "a list": lambda call: isinstance(call["mm_embeddings"], list),
        "a tuple": lambda call: isinstance(call["mm_embeddings"], tuple),
        "one array": lambda call: isinstance(call["mm_embeddings"], np.ndarray),
        "several items": lambda call: len(call["mm_embeddings"]) > 1,
        "an item of no tokens": lambda call: any(not len(item) for item in call["mm_embeddings"]),
    },
    axes={
        ITEMS: Axis(
            lambda call: len(call["mm_embeddings"]), 4097, "65,537 tensors take eight seconds"
        ),
        TOKENS: Axis(lambda call: max(map(len, call["mm_embeddings"]), default=0)),
    },
    invalid_inputs=SANITY_INVALID_INPUTS,
    has_fixed_arrays=True,
)


@property_check("gather_mm_placeholders", scatter_calls, has_kernel=True)
def test_gather_undoes_scatter(target: Target, call: Call) -> None:
    """Gathering returns the scattered embeddings bit for bit."""
    invocation = Invocation(target, call)
    gather = target.lookup("gather_mm_placeholders")
    with target.running(checked=True):
        placeholders = invocation.run()
        gathered = [gather(placeholders, invocation.arguments["is_embed"])]
    if call.source is not None:
        with target.running():
            gathered.append(gather(placeholders.clone(), invocation.arguments["is_embed"]))
    for found in gathered:
        check_equal(target, call, call["embeds"], found, "gathered")


@property_check("scatter_mm_placeholders", scatter_calls, has_kernel=True)
def test_what_is_no_embedding_is_nan(target: Target, call: Call) -> None:
    """Rows are NaN, of one bit pattern per dtype, if the mask is False, and embeddings if True."""
    rows = call.source
    if rows is None:
        return
    found = as_bytes(Invocation(target, call).answer())
    found = found.reshape(len(rows.mask), rows.row_bytes)
    nan = NAN_BITS[rows.dtype].to_bytes(rows.dtype.itemsize, "little") * rows.embed_dim
    embeds = iter(as_bytes(call["embeds"]).reshape(sum(rows.mask), rows.row_bytes))
    for row, is_embed in zip(found, rows.mask, strict=True):
        assert (next(embeds).tobytes() if is_embed else nan) == row.tobytes()


@property_check(
    "gather_mm_placeholders",
    lambda _: st.integers(1, 3),
    presets=[MINIMAL],
    has_kernel=True,
    tests_invalid_inputs=True,
)
def test_out_may_not_be_the_mask(target: Target, example: int) -> None:
    """In checked mode an `out` that shares memory with the mask is refused."""
    mask = target.array(np.ones(example, np.bool_))
    placeholders = target.array(np.ones((example, 1), np.bool_))
    gather = target.lookup("gather_mm_placeholders")
    with target.running(checked=True):
        error = exception_of(lambda: gather(placeholders, mask, out=mask.reshape(example, 1)))
    call = Call("gather_mm_placeholders", {"placeholders": placeholders, "is_embed": mask})
    check_error(target, call, error, (ValueError, "out"), "out is the memory of is_embed")


def _all_bytes(rows: Any) -> bytes:
    return as_bytes(rows).tobytes()


test_any_order_of_threads_scatters_alike = same_in_any_order(
    "scatter_mm_placeholders", scatter_calls, _all_bytes
)
test_any_order_of_threads_gathers_alike = same_in_any_order(
    "gather_mm_placeholders", gather_calls, _all_bytes
)


def _blocks_share_a_row(function: str) -> Check:
    """Return the check of a function with rows that several blocks of threads share."""

    @property_check(function, lambda _: wide_calls(function), has_kernel=True, kind=Kind.LARGE)
    def blocks_share_a_row(target: Target, call: Call) -> None:
        """Rows of 4099 single bytes, which blocks of threads share, are copied whole."""
        expected = Invocation(REFERENCE, call).run()
        check_equal(target, call, expected, Invocation(target, call).answer())

    return blocks_share_a_row


test_blocks_share_a_row_to_scatter = _blocks_share_a_row("scatter_mm_placeholders")
test_blocks_share_a_row_to_gather = _blocks_share_a_row("gather_mm_placeholders")

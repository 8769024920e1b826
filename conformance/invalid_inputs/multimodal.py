"""Invalid inputs of the functions for placeholders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from conformance.calls import Call
from conformance.contracts import Change, InvalidInput
from conformance.invalid_inputs.arrays import Array, Output, made
from conformance.invalid_inputs.changes import (
    changed,
    checked_refusals,
    hinted,
    of_hint,
    refusals,
    replaced,
    where,
)
from conformance.invalid_inputs.kinds import Int, invalid_by_kind, invalid_hint
from conformance.strategies.arrays import Array as NumpyArray

MASK, ITEMS, NUMBER = "is_embed", "mm_embeddings", "expected_num_items"


def _has_mask(call: Call) -> bool:
    """Say whether a call has a mask: without one nothing is looked at."""
    return call.facts is not None


MASK_INVALID_INPUTS = [
    *invalid_by_kind(
        **{MASK: Array([np.uint8, np.float64], ndim_error=TypeError, is_optional=True)}
    ),
    *refusals(TypeError, **{MASK: {"the mask is a bool": replaced(MASK, True)}}),
]


def _out(argument: str, num_rows: Callable[[NumpyArray], int]) -> Callable[[Call], NumpyArray]:
    """Return what makes an `out` that would do for rows of an argument."""

    def like(call: Call) -> NumpyArray:
        rows = call.arguments[argument]
        return np.zeros((num_rows(call.arguments[MASK]), rows.shape[1]), rows.dtype)

    return like


def _invalid_rows(
    argument: str, num_rows: Callable[[NumpyArray], int], *, is_counted: bool
) -> list[InvalidInput]:
    """Return the invalid inputs of rows and of `out`, which has as many rows as a mask says.

    Args:
        argument: The rows.
        num_rows: The rows of `out`, by the mask.
        is_counted: Whether these are counted in the mask's elements.
    """
    like = _out(argument, num_rows)

    def is_input(call: Call) -> Call | None:
        rows = call.arguments[argument].copy()
        is_all = len(rows) == num_rows(call.arguments[MASK]) and rows.size
        return call.replacing(**{argument: rows, "out": rows}) if is_all else None

    wider = made("out", like, lambda out: np.repeat(out, 2, 1) if out.size else None)
    out = Output(like, np.uint16, is_exact=True, is_length_value=is_counted)
    return [
        *invalid_by_kind(**{argument: Array(ndim=2), "out": out}),
        *refusals(ValueError, out={"out has wider rows": wider}),
        *checked_refusals(ValueError, out={"out is an input": is_input}),
    ]


NO_EMBEDDINGS: tuple[Any, ...] = (
    *(np.int32, np.bool_, np.complex64),
    *(ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e8m0fnu),
)
"""Dtypes without a NaN of those bits."""


def _of_dtype(dtype: Any) -> Change:
    return changed("embeds", lambda a: np.zeros(a.shape, dtype))


def _num_rows(change: Callable[[int, int], int | None]) -> Change:
    """Return the change of the number of embeddings, by it and the mask's length."""

    def invalidate(call: Call) -> Call | None:
        embeds = call.arguments["embeds"]
        number = change(len(embeds), len(call.arguments[MASK]))
        if number is None:
            return None
        bad = np.resize(embeds, (number, embeds.shape[1])).astype(embeds.dtype)
        return call.replacing(embeds=bad)

    return invalidate


SCATTER_INVALID_INPUTS = where(
    _has_mask,
    [
        *MASK_INVALID_INPUTS,
        *_invalid_rows("embeds", len, is_counted=False),
        *refusals(
            TypeError,
            embeds={
                f"embeds is {np.dtype(dtype).name}": _of_dtype(dtype) for dtype in NO_EMBEDDINGS
            },
        ),
        *refusals(
            ValueError,
            embeds={
                "there are more embeddings than placeholders": _num_rows(lambda _, mask: mask + 1)
            },
        ),
        *checked_refusals(
            ValueError,
            **{
                MASK: {
                    "an embedding is missing": _num_rows(lambda n, _: n - 1 if n else None),
                    "one embedding for all": _num_rows(lambda n, _: 1 if n > 1 else None),
                    "an embedding is left": _num_rows(lambda n, mask: n + 1 if n < mask else None),
                }
            },
        ),
    ],
)


def _length(step: int) -> Change:
    """Return the change of the mask's length by so much."""

    def change(mask: NumpyArray) -> NumpyArray | None:
        length = len(mask) + step
        return None if length < 0 else np.resize(mask, length).astype(np.bool_)

    return changed(MASK, change)


HINT = "num_embeds"


def _hinted(change: Callable[[int, int], object]) -> Change:
    """Return the change of the hint, by it and the mask's length."""
    return lambda call: hinted(HINT, lambda n: change(n, len(call.arguments[MASK])))(call)


GATHER_INVALID_INPUTS = where(
    _has_mask,
    [
        *MASK_INVALID_INPUTS,
        *_invalid_rows("placeholders", lambda mask: int(mask.sum()), is_counted=True),
        *refusals(
            ValueError,
            **{MASK: {"the mask is too short": _length(-1), "the mask is too long": _length(1)}},
        ),
        *invalid_hint(HINT, Int(0, is_optional=True)),
        *of_hint(
            refusals(
                ValueError,
                **{HINT: {"hint: more than placeholders": _hinted(lambda _, mask: mask + 1)}},
            )
        ),
        *of_hint(
            checked_refusals(
                ValueError,
                **{
                    HINT: {
                        "hint: one too few": _hinted(lambda n, _: n - 1 if n else None),
                        "hint: one too many": _hinted(lambda n, mask: n + 1 if n < mask else None),
                        "hint: all": _hinted(lambda n, mask: mask if n < mask else None),
                    }
                },
            )
        ),
    ],
)


def _item(bad: Any) -> Change:
    """Return the change of the last item, of several that are not arrays."""
    change = replaced(f"{ITEMS}[-1]", bad)
    return lambda call: None if isinstance(call.arguments[ITEMS], np.ndarray) else change(call)


def _number(step: int) -> Change:
    return changed(NUMBER, lambda n: n + step if n + step >= 0 else None)


WRONG_SHAPES = {
    "the last item is a vector": _item(np.zeros(3)),
    "the last item has three axes": _item(np.zeros((1, 3, 2))),
    "one array of two axes": replaced(ITEMS, np.zeros((2, 3))),
    "one array of four axes": replaced(ITEMS, np.zeros((2, 3, 2, 1))),
    "one array of no axes": replaced(ITEMS, np.zeros(())),
    "an item too many": _number(-1),
    "an item too few": _number(1),
}
"""What is refused with a message that names the argument, and its likely cause."""

SANITY_INVALID_INPUTS = [
    *invalid_by_kind(**{NUMBER: Int(0)}),
    *refusals(
        TypeError,
        **{
            ITEMS: {
                **{
                    f"{ITEMS} is {what}": replaced(ITEMS, bad)
                    for what, bad in (
                        ("None", None),
                        ("a dict", {}),
                        ("a set", set()),
                        ("an int", 3),
                    )
                },
                "the last item is None": _item(None),
                "the last item is a list": _item([[0.0]]),
            }
        },
    ),
    *(
        invalid
        for names in (ITEMS, "embedding method")
        for invalid in refusals(
            ValueError,
            **{
                names: {
                    f"{what}, which names {names}": change for what, change in WRONG_SHAPES.items()
                }
            },
        )
    ),
]

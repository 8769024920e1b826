"""Invalid inputs of the functions for multimodal placeholders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from conformance.arrays.guard_bands import Array as NumpyArray
from conformance.contracts.contract import Change, InvalidInput
from conformance.invalid_inputs.arrays import Array, Output, made
from conformance.invalid_inputs.changes import (
    Refusals,
    change_maker,
    changed,
    hinted,
    refusals,
    replaced,
    where,
)
from conformance.invalid_inputs.kinds import Int, invalid_by_kind, invalid_hint
from conformance.values.call import Call

MASK, ITEMS, NUMBER = "is_embed", "mm_embeddings", "expected_num_items"


def _has_mask(call: Call) -> bool:
    """Return whether a call has a mask: without one nothing is checked."""
    return call.source is not None


MASK_INVALID_INPUTS = [
    *invalid_by_kind(
        is_embed=Array([np.uint8, np.float64], ndim_error=TypeError, is_optional=True)
    ),
    *refusals({(TypeError, MASK): {"the mask is a bool": True}}),
]


def _invalid_rows(
    argument: str, num_rows: Callable[[NumpyArray], int], *, is_counted: bool
) -> list[InvalidInput]:
    """Return the invalid inputs of rows and of `out`, whose number of rows depends on the mask.

    Args:
        argument: The argument with the rows.
        num_rows: Returns the number of rows of `out` for a mask.
        is_counted: Whether it depends on the mask's elements.
    """

    def like(call: Call) -> NumpyArray:
        rows = call.arguments[argument]
        return np.zeros((num_rows(call.arguments[MASK]), rows.shape[1]), rows.dtype)

    def is_input(call: Call) -> Call | None:
        rows = call.arguments[argument].copy()
        is_all = len(rows) == num_rows(call.arguments[MASK]) and rows.size
        return call.replacing(**{argument: rows, "out": rows}) if is_all else None

    wider = made("out", like, lambda out: np.repeat(out, 2, 1) if out.size else None)
    out = Output(like, np.uint16, is_exact=True, is_length_value=is_counted)
    return [
        *invalid_by_kind(**{argument: Array(ndim=2), "out": out}),
        *refusals({(ValueError, "out"): {"out has wider rows": wider}}),
        *refusals({(ValueError, "out"): {"out is an input": is_input}}, is_value=True),
    ]


NO_EMBEDDINGS: tuple[Any, ...] = (
    *(np.int32, np.bool_, np.complex64),
    *(ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e8m0fnu),
)
"""Dtypes that embeddings cannot have."""


def _of_dtype(dtype: Any) -> Change:
    return changed("embeds", lambda a: np.zeros(a.shape, dtype))


@change_maker
def _num_rows(call: Call, change: Callable[[int, int], int | None]) -> Call | None:
    """Change the number of embeddings, given it and the mask's length."""
    embeds = call.arguments["embeds"]
    number = change(len(embeds), len(call.arguments[MASK]))
    if number is None:
        return None
    bad = np.resize(embeds, (number, embeds.shape[1])).astype(embeds.dtype)
    return call.replacing(embeds=bad)


SCATTER_REFUSALS: Refusals = {
    (TypeError, "embeds"): {
        f"embeds is {np.dtype(dtype).name}": _of_dtype(dtype) for dtype in NO_EMBEDDINGS
    },
    (ValueError, "embeds"): {
        "there are more embeddings than placeholders": _num_rows(lambda _, mask: mask + 1)
    },
}

SCATTER_VALUES: Refusals = {
    (ValueError, MASK): {
        "an embedding is missing": _num_rows(lambda n, _: n - 1 if n else None),
        "one embedding for all": _num_rows(lambda n, _: 1 if n > 1 else None),
        "an embedding is left": _num_rows(lambda n, mask: n + 1 if n < mask else None),
    }
}

SCATTER_INVALID_INPUTS = where(
    _has_mask,
    [
        *MASK_INVALID_INPUTS,
        *_invalid_rows("embeds", len, is_counted=False),
        *refusals(SCATTER_REFUSALS),
        *refusals(SCATTER_VALUES, is_value=True),
    ],
)

GATHER_REFUSALS: Refusals = {
    (ValueError, MASK): {
        "the mask is too short": changed(
            MASK, lambda mask: mask[:-1].copy() if len(mask) else None
        ),
        "the mask is too long": changed(MASK, lambda mask: np.resize(mask, len(mask) + 1)),
    }
}

HINT = "num_embeds"


@change_maker
def _hinted(call: Call, change: Callable[[int, int], object]) -> Call | None:
    """Change the hint, given it and the mask's length."""
    return hinted(HINT, lambda n: change(n, len(call.arguments[MASK])))(call)


TOO_LARGE_HINT = _hinted(lambda _, mask: mask + 1)

HINTED_VALUES: Refusals = {
    (ValueError, HINT): {
        "hint: one too few": _hinted(lambda n, _: n - 1 if n else None),
        "hint: one too many": _hinted(lambda n, mask: n + 1 if n < mask else None),
        "hint: all": _hinted(lambda n, mask: mask if n < mask else None),
    }
}

GATHER_INVALID_INPUTS = where(
    _has_mask,
    [
        *MASK_INVALID_INPUTS,
        *_invalid_rows("placeholders", lambda mask: int(mask.sum()), is_counted=True),
        *refusals(GATHER_REFUSALS),
        *invalid_hint(HINT, Int(0, is_optional=True)),
        *refusals(
            {(ValueError, HINT): {"hint: more than placeholders": TOO_LARGE_HINT}}, is_hint=True
        ),
        *refusals(HINTED_VALUES, is_hint=True, is_value=True),
    ],
)


@change_maker
def _item(call: Call, bad: Any) -> Call | None:
    """Change the last item, unless all items are one array."""
    is_array = isinstance(call.arguments[ITEMS], np.ndarray)
    return None if is_array else replaced(f"{ITEMS}[-1]", bad)(call)


def _number(step: int) -> Change:
    return changed(NUMBER, lambda n: n + step if n + step >= 0 else None)


WRONG_TYPES: Refusals = {
    (TypeError, ITEMS): {
        f"{ITEMS} is None": None,
        f"{ITEMS} is a dict": {},
        f"{ITEMS} is a set": set(),
        f"{ITEMS} is an int": 3,
        "the last item is None": _item(None),
        "the last item is a list": _item([[0.0]]),
    }
}

WRONG_SHAPES = {
    "the last item is a vector": _item(np.zeros(3)),
    "the last item has three axes": _item(np.zeros((1, 3, 2))),
    "one array of two axes": replaced(ITEMS, np.zeros((2, 3))),
    "one array of four axes": replaced(ITEMS, np.zeros((2, 3, 2, 1))),
    "one array of no axes": replaced(ITEMS, np.zeros(())),
    "an item too many": _number(-1),
    "an item too few": _number(1),
}
"""Invalid inputs whose message must contain the argument and its likely cause."""

NAMED_TWICE: Refusals = {
    (ValueError, named): {
        f"{what}, which names {named}": change for what, change in WRONG_SHAPES.items()
    }
    for named in (ITEMS, "embedding method")
}

SANITY_INVALID_INPUTS = [
    *invalid_by_kind(**{NUMBER: Int(0)}),
    *refusals(WRONG_TYPES),
    *refusals(NAMED_TWICE),
]

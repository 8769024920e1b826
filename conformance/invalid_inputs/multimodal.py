"""Bad calls of the functions for placeholders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import ml_dtypes
import numpy as np

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.arrays import changed
from conformance.strategies.arrays import Array


def _of_masked(faults: Iterable[InvalidInput]) -> list[InvalidInput]:
    """Return faults of calls with a mask: without one nothing is looked at."""

    def of_masked(fault: InvalidInput) -> InvalidInput:
        def breaks(call: Call) -> Call | None:
            return None if call.facts is None else fault.change(call)

        return dataclasses.replace(fault, change=breaks)

    return [of_masked(fault) for fault in faults]


MASK = "is_embed"

MASK_INVALID_INPUTS = [
    InvalidInput("the mask is a list", TypeError, MASK, changed(MASK, np.ndarray.tolist)),
    InvalidInput("the mask is uint8", TypeError, MASK, changed(MASK, lambda a: a.astype(np.uint8))),
    InvalidInput(
        "the mask is of floats", TypeError, MASK, changed(MASK, lambda a: a.astype(float))
    ),
    InvalidInput("the mask has two axes", TypeError, MASK, changed(MASK, lambda a: a[None].copy())),
    InvalidInput("the mask has no axes", TypeError, MASK, replaced(MASK, np.array(True))),
    InvalidInput("the mask is a bool", TypeError, MASK, replaced(MASK, True)),
]


def _rows_faults(argument: str) -> list[InvalidInput]:
    return [
        InvalidInput(f"{argument} are {what}", error, argument, breaks)
        for what, error, breaks in (
            ("a list", TypeError, changed(argument, np.ndarray.tolist)),
            ("None", TypeError, replaced(argument, None)),
            ("a vector", ValueError, changed(argument, lambda a: a.reshape(-1).copy())),
            ("of three axes", ValueError, changed(argument, lambda a: a[None].copy())),
        )
    ]


def _out_faults(argument: str, num_rows: Callable[[Array], int]) -> list[InvalidInput]:
    """Return the faults of `out`, of a function that writes so many rows for a mask."""

    def out(change: Callable[[Array], Any]) -> Change:
        def breaks(call: Call) -> Call | None:
            rows = call.arguments[argument]
            shape = (num_rows(call.arguments[MASK]), rows.shape[1])
            bad = change(np.zeros(shape, rows.dtype))
            return None if bad is None else call.replacing(out=bad)

        return breaks

    def in_pieces(rows: Array) -> Array | None:
        return np.repeat(rows, 2, axis=1)[:, ::2] if rows.size > 1 else None

    def is_input(call: Call) -> Call | None:
        rows = call.arguments[argument].copy()
        is_all = len(rows) == num_rows(call.arguments[MASK]) and rows.size
        return call.replacing(**{argument: rows, "out": rows}) if is_all else None

    return [
        *(
            InvalidInput(f"out {what}", error, "out", out(change))
            for what, error, change in (
                ("is a list", TypeError, np.ndarray.tolist),
                ("has another dtype", TypeError, lambda a: np.zeros(a.shape, np.uint16)),
                ("has one axis too many", ValueError, lambda a: a[None].copy()),
                ("has wider rows", ValueError, lambda a: np.repeat(a, 2, 1) if a.size else None),
                ("lies in pieces", ValueError, in_pieces),
            )
        ),
        InvalidInput("out is an input", ValueError, "out", is_input, is_value=True),
    ]


def _out_rows(step: int) -> Change:
    """Return a fault of the number of rows of `out`: those for a mask, and so many more."""

    def breaks(call: Call) -> Call | None:
        mask = call.arguments[MASK]
        rows = call.arguments.get("embeds")
        num_rows = len(mask) if rows is not None else int(mask.sum())
        rows = call.arguments["placeholders"] if rows is None else rows
        if num_rows + step < 0:
            return None
        return call.replacing(out=np.zeros((num_rows + step, rows.shape[1]), rows.dtype))

    return breaks


NO_EMBEDDINGS: tuple[Any, ...] = (
    *(np.int32, np.bool_, np.complex64),
    *(ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e8m0fnu),
)
"""Dtypes without a NaN of those bits."""


def _of_dtype(dtype: Any) -> Change:
    return changed("embeds", lambda a: np.zeros(a.shape, dtype))


def _num_rows(change: Callable[[int, int], int | None]) -> Change:
    """Return a fault in the number of embeddings, of that and of the mask's length."""

    def breaks(call: Call) -> Call | None:
        embeds = call.arguments["embeds"]
        bad = change(len(embeds), len(call.arguments[MASK]))
        if bad is None:
            return None
        return call.replacing(embeds=np.resize(embeds, (bad, embeds.shape[1])).astype(embeds.dtype))

    return breaks


SCATTER_INVALID_INPUTS = _of_masked(
    [
        *MASK_INVALID_INPUTS,
        *_rows_faults("embeds"),
        *_out_faults("embeds", len),
        InvalidInput("out has a row too few", ValueError, "out", _out_rows(-1)),
        InvalidInput("out has a row too many", ValueError, "out", _out_rows(1)),
        *(
            InvalidInput(f"embeds are {np.dtype(bad).name}", TypeError, "embeds", _of_dtype(bad))
            for bad in NO_EMBEDDINGS
        ),
        InvalidInput(
            "there are more embeddings than placeholders",
            ValueError,
            "embeds",
            _num_rows(lambda _, length: length + 1),
        ),
        *(
            InvalidInput(what, ValueError, MASK, _num_rows(change), is_value=True)
            for what, change in (
                ("an embedding is missing", lambda n, _: n - 1 if n else None),
                ("one embedding for all", lambda n, _: 1 if n > 1 else None),
                ("an embedding is left", lambda n, length: n + 1 if n < length else None),
            )
        ),
    ]
)


def _length(change: Callable[[int], int]) -> Change:
    def breaks(call: Call) -> Call | None:
        mask = call.arguments[MASK]
        bad = change(len(mask))
        return None if bad < 0 else call.replacing(is_embed=np.resize(mask, bad).astype(np.bool_))

    return breaks


def _hinted(change: Callable[[int, int], object]) -> Change:
    """Return a fault of the hint, of it and of the mask's length."""

    def breaks(call: Call) -> Call | None:
        if "num_embeds" not in call.hints:
            return None
        bad = change(call.hints["num_embeds"], len(call.arguments[MASK]))
        return None if bad is None else call.hinting(num_embeds=bad)

    return breaks


GATHER_INVALID_INPUTS = _of_masked(
    [
        *MASK_INVALID_INPUTS,
        *_rows_faults("placeholders"),
        *_out_faults("placeholders", lambda mask: int(mask.sum())),
        InvalidInput("out has a row too few", ValueError, "out", _out_rows(-1), is_value=True),
        InvalidInput("out has a row too many", ValueError, "out", _out_rows(1), is_value=True),
        InvalidInput("the mask is too short", ValueError, MASK, _length(lambda n: n - 1)),
        InvalidInput("the mask is too long", ValueError, MASK, _length(lambda n: n + 1)),
        *(
            InvalidInput(
                f"hint: {what}", error, "num_embeds", _hinted(change), is_value, is_hint=True
            )
            for what, error, change, is_value in (
                ("a bool", TypeError, lambda *_: True, False),
                ("a float", TypeError, lambda n, _: float(n), False),
                ("negative", ValueError, lambda *_: -1, False),
                ("more than placeholders", ValueError, lambda _, length: length + 1, False),
                ("one too few", ValueError, lambda n, _: n - 1 if n else None, True),
                ("one too many", ValueError, lambda n, m: n + 1 if n < m else None, True),
                ("all", ValueError, lambda n, m: m if n < m else None, True),
            )
        ),
    ]
)

ITEMS = "mm_embeddings"


def _item(bad: Any) -> Change:
    """Return a fault of one item of a list or tuple."""

    def breaks(call: Call) -> Call | None:
        items = call.arguments[ITEMS]
        if isinstance(items, np.ndarray) or not items:
            return None
        return call.replacing(mm_embeddings=type(items)([*items[:-1], bad]))

    return breaks


def _number(step: int) -> Change:
    def breaks(call: Call) -> Call | None:
        number = call.arguments["expected_num_items"] + step
        return None if number < 0 else call.replacing(expected_num_items=number)

    return breaks


NUMBER = "expected_num_items"

CAUSE = "embedding method"
"""What the message must tell as the likely cause."""

SANITY_INVALID_INPUTS = [
    *(
        InvalidInput(f"the embeddings are {what}", TypeError, ITEMS, replaced(ITEMS, bad))
        for what, bad in (("None", None), ("a dict", {}), ("a set", set()), ("an int", 3))
    ),
    InvalidInput("the last item is None", TypeError, ITEMS, _item(None)),
    InvalidInput("the last item is a list", TypeError, ITEMS, _item([[0.0]])),
    *(
        InvalidInput(f"{what}, which names {name}", ValueError, name, breaks)
        for name in (ITEMS, CAUSE)
        for what, breaks in (
            ("the last item is a vector", _item(np.zeros(3))),
            ("the last item has three axes", _item(np.zeros((1, 3, 2)))),
            ("one array of two axes", replaced(ITEMS, np.zeros((2, 3)))),
            ("one array of four axes", replaced(ITEMS, np.zeros((2, 3, 2, 1)))),
            ("one array of no axes", replaced(ITEMS, np.zeros(()))),
            ("an item too many", _number(-1)),
            ("an item too few", _number(1)),
        )
    ),
    *(
        InvalidInput(f"the number is {bad!r}", error, NUMBER, replaced(NUMBER, bad))
        for error, bad in ((ValueError, -1), (TypeError, True), (TypeError, 1.0), (TypeError, None))
    ),
]

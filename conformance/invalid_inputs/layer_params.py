"""Invalid inputs of the functions about the parameters of attention layers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from conformance.contracts.contract import Change
from conformance.invalid_inputs.attention_layers import (
    BAD,
    CONFIG,
    NO_MAPPING,
    UNKNOWN_NAME,
    with_layers,
)
from conformance.invalid_inputs.changes import Refusals, change_maker, changed, refusals
from conformance.invalid_inputs.kinds import Class, Dict, List, Str, invalid_by_kind
from conformance.strategies.attention_layers import ATTENTION
from conformance.strategies.layer_params import IMPL, OTHER_IMPL
from conformance.strategies.stub_factories import Own
from conformance.values.call import Call


@change_maker
def _with_layer(call: Call, /, **attributes: Any) -> Call | None:
    """Add one more layer, with these attributes, to the requested ones."""
    names = [*call.arguments["layer_names"], BAD]
    named = call.replacing(layer_names=names, cls_=IMPL)
    return with_layers({BAD: Own(ATTENTION, BAD, attributes)})(named)


def _window(window: object) -> Change:
    return _with_layer(impl=Own(IMPL, "impl", {"scale": 1.0, "sliding_window": window}))


GET_PER_LAYER_PARAMETERS_REFUSALS: Refusals = {
    (TypeError, "sliding_window"): {
        "a window is an int": _window(127),
        "a window is a str": _window("ab"),
        "a window is an array": _window(np.array([127, 0])),
        "a window is of floats": _window((127.0, 0)),
        "a window is of bools": _window((True, False)),
        "a window is of None": _window((None, None)),
    },
    (TypeError, BAD): {
        "a layer has no impl": _with_layer(),
        "a layer's impl is None": _with_layer(impl=None),
        "a layer's impl is of another class": _with_layer(
            impl=Own(OTHER_IMPL, "impl", {"scale": 1.0})
        ),
    },
    (AttributeError, "scale"): {"an impl has no scale": _with_layer(impl=Own(IMPL, "impl"))},
    (ValueError, "sliding_window"): {
        "a window is empty": _window(()),
        "a window is below -1": _window((-2, 0)),
    },
}

GET_PER_LAYER_PARAMETERS_INVALID_INPUTS = [
    *invalid_by_kind(cls_=Class(), layer_names=List(Str()), **CONFIG),
    *UNKNOWN_NAME,
    *NO_MAPPING,
    *refusals(GET_PER_LAYER_PARAMETERS_REFUSALS),
]

PARAMS = "per_layer_params"


def _with_array(field: str) -> Change:
    """Return the change to two layers, the second of which has an array for a parameter."""

    def change(params: dict[str, Any]) -> dict[str, Any]:
        name, first = next(iter(params.items()))
        return {name: first, BAD: dataclasses.replace(first, **{field: np.array([1, 2])})}

    return changed(PARAMS, change)


INFER_REFUSALS: Refusals = {
    (TypeError, PARAMS): {
        f"{PARAMS} is a tuple of pairs": changed(PARAMS, lambda p: (*p.items(),)),
        **{f"{field} is an array": _with_array(field) for field in ("window_left", "sm_scale")},
    },
    (ValueError, PARAMS): {"no layers": {}},
    (AttributeError, "window_left"): {
        "an entry is None": changed(PARAMS, lambda p: {**p, BAD: None})
    },
}

INFER_INVALID_INPUTS = [
    *invalid_by_kind(**{PARAMS: Dict()}),
    *refusals(INFER_REFUSALS),
]

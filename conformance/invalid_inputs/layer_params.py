"""Invalid inputs of the functions about what attention layers compute with."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.calls import Call
from conformance.contracts import Change
from conformance.invalid_inputs.attention_layers import BAD, CONFIG, UNKNOWN_NAME
from conformance.invalid_inputs.changes import changed, refusals
from conformance.invalid_inputs.kinds import Class, Dict, List, Str, invalid_by_kind
from conformance.strategies.attention_layers import ATTENTION, replacing_layers
from conformance.strategies.engines import Own
from conformance.strategies.layer_params import IMPL, OTHER_IMPL


def _with_layer(attributes: dict[str, Any]) -> Change:
    """Return the change that names one more layer, with these attributes."""

    def invalidate(call: Call) -> Call:
        names = [*call.arguments["layer_names"], BAD]
        layer = Own(ATTENTION, BAD, attributes)
        config = replacing_layers(call.arguments["vllm_config"], **{BAD: layer})
        return call.replacing(vllm_config=config, layer_names=names, cls_=IMPL)

    return invalidate


def _window(window: object) -> Change:
    return _with_layer({"impl": Own(IMPL, "impl", {"scale": 1.0, "sliding_window": window})})


GET_PER_LAYER_PARAMETERS_INVALID_INPUTS = [
    *invalid_by_kind(cls_=Class(), layer_names=List(Str()), **CONFIG),
    *UNKNOWN_NAME,
    *refusals(
        TypeError,
        sliding_window={
            "a window is an int": _window(127),
            "a window is a str": _window("ab"),
            "a window is an array": _window(np.array([127, 0])),
            "a window is of floats": _window((127.0, 0)),
            "a window is of bools": _window((True, False)),
            "a window is of None": _window((None, None)),
        },
        **{
            BAD: {
                "a layer has no impl": _with_layer({}),
                "a layer's impl is None": _with_layer({"impl": None}),
                "a layer's impl is of another class": _with_layer(
                    {"impl": Own(OTHER_IMPL, "impl", {"scale": 1.0})}
                ),
            }
        },
    ),
    *refusals(
        AttributeError, scale={"an impl has no scale": _with_layer({"impl": Own(IMPL, "impl")})}
    ),
    *refusals(
        ValueError,
        sliding_window={"a window is empty": _window(()), "a window is below -1": _window((-2, 0))},
    ),
]

PARAMS = "per_layer_params"

INFER_INVALID_INPUTS = [
    *invalid_by_kind(**{PARAMS: Dict()}),
    *refusals(
        TypeError,
        **{PARAMS: {f"{PARAMS} is a tuple of pairs": changed(PARAMS, lambda p: (*p.items(),))}},
    ),
    *refusals(ValueError, **{PARAMS: {"no layers": changed(PARAMS, lambda _: {})}}),
    *refusals(
        AttributeError,
        window_left={"an entry is None": changed(PARAMS, lambda p: {**p, BAD: None})},
    ),
]

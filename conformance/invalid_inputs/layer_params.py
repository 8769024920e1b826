"""Bad calls of the functions about what attention layers compute with."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.attention_layers import BAD, config_faults, names_faults
from conformance.strategies.attention_layers import ATTENTION, replacing_layers
from conformance.strategies.engines import Own
from conformance.strategies.layer_params import IMPL, OTHER_IMPL


def _with_impl(impl: Any) -> Change:
    """Return a fault that names one more layer, with this implementation, or with none (`...`)."""

    def breaks(call: Call) -> Call:
        layer = Own(ATTENTION, BAD, {} if impl is ... else {"impl": impl})
        names = [*call.arguments["layer_names"], BAD]
        config = replacing_layers(call.arguments["vllm_config"], **{BAD: layer})
        return call.replacing(vllm_config=config, layer_names=names, cls_=IMPL)

    return breaks


def _window(window: object) -> Change:
    return _with_impl(Own(IMPL, "impl", {"scale": 1.0, "sliding_window": window}))


GET_PER_LAYER_PARAMETERS_INVALID_INPUTS = [
    *config_faults(),
    *names_faults(),
    InvalidInput("the class is a name", TypeError, "cls_", replaced("cls_", "AttentionImpl")),
    InvalidInput("the class is None", TypeError, "cls_", replaced("cls_", None)),
    InvalidInput("a layer has no impl", TypeError, BAD, _with_impl(...)),
    InvalidInput("a layer's impl is None", TypeError, BAD, _with_impl(None)),
    InvalidInput(
        "a layer's impl is of another class",
        TypeError,
        BAD,
        _with_impl(Own(OTHER_IMPL, "impl", {"scale": 1.0})),
    ),
    InvalidInput(
        "an impl has no scale", AttributeError, "scale", _with_impl(Own(IMPL, "impl", {}))
    ),
    *(
        InvalidInput(f"a window is {what}", error, "sliding_window", _window(bad))
        for what, error, bad in (
            ("an int", TypeError, 127),
            ("a str", TypeError, "ab"),
            ("an array", TypeError, np.array([127, 0])),
            ("empty", ValueError, ()),
            ("of floats", TypeError, (127.0, 0)),
            ("of bools", TypeError, (True, False)),
            ("of None", TypeError, (None, None)),
            ("below -1", ValueError, (-2, 0)),
        )
    ),
]

INFER_INVALID_INPUTS = [
    InvalidInput("no layers", ValueError, "per_layer_params", replaced("per_layer_params", {})),
    *(
        InvalidInput(f"{what}", TypeError, "per_layer_params", replaced("per_layer_params", bad))
        for what, bad in (("None", None), ("a list", []), ("a tuple of pairs", (("layers.0", 1),)))
    ),
    InvalidInput(
        "an entry is None",
        AttributeError,
        "window_left",
        lambda call: call.replacing(
            per_layer_params={**call.arguments["per_layer_params"], BAD: None}
        ),
    ),
]

"""Read the parameters of attention layers, and compare them over all layers."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fast._checks import check_int, check_not_empty, check_type, get_type_name
from fast.attention_layers import get_layers, read_context

NO_WINDOW = -1
"""The `window_left` of a layer whose tokens attend to all earlier tokens."""


@dataclass
class PerLayerParameters:
    """The parameters of one attention layer.

    Definition: `reference.PerLayerParameters`.
    """

    window_left: int
    logits_soft_cap: float | None
    sm_scale: float
    has_sinks: bool = False
    has_same_window_lefts: bool | None = field(default=None, compare=False)
    has_same_all_params: bool | None = field(default=None, compare=False)


def get_per_layer_parameters(
    vllm_config: Any, layer_names: list[str], cls_: type[Any]
) -> dict[str, PerLayerParameters]:
    """Return the parameters of layers, from the `impl` of each.

    Definition: `reference.get_per_layer_parameters`.
    """
    check_type("cls_", cls_, type, "a class")
    context = read_context(vllm_config)
    layers = get_layers("layer_names", context, layer_names)
    return {name: _read_parameters(name, layer, cls_) for name, layer in layers.items()}


def infer_global_hyperparameters(
    per_layer_params: dict[str, PerLayerParameters],
) -> PerLayerParameters:
    """Return the parameters of the first layer, and whether all layers have the same.

    Definition: `reference.infer_global_hyperparameters`.
    """
    check_type("per_layer_params", per_layer_params, dict, "a dict")
    check_not_empty("per_layer_params", per_layer_params, "layer")
    params = [
        (p.window_left, p.logits_soft_cap, p.sm_scale, p.has_sinks)
        for p in per_layer_params.values()
    ]
    return PerLayerParameters(
        *params[0],
        has_same_window_lefts=all(_are_equal(p[0], params[0][0]) for p in params),
        has_same_all_params=all(
            a is b or _are_equal(a, b) for p in params for a, b in zip(p, params[0], strict=True)
        ),
    )


def _are_equal(a: object, b: object) -> bool:
    """Return whether two parameters are equal; arrays are a TypeError."""
    answer = a == b
    if not isinstance(answer, bool | np.bool_):
        raise TypeError(f"per_layer_params has {get_type_name(a)} for a parameter, not a number")
    return bool(answer)


def _read_parameters(name: str, layer: Any, cls_: type[Any]) -> PerLayerParameters:
    impl = getattr(layer, "impl", None)
    if impl is None or not isinstance(impl, cls_):
        raise TypeError(
            f"impl of layer {name!r} must be of class {cls_.__name__}, got {type(impl).__name__}"
        )
    window = getattr(impl, "sliding_window", None)
    return PerLayerParameters(
        window_left=NO_WINDOW if window is None else _first_entry(name, window),
        logits_soft_cap=getattr(impl, "logits_soft_cap", None),
        sm_scale=impl.scale,
        has_sinks=getattr(impl, "sinks", None) is not None,
    )


def _first_entry(name: str, window: object) -> int:
    """Return the first entry of a window: how many tokens to the left it reaches."""
    where = f"impl.sliding_window of layer {name!r}"
    check_type(where, window, tuple | list, "a list or tuple")
    entries = tuple(window)  # type: ignore[var-annotated,arg-type]  # checked above
    check_not_empty(where, entries, "entry")
    return check_int(f"impl.sliding_window[0] of layer {name!r}", entries[0], NO_WINDOW, None)

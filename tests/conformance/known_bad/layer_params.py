"""What layers compute with, as one reads it in a hurry."""

# ruff: noqa: ANN401  # engines' own objects; a branch for each bug

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import fast
from known_bad.entries import rewritten

REAL_GET = fast.get_per_layer_parameters
REAL_INFER = fast.infer_global_hyperparameters
REAL_PARAMETERS = fast.PerLayerParameters


def _make_parameters(bug: str | None) -> type:
    @dataclasses.dataclass
    class PerLayerParameters:
        window_left: int
        logits_soft_cap: float | None
        sm_scale: float
        has_sinks: bool = False
        has_same_window_lefts: bool | None = dataclasses.field(
            default=False if bug == "nothing said is False" else None,
            compare=bug == "all fields are compared",
        )
        has_same_all_params: bool | None = dataclasses.field(default=None, compare=False)

    return PerLayerParameters


def _window_left(bug: str | None, impl: Any) -> Any:
    window = getattr(impl, "sliding_window", None)
    if window is None:
        return None if bug == "no window is None" else -1
    first = window[-1] if bug == "the window is its right side" else window[0]
    if bug == "an empty window is no window":
        return int(first) if first else -1
    return first if bug == "the window is NumPy's" else int(first)


def _cap(bug: str | None, impl: Any) -> Any:
    cap = getattr(impl, "logits_soft_cap", None)
    if bug == "a cap of 0.0 is none":
        return cap or None
    return 0.0 if bug == "no cap is 0.0" and cap is None else cap


def _make_get(bug: str | None) -> Callable[..., Any]:
    def get_per_layer_parameters(vllm_config: Any, layer_names: Any, cls_: Any) -> Any:
        if bug == "the classes are compared by name" and isinstance(cls_, type):
            cls_ = object
        REAL_GET(vllm_config, layer_names, cls_)
        layers = vllm_config.compilation_config.static_forward_context
        names = layer_names
        if bug == "the order is the context's":
            names = [name for name in layers if name in layer_names]
        if bug == "all layers are read":
            names = [name for name in layers if hasattr(layers[name], "impl")]
        found = {}
        for name in names:
            impl = layers[name].impl
            sinks = getattr(impl, "sinks", None)
            has_sinks = (
                hasattr(impl, "sinks")
                if bug == "sinks of None are sinks"
                else bool(sinks is not None)
            )
            if bug == "sinks are asked for their truth":
                has_sinks = bool(sinks)  # type: ignore[arg-type]
            scale = float(impl.scale) if bug == "the scale is a float" else impl.scale
            found[name] = fast.PerLayerParameters(
                _window_left(bug, impl), _cap(bug, impl), scale, has_sinks
            )
        return found

    return get_per_layer_parameters


FIELDS = ("window_left", "logits_soft_cap", "sm_scale", "has_sinks")


def _make_infer(bug: str | None) -> Callable[..., Any]:
    def infer_global_hyperparameters(per_layer_params: Any) -> Any:
        if bug == "no layers have nothing in common" and per_layer_params == {}:
            return fast.PerLayerParameters(-1, None, 1.0)
        REAL_INFER(per_layer_params)
        params = list(per_layer_params.values())
        first = params[-1] if bug == "the last layer speaks" else params[0]
        others = params[:2] if bug == "the first two are compared" else params
        if bug == "neighbours at the ends are compared":
            others = [params[0], params[-1]]
        same = [all(getattr(p, n) == getattr(first, n) for p in others) for n in FIELDS]
        if bug == "sinks do not count":
            same[3] = True
        if bug == "caps are compared by their truth":
            same[1] = len({bool(p.logits_soft_cap) for p in others}) == 1
        if bug == "scales are compared nearly":
            same[2] = all(abs(p.sm_scale - first.sm_scale) < 1e-6 for p in others)
        result = fast.PerLayerParameters(*(getattr(first, name) for name in FIELDS))
        if bug == "the first layer's object is the answer":
            result = first
        result.has_same_window_lefts, result.has_same_all_params = same[0], all(same)
        if bug == "windows tell of all":
            result.has_same_window_lefts = all(same)
        if bug == "agreement is not said":
            result.has_same_all_params = all(same) or None
        return result

    return infer_global_hyperparameters


LAYER_PARAMS = [
    *rewritten(
        "PerLayerParameters",
        _make_parameters,
        answers={"nothing said is False": "Falsy too; `is None` tells them apart."},
        laws={
            "test_parameters_compare_by_the_layer_s_own": {
                "all fields are compared": "The first layer differs from itself, once inferred."
            }
        },
    ),
    *rewritten(
        "get_per_layer_parameters",
        _make_get,
        answers={
            "no window is None": "Falsy, and no int: a kernel's plan fails.",
            "the window is its right side": "The same for symmetric windows.",
            "an empty window is no window": "`or -1`: a window of the token itself sees all.",
            "the window is NumPy's": "Equal; a kernel's signature may not take it.",
            "a cap of 0.0 is none": "`or None`: kernels that tell them apart are another plan.",
            "no cap is 0.0": "The other way around.",
            "sinks of None are sinks": "`hasattr`.",
            "sinks are asked for their truth": "Right for one head; several have no truth value.",
            "the scale is a float": "Equal; a tensor's scale would be waited for.",
            "the order is the context's": "The first layer is another, which speaks for all.",
            "all layers are read": "Right where all are of one group.",
        },
        refusals={"the classes are compared by name": "Anything with a scale passes."},
    ),
    *rewritten(
        "infer_global_hyperparameters",
        _make_infer,
        answers={
            "the last layer speaks": "Right where all agree.",
            "the first two are compared": "Right for alternating layers.",
            "neighbours at the ends are compared": "Right where the odd one is the last.",
            "sinks do not count": "They came to the class later.",
            "caps are compared by their truth": "Two caps agree, whatever they are.",
            "scales are compared nearly": "They differ in their last digits.",
            "the first layer's object is the answer": "The input changes: the next call sees it.",
            "windows tell of all": "Unlike scales make unlike windows.",
            "agreement is not said": "Falsy too.",
        },
        refusals={"no layers have nothing in common": "An answer of no layer."},
    ),
]

"""Parameters of attention layers, for kernels that are planned once for all layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reference._checks import check_int, check_list, check_not_empty, check_type, get_type_name
from reference.attention_layers import get_layers_from_vllm_config

NO_WINDOW = -1
"""The `window_left` of a layer that sees all earlier tokens."""


@dataclass
class PerLayerParameters:
    """The parameters of one attention layer, as a plan of attention kernels needs them.

    Attributes:
        window_left: How many tokens before itself a token sees; -1: all.
        logits_soft_cap: The bound of the logits' soft cap; None: no cap.
        sm_scale: The factor of the logits before the softmax.
        has_sinks: Whether heads have attention sinks.
        has_same_window_lefts: Whether all layers have this `window_left`; None: not known. It is
            ignored when instances are compared.
        has_same_all_params: Whether all layers have these parameters; None: not known. It is
            ignored when instances are compared.

    Example:
        >>> layer = PerLayerParameters(window_left=-1, logits_soft_cap=None, sm_scale=0.125)
        >>> layer == PerLayerParameters(-1, None, 0.125, has_same_all_params=True)
        True

    Source: the definition is kvtwin's own; the names are vLLM's.
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

    `window_left` is the first entry of `impl.sliding_window`, or -1 if that is None or missing;
    `logits_soft_cap` is `impl.logits_soft_cap` unchanged (0.0 stays 0.0), or None if missing;
    `sm_scale` is `impl.scale` unchanged; `has_sinks` is whether `impl.sinks` exists and is not
    None.

    Args:
        vllm_config: Its `compilation_config.static_forward_context` is read: the layers by name.
        layer_names: The layers.
        cls_: The class of which each layer's `impl` must be an instance.

    Returns:
        The parameters by layer name, in the order of `layer_names`.

    Raises:
        TypeError: Names that are not a list of strs; a `cls_` that is not a class; a layer whose
            `impl` is missing or not a `cls_`, or whose window is not a list or tuple that begins
            with an int.
        KeyError: A name that the context lacks.
        ValueError: An empty window, or one whose first entry is below -1.
        AttributeError: An `impl` without `scale`, a configuration that lacks an attribute that is
            read.

    Example:
        >>> from types import SimpleNamespace
        >>> from reference.config import CompilationConfig, VllmConfig
        >>> impl = SimpleNamespace(sliding_window=(127, 0), scale=0.125)
        >>> layers = {"layers.0": SimpleNamespace(impl=impl)}
        >>> config = VllmConfig(compilation_config=CompilationConfig(static_forward_context=layers))
        >>> parameters = get_per_layer_parameters(config, ["layers.0"], SimpleNamespace)
        >>> parameters["layers.0"].window_left, parameters["layers.0"].logits_soft_cap
        (127, None)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("cls_", cls_, type)
    check_list("layer_names", layer_names)
    parameters: dict[str, PerLayerParameters] = {}
    for layer_name, layer in get_layers_from_vllm_config(vllm_config, object, layer_names).items():
        impl = getattr(layer, "impl", None)
        if impl is None or not isinstance(impl, cls_):
            raise TypeError(
                f"impl of layer {layer_name!r} must be of class {cls_.__name__}, "
                f"got {type(impl).__name__}"
            )
        parameters[layer_name] = PerLayerParameters(
            window_left=_get_window_left(layer_name, impl),
            logits_soft_cap=getattr(impl, "logits_soft_cap", None),
            sm_scale=impl.scale,
            has_sinks=getattr(impl, "sinks", None) is not None,
        )
    return parameters


def _get_window_left(layer_name: str, impl: object) -> int:
    """Return how many tokens before itself a token sees, -1 if it sees all."""
    name = f"impl.sliding_window of layer {layer_name!r}"
    window = getattr(impl, "sliding_window", None)
    if window is None:
        return NO_WINDOW
    check_not_empty(name, check_type(name, window, list | tuple), "entry")
    return check_int(f"impl.sliding_window[0] of layer {layer_name!r}", window[0], NO_WINDOW)


def infer_global_hyperparameters(
    per_layer_params: dict[str, PerLayerParameters],
) -> PerLayerParameters:
    """Return the parameters of the first layer, and whether all layers have the same.

    Args:
        per_layer_params: The parameters by layer name; they are not changed.

    Returns:
        A new `PerLayerParameters` with those of the first layer. `has_same_window_lefts` is whether
        all layers have its `window_left`; `has_same_all_params` is whether all layers have its
        `window_left`, `logits_soft_cap`, `sm_scale` and `has_sinks`.

    Raises:
        TypeError: An argument that is not a dict; parameters whose comparison is not a bool, such
            as arrays.
        ValueError: No layers.
        AttributeError: An entry that lacks a parameter.

    Example:
        >>> near, far = PerLayerParameters(127, None, 0.125), PerLayerParameters(-1, None, 0.125)
        >>> inferred = infer_global_hyperparameters({"layers.0": near, "layers.1": far})
        >>> inferred.window_left, inferred.has_same_window_lefts, inferred.has_same_all_params
        (127, False, False)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("per_layer_params", per_layer_params, dict)
    check_not_empty("per_layer_params", per_layer_params, "layer")
    parameters = [
        PerLayerParameters(
            layer.window_left, layer.logits_soft_cap, layer.sm_scale, layer.has_sinks
        )
        for layer in per_layer_params.values()
    ]
    inferred = parameters[0]
    inferred.has_same_window_lefts = all(
        _are_equal(layer.window_left, inferred.window_left) for layer in parameters
    )
    inferred.has_same_all_params = all(_have_same(layer, inferred) for layer in parameters)
    return inferred


def _have_same(layer: PerLayerParameters, other: PerLayerParameters) -> bool:
    """Return whether two layers have the same four parameters."""
    names = ("window_left", "logits_soft_cap", "sm_scale", "has_sinks")
    pairs = [(getattr(layer, name), getattr(other, name)) for name in names]
    return all(a is b or _are_equal(a, b) for a, b in pairs)


def _are_equal(a: object, b: object) -> bool:
    """Return whether two parameters are equal; arrays are a TypeError."""
    answer = a == b
    if not isinstance(answer, bool | np.bool_):
        raise TypeError(f"per_layer_params has {get_type_name(a)} for a parameter, not a number")
    return bool(answer)

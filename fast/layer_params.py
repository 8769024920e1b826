"""What attention layers compute with: windows, caps, scales, sinks, and whether all agree."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fast._checks import check_int, check_type, get_type_name
from fast.attention_layers import get_layers, read_context

NO_WINDOW = -1
"""The window of a layer that sees all that is before a token."""


@dataclass
class PerLayerParameters:
    """What one attention layer computes with.

    Attributes:
        window_left: tokens before a token that it sees, itself apart; -1: all.
        logits_soft_cap: the bound that logits are squashed into; None: none.
        sm_scale: what logits are multiplied by before the softmax.
        has_sinks: whether each head has a logit for attending to nothing.
        has_same_window_lefts: whether all layers have one `window_left`; None: not told. It does
            not take part in comparison.
        has_same_all_params: whether all layers agree in all of the above; likewise.

    Example:
        >>> PerLayerParameters(-1, None, 0.125) == PerLayerParameters(
        ...     -1, None, 0.125, has_same_all_params=True
        ... )
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
    vllm_config: Any,  # noqa: ANN401  (an engine's own config serves too)
    layer_names: list[str],
    cls_: type[Any],
) -> dict[str, PerLayerParameters]:
    """Return what each of some layers computes with.

    Args:
        vllm_config: the engine's configuration; of its `compilation_config` the
            `static_forward_context` is read, the layers by name.
        layer_names: the layers.
        cls_: the class that the `impl` of each must be an instance of. Of the `impl` are read
            `sliding_window`, whose first entry is the window, `logits_soft_cap`, `scale`, `sinks`;
            all but `scale` may be absent or None.

    Returns:
        The parameters by name, in the order of `layer_names`.

    Raises:
        TypeError: an argument of another type, an `impl` that is absent or of another class, a
            window that is no tuple or list of ints.
        ValueError: a window without entries, or one that begins with less than -1.
        KeyError: a layer that the forward context lacks.
        AttributeError: a configuration without what is read, an `impl` without `scale`.

    Example:
        >>> from types import SimpleNamespace
        >>> from fast.config import CompilationConfig, VllmConfig
        >>> impl = SimpleNamespace(sliding_window=(4095, 0), scale=0.125)
        >>> layers = {"0.attn": SimpleNamespace(impl=impl)}
        >>> config = VllmConfig(compilation_config=CompilationConfig(static_forward_context=layers))
        >>> get_per_layer_parameters(config, ["0.attn"], SimpleNamespace)["0.attn"].window_left
        4095

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("cls_", cls_, type, "a class")
    context = read_context(vllm_config)
    layers = get_layers("layer_names", context, layer_names)
    return {name: _read_parameters(name, layer, cls_) for name, layer in layers.items()}


def infer_global_hyperparameters(
    per_layer_params: dict[str, PerLayerParameters],
) -> PerLayerParameters:
    """Return the parameters of the first layer, and whether all layers agree with it.

    Args:
        per_layer_params: the parameters of each layer, by name; they are not changed.

    Returns:
        New parameters, `has_same_window_lefts` and `has_same_all_params` being bools.

    Raises:
        TypeError: not a dict.
        ValueError: no layers.
        AttributeError: parameters without what is read.

    Example:
        >>> windows = {"0.attn": 4095, "1.attn": -1}
        >>> params = {name: PerLayerParameters(left, 0.0, 0.125) for name, left in windows.items()}
        >>> infer_global_hyperparameters(params).has_same_window_lefts
        False

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("per_layer_params", per_layer_params, dict, "a dict")
    if not per_layer_params:
        raise ValueError("per_layer_params is empty, expected at least 1 layer")
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
    """Return whether two parameters are equal; arrays have no single answer."""
    answer = a == b
    if not isinstance(answer, bool | np.bool_):
        raise TypeError(f"per_layer_params has {get_type_name(a)} for a parameter, not a number")
    return bool(answer)


def _read_parameters(name: str, layer: Any, cls_: type[Any]) -> PerLayerParameters:  # noqa: ANN401  (an engine's own layer)
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
    """Return how many tokens to the left a window reaches."""
    where = f"impl.sliding_window of layer {name!r}"
    check_type(where, window, tuple | list, "a list or tuple")
    entries = tuple(window)  # type: ignore[var-annotated,arg-type]  # checked above
    if not entries:
        raise ValueError(f"{where} is empty, expected at least 1 entry")
    return check_int(f"impl.sliding_window[0] of layer {name!r}", entries[0], NO_WINDOW, None)

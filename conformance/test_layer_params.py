"""The parameters of attention layers, and whether all layers of a model agree."""

from __future__ import annotations

from typing import Any

from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.size_axes import of_ints, of_objects
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.layer_params import (
    GET_PER_LAYER_PARAMETERS_INVALID_INPUTS,
    INFER_INVALID_INPUTS,
)
from conformance.strategies.attention_layers import LAYERS, WINDOW, context_of
from conformance.strategies.layer_params import (
    FLASHINFER_IMPL,
    IMPL,
    OTHER_LAYERS,
    get_per_layer_parameters_calls,
    infer_global_hyperparameters_calls,
    per_layer_parameters_calls,
)
from conformance.strategies.stub_factories import Own
from conformance.targets.target import Target
from conformance.values.call import Call

test_per_layer_parameters = Contract(
    "PerLayerParameters",
    per_layer_parameters_calls,
    {
        "all defaults": lambda call: len(call.arguments) == 3,
        "no defaults": lambda call: len(call.arguments) == 6,
        "a cap of 0.0": lambda call: call["logits_soft_cap"] == 0.0,
        "no cap": lambda call: call["logits_soft_cap"] is None,
    },
    axes={WINDOW: of_ints(lambda call: call["window_left"])},
)


@property_check("PerLayerParameters", per_layer_parameters_calls)
def test_parameters_compare_by_the_layer_s_own(target: Target, call: Call) -> None:
    """Comparison ignores the two fields about all layers, and uses every other field."""
    with target.running():
        made, same, unlike = (Invocation(target, call).run() for _ in range(3))
        same.has_same_window_lefts, same.has_same_all_params = True, False
        assert made == same
        for name in ("window_left", "logits_soft_cap", "sm_scale", "has_sinks"):
            own = getattr(unlike, name)
            setattr(unlike, name, 99)
            assert made != unlike
            setattr(unlike, name, own)
        assert made == unlike


def _has(name: str, *values: Any) -> Any:
    """Return the coverage goal that a named layer's implementation has one of these values."""

    def reached(call: Call) -> bool:
        found = [impl.attributes.get(name, ...) for impl in call.source]
        return any(any(v is value or v == value for value in values) for v in found)

    return reached


def _has_window(first: int) -> Any:
    return lambda call: any(
        (impl.attributes.get("sliding_window") or [None])[0] == first for impl in call.source
    )


def _is_there(impl: Own, name: str) -> bool:
    return impl.attributes.get(name) is not None


def _window_left(impl: Own) -> int:
    return int((impl.attributes.get("sliding_window") or [0])[0])


test_get_per_layer_parameters = Contract(
    "get_per_layer_parameters",
    get_per_layer_parameters_calls,
    {
        "no layer is named": lambda call: not call["layer_names"],
        "three layers or more are named": lambda call: len(call["layer_names"]) > 2,
        "named in another order": lambda call: call["layer_names"] != sorted(call["layer_names"]),
        "a layer with a window": _has_window(4095),
        "a window of nothing before a token": _has_window(0),
        "a window that says that there is none": _has_window(-1),
        "a window in a list": _has("sliding_window", [127, 0], [15]),
        "a window of NumPy's ints": _has_window(7),
        "a window of None": _has("sliding_window", None),
        "no window": _has("sliding_window", ...),
        "a cap of 0.0": _has("logits_soft_cap", 0.0),
        "a cap of None": _has("logits_soft_cap", None),
        "no cap": _has("logits_soft_cap", ...),
        "sinks of several heads": lambda call: any(_is_there(i, "sinks") for i in call.source),
        "sinks of None": lambda call: any(
            i.attributes.get("sinks", ...) is None for i in call.source
        ),
        "no sinks": lambda call: any("sinks" not in i.attributes for i in call.source),
        "an int for a scale": _has("scale", 1),
        "an impl of a subclass": lambda call: (
            call["cls_"] is IMPL and any(i.cls is FLASHINFER_IMPL for i in call.source)
        ),
        "an engine's own configuration": lambda call: isinstance(call["vllm_config"], Own),
    },
    axes={
        LAYERS: of_objects(lambda call: len(call["layer_names"])),
        OTHER_LAYERS: of_objects(
            lambda call: len(context_of(call["vllm_config"])) - len(call.source)
        ),
        WINDOW: of_ints(lambda call: max(map(_window_left, call.source), default=0)),
    },
    invalid_inputs=GET_PER_LAYER_PARAMETERS_INVALID_INPUTS,
    takes_objects=True,
)


def _is_unlike_in(name: str) -> Any:
    return lambda call: set(call.source.values()) == {name}


test_infer_global_hyperparameters = Contract(
    "infer_global_hyperparameters",
    infer_global_hyperparameters_calls,
    {
        "one layer": lambda call: len(call["per_layer_params"]) == 1,
        "all layers agree": lambda call: not call.source and len(call["per_layer_params"]) > 1,
        "only a layer past the second differs": lambda call: (
            bool(call.source) and min(call.source) > 1
        ),
        "only one in the middle differs": lambda call: (
            bool(call.source) and max(call.source) < len(call["per_layer_params"]) - 1
        ),
        **{
            f"different in {name} alone": _is_unlike_in(name)
            for name in ("window_left", "logits_soft_cap", "sm_scale", "has_sinks")
        },
        "a cap of 0.0 next to none": lambda call: (
            {0.0, None} <= {layer.logits_soft_cap for layer in call["per_layer_params"].values()}
        ),
        "an earlier call said otherwise": lambda call: (
            bool(call.source)
            and next(iter(call["per_layer_params"].values())).has_same_all_params is True
        ),
    },
    axes={
        LAYERS: of_objects(lambda call: len(call["per_layer_params"]), 1),
        WINDOW: of_ints(lambda call: next(iter(call["per_layer_params"].values())).window_left, 1),
    },
    invalid_inputs=INFER_INVALID_INPUTS,
    takes_objects=True,
)


@property_check("infer_global_hyperparameters", infer_global_hyperparameters_calls)
def test_the_first_layer_speaks_for_all(target: Target, call: Call) -> None:
    """The result has the first layer's values; the order of the other layers does not matter."""
    given = call["per_layer_params"]
    first, *others = given.items()
    turned = dict([first, *reversed(others)])
    with target.running():
        found, again = (
            Invocation(target, call.replacing(per_layer_params=params)).run()
            for params in (given, turned)
        )
    fields = ("window_left", "logits_soft_cap", "sm_scale", "has_sinks")
    alike = [len({getattr(layer, name) for layer in given.values()}) == 1 for name in fields]
    assert [getattr(first[1], name) for name in fields] == [getattr(found, n) for n in fields]
    for answer in (found, again):
        assert alike[0] is answer.has_same_window_lefts
        assert all(alike) is answer.has_same_all_params

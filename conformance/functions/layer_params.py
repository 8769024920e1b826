"""The parameters of attention layers, and whether all layers of a model agree."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.functions.attention_layers import (
    Class,
    Layer,
    config_of,
    layer_names,
    layers_of,
    without,
)
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Twin
from conformance.harness.sizes import Rng, rngs, sizes
from conformance.laws.batches import choices, deferred

FIELDS: Final = ("window_left", "logits_soft_cap", "sm_scale", "has_sinks")

# PerLayerParameters

FLAG: Final = st.sampled_from((None, True, False))


def compare_parameters(twin: Twin, **arguments: Any) -> dict[str, Any]:
    """Return parameters, and whether they equal others that differ in one field."""
    made, other = (twin.function("PerLayerParameters")(**arguments) for _ in range(2))
    other.has_same_window_lefts, other.has_same_all_params = True, False
    equal = {"neither": made == other}
    for name in FIELDS:
        own = getattr(other, name)
        setattr(other, name, 99)
        equal[name] = made == other
        setattr(other, name, own)
    return {"made": made, "equal": equal}


# get_per_layer_parameters

WINDOWS: Final = ((4095, 0), [127, 0], (0, 0), (-1, -1), (np.int32(7), np.int32(0)), [15], None)
CAPS: Final = (0.0, 30.0, 50.0, None)


def _implementation(rng: Rng) -> Layer:
    attributes = {
        "sliding_window": WINDOWS[rng.integers(len(WINDOWS))],
        "logits_soft_cap": CAPS[rng.integers(len(CAPS))],
        "scale": (0.125, 0.0883883, 1)[rng.integers(3)],
        "sinks": (np.arange(3, dtype=np.float32), None)[rng.integers(2)],
    }
    left_out = rng.random(len(attributes)) < 0.2
    given = dict(zip(attributes, left_out.tolist(), strict=True)) | {"scale": False}
    attributes = {name: value for name, value in attributes.items() if not given[name]}
    return Layer(Class(rng.choice(("Attention", "MLAAttention"))), "impl", attributes)


@st.composite
def implementations(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw layers, some of which are named, in any order; attributes may be None or missing."""
    number, others, some = draw(sizes(0, 70)), draw(sizes(0, 20)), draw(st.integers(0, 2))

    def contents(draw: st.DrawFn) -> Arguments:
        rng = draw(rngs())
        names = layer_names(rng, number + others)
        layers = {n: Layer(Class("Attention"), n, {"impl": _implementation(rng)}) for n in names}
        layers |= {n: Layer(Class("MambaMixer"), n) for n in names[number:]}
        given = rng.permutation(names[:number]).tolist()[some == 1 :]
        context = {n: layers[n] for n in rng.permutation(names).tolist()}
        return {"vllm_config": config_of(context), "layer_names": given, "cls_": Class("Attention")}

    return deferred(contents)


def wrong_implementation(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let the implementation of a layer be of another class, or have a wrong window."""
    layers, names = layers_of(arguments), arguments["layer_names"]
    if not names:
        return None
    layer = layers[rng.choice(names)]
    own = layer.attributes["impl"]
    odd = (127, "ab", (127.0, 0), (True, False), (None, None), (), (-2, 0), np.array([127, 0]))
    windows = [{**own.attributes, "sliding_window": window} for window in odd]
    wrong = [
        *(None, Layer(Class("MambaMixer"), "impl", own.attributes)),
        *(dataclasses.replace(own, attributes=attributes) for attributes in windows),
    ]
    changed = dataclasses.replace(layer, attributes={"impl": rng.choice(wrong)})
    config = config_of({**layers, layer.name: changed})
    return {**arguments, "vllm_config": config}


# infer_global_hyperparameters

NEAR: Final[dict[str, Any]] = {
    "window_left": (4095, 0, -2),  # -1 and -2 have one hash
    "logits_soft_cap": (30.0, 0.0, -2.0),
    "sm_scale": (0.25, 0.1250001, -2.0),
    "has_sinks": (True,),
}
"""Values in which a layer may differ from the first one."""


@st.composite
def parameters(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    number = draw(sizes(1, 300))
    window, cap, scale, unlike = choices(
        *(draw, (-1, -1, 127), (None, None, 50.0, -1.0), (0.125, 0.125, -1.0), (0, 1, 1, 2))
    )

    def contents(draw: st.DrawFn) -> Arguments:
        rng = draw(rngs())
        said: Any = np.array((None, True, False))[rng.integers(3, size=(number, 2))].tolist()
        found = [reference.PerLayerParameters(window, cap, scale, False, *flags) for flags in said]
        for _ in range(unlike):
            at = (number - 1, int(rng.integers(number)), 0)[rng.integers(3)]
            name = FIELDS[rng.integers(len(FIELDS))]
            value = NEAR[name][rng.integers(len(NEAR[name]))]
            found[at] = dataclasses.replace(found[at], **{name: value})
        names = layer_names(rng, number)
        return {"per_layer_params": dict(zip(names, found, strict=True))}

    return deferred(contents)


def no_layers(arguments: Arguments, rng: random.Random) -> Arguments:
    del arguments, rng
    return {"per_layer_params": {}}


def _first_unlike(arguments: Arguments) -> int:
    """Return the number of the first layer that differs from layer 0; 0 for none."""
    first, *others = arguments["per_layer_params"].values()
    return next((i + 1 for i, one in enumerate(others) if one != first), 0)


CONTRACTS = [
    Contract(
        function="PerLayerParameters",
        calls=st.just(
            st.fixed_dictionaries(
                {
                    "window_left": st.sampled_from((-1, 0, 4095)),
                    "logits_soft_cap": st.sampled_from((None, 0.0, 30.0)),
                    "sm_scale": st.sampled_from((0.125, 1.0)),
                },
                optional={
                    "has_sinks": st.booleans(),
                    "has_same_window_lefts": FLAG,
                    "has_same_all_params": FLAG,
                },
            )
        ),
        run=compare_parameters,
        examples=0.1,
    ),
    Contract(
        function="get_per_layer_parameters",
        calls=implementations(),
        has_objects=True,
        takes_own_objects=True,
        specials=(without("impl"), without(), wrong_implementation, wrong_implementation),
        examples=0.25,
    ),
    Contract(
        function="infer_global_hyperparameters",
        calls=parameters(),
        takes_own_objects=True,
        specials=(no_layers,),
        examples=0.5,
        hard_cases={
            "only a layer after many differs": lambda args: _first_unlike(args) > 128,
            "one in the middle differs": lambda args: (
                0 < _first_unlike(args) < len(args["per_layer_params"]) - 1
            ),
        },
    ),
]

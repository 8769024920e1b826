"""Calls of the functions about the parameters of attention layers."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

import reference
from conformance.arrays.guard_bands import guarded
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.attention_layers import ATTENTION, LAYERS, WINDOW, config_of
from conformance.strategies.kv_binding import shuffled
from conformance.strategies.repeated import MAX_DRAWN, lists
from conformance.strategies.stub_factories import Own, OwnClass
from conformance.values.call import Call

OTHER_LAYERS: Final = "layers that are not named"

IMPL = OwnClass("AttentionImpl")
FLASHINFER_IMPL = OwnClass("FlashInferImpl", IMPL)
OTHER_IMPL = OwnClass("MambaImpl")

WINDOWS = ((4095, 0), [127, 0], (0, 0), (-1, -1), (np.int32(7), np.int32(0)), [15])
CAPS = (0.0, 30.0, 50.0)

ABSENT = "absent"
"""Drawn for an attribute that is not there."""


@st.composite
def _impls(draw: st.DrawFn, preset: Preset) -> Own:
    """Draw a layer's implementation; attributes may be None or absent."""
    cls = draw(st.sampled_from((IMPL, FLASHINFER_IMPL)))
    windows: Any = st.sampled_from((*WINDOWS, None, ABSENT))
    if preset.axis == WINDOW:
        windows = preset.sizes(WINDOW, st.nothing()).map(lambda left: (left, 0))
    drawn = {
        "sliding_window": draw(windows),
        "logits_soft_cap": draw(st.sampled_from((*CAPS, None, ABSENT))),
        "scale": draw(st.sampled_from((0.125, 0.0883883, 1))),
        "sinks": draw(st.sampled_from((guarded([0, 1, 2], np.float32), None, None, ABSENT))),
    }
    there = {name: v for name, v in drawn.items() if not (isinstance(v, str) and v == ABSENT)}
    return Own(cls, "impl", there)


@st.composite
def get_per_layer_parameters_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `get_per_layer_parameters`; the source is the named layers' implementations."""
    maximum = min(preset.max_num_reqs, 5)
    drawn = lists(draw, preset, LAYERS, _impls(preset), max_size=maximum)
    if preset.axis == WINDOW:
        drawn.append(draw(_impls(preset)))
    impls = {f"layers.{i}.attn": impl for i, impl in enumerate(drawn)}
    context = {name: Own(ATTENTION, name, {"impl": impl}) for name, impl in impls.items()}
    # A layer that is not named is ignored.
    for i in range(draw(preset.sizes(OTHER_LAYERS, st.just(1)))):
        context[f"layers.{i}.moe"] = Own(OTHER_IMPL, "moe")
    named = shuffled(draw, impls)
    if not preset.axis:
        named = named[draw(st.sampled_from((0, 0, 1))) :]
    cls_ = IMPL
    if {impl.cls for impl in drawn} == {FLASHINFER_IMPL} and draw(st.booleans()):
        cls_ = FLASHINFER_IMPL
    arguments = {
        "vllm_config": config_of(context, is_own=draw(st.booleans())),
        "layer_names": named,
        "cls_": cls_,
    }
    return Call("get_per_layer_parameters", arguments, [impls[name] for name in named])


UNLIKE = {"window_left": 4095, "logits_soft_cap": 30.0, "sm_scale": 0.25, "has_sinks": True}
"""Values in which an otherwise equal layer may differ from the first one."""

NEAR = {"window_left": 0, "logits_soft_cap": 0.0, "sm_scale": 0.1250001, "has_sinks": True}
"""The same fields, with values that differ only slightly from the first layer's."""


@st.composite
def infer_global_hyperparameters_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `infer_global_hyperparameters`: equal layers, and some that differ.

    The source is the field in which a layer differs from the first, by its index.
    """
    usual = st.sampled_from((1, 2, 3, 3, min(preset.max_num_reqs, 5)))
    count = draw(preset.sizes(LAYERS, usual))
    # The results of an earlier call must be ignored.
    said = st.sampled_from((None, True, False))
    first = reference.PerLayerParameters(
        draw(preset.sizes(WINDOW, st.sampled_from((-1, 127)))),
        draw(st.sampled_from((None, None, 50.0))),
        0.125,
        False,
        draw(said),
        draw(said),
    )
    params = [dataclasses.replace(first) for _ in range(count)]
    unlike: dict[int, str] = {}
    for _ in range(draw(st.sampled_from((0, 1, 1, 2)))):
        index = draw(st.sampled_from((count - 1, draw(st.integers(0, count - 1)))))
        field = draw(st.sampled_from(tuple(UNLIKE)))
        value: Any = draw(st.sampled_from((UNLIKE, NEAR)))[field]
        params[index] = dataclasses.replace(params[index], **{field: value})
        if index:
            unlike[index] = field
    for index in range(1, min(count, MAX_DRAWN)):
        if draw(st.booleans()):
            again: Any = {"has_same_window_lefts": draw(said), "has_same_all_params": draw(said)}
            params[index] = dataclasses.replace(params[index], **again)
    names = [f"layers.{i}" for i in shuffled(draw, range(count))]
    arguments = {"per_layer_params": dict(zip(names, params, strict=True))}
    return Call("infer_global_hyperparameters", arguments, unlike)


@st.composite
def per_layer_parameters_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of the class `PerLayerParameters`, with each of its defaults and without."""
    arguments: dict[str, Any] = {
        "window_left": draw(preset.sizes(WINDOW, st.sampled_from((-1, 0, 4095)))),
        "logits_soft_cap": draw(st.sampled_from((None, 0.0, 30.0))),
        "sm_scale": draw(st.sampled_from((0.125, 1.0))),
    }
    rest = ("has_sinks", "has_same_window_lefts", "has_same_all_params")
    for name in rest[: draw(st.integers(0, 3))]:
        arguments[name] = draw(st.sampled_from((True, False, *((None,) if "same" in name else ()))))
    return Call("PerLayerParameters", arguments)

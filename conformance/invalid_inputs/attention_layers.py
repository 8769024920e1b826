"""Invalid inputs of the functions about layers: wrong configurations, layers and groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import reference
from conformance.calls import Call
from conformance.contracts import Change
from conformance.invalid_inputs.changes import prepared, refusals, replaced, showing, where
from conformance.invalid_inputs.kinds import (
    Class,
    Dtype,
    Int,
    Kind,
    List,
    Object,
    Str,
    invalid_by_kind,
)
from conformance.strategies.attention_layers import (
    ATTENTION,
    GroupPlan,
    full_spec,
    replacing_layers,
    replacing_parts,
)
from conformance.strategies.engines import BackendClass, BuilderClass, Own

NOWHERE = "layers.99.attn"
"""A layer that there is not."""

BAD = "layers.77.attn"
"""A layer with something wrong, put beside those of a valid call."""

CONFIG: dict[str, Kind] = {
    "vllm_config": Object(reads="compilation_config"),
    "vllm_config.compilation_config": Object(reads="static_forward_context"),
}
"""A configuration, of which the layers are read."""

UNKNOWN_NAME = showing(
    NOWHERE,
    refusals(KeyError, layer_names={"a name is unknown": replaced("layer_names", [NOWHERE])}),
)

GET_LAYERS_INVALID_INPUTS = [
    *invalid_by_kind(layer_type=Class(), layer_names=List(Str(), is_optional=True), **CONFIG),
    *UNKNOWN_NAME,
]

ATTRIBUTES: dict[str, Any] = {
    "attn_type": reference.AttentionType.DECODER,
    "num_kv_heads": 2,
    "head_size": 8,
    "sliding_window": None,
}
"""What is read of an attention layer."""


def _with_layer(call: Call) -> Call:
    """Return the call with one more attention layer, and a cache configuration."""
    layer = Own(ATTENTION, BAD, ATTRIBUTES)
    config = replacing_layers(call.arguments["vllm_config"], **{BAD: layer})
    cache = reference.CacheConfig(block_size=16)
    return call.replacing(vllm_config=replacing_parts(config, cache_config=cache))


LAYER = f"vllm_config.compilation_config.static_forward_context[{BAD}]"

GET_KV_CACHE_SPEC_INVALID_INPUTS = [
    *invalid_by_kind(
        vllm_config=Object(reads="cache_config|compilation_config"),
        kv_cache_dtype=Dtype(),
        **{
            "vllm_config.compilation_config": CONFIG["vllm_config.compilation_config"],
            "vllm_config.cache_config": Object(reads="block_size"),
        },
    ),
    *prepared(
        _with_layer,
        [
            *refusals(
                ValueError,
                **{
                    BAD: {
                        f"a layer is of type {kind!r}": replaced(f"{LAYER}.attn_type", kind)
                        for kind in ("encoder", "encoder_only", "encoder_decoder", "Decoder", None)
                    }
                },
            ),
            *invalid_by_kind(
                **{
                    f"{LAYER}.num_kv_heads": Int(also=BAD, is_attribute=True),
                    f"{LAYER}.head_size": Int(also=BAD, is_attribute=True),
                    f"{LAYER}.sliding_window": Int(is_optional=True, also=BAD, is_attribute=True),
                    "vllm_config.cache_config.block_size": Int(),
                }
            ),
        ],
    ),
]


Invalidated = Callable[[GroupPlan], "tuple[object, Any, Mapping[str, Any]]"]
"""Makes a group invalid: its names, its spec, and layers that are added or replaced."""


def _group(change: Invalidated) -> Change:
    """Return the change of the last group, which is checked before the first group's builder."""

    def invalidate(call: Call) -> Call | None:
        if not call.facts:
            return None
        names, spec, layers = change(call.facts[-1])
        config = replacing_layers(call.arguments["vllm_config"], **layers)
        bad: Any = reference.KVCacheGroupSpec(names, spec)  # type: ignore[arg-type]  # whatever
        group = replaced("kv_cache_config.kv_cache_groups[-1]", bad)
        return group(call.replacing(vllm_config=config))

    return invalidate


def _unlike(*, is_alike: bool) -> Invalidated:
    """Return what gives a group one more layer, of a backend made alike."""

    def change(plan: GroupPlan) -> tuple[list[str], Any, Mapping[str, Any]]:
        ours, theirs = (dataclasses.replace(plan.backend, is_alike=is_alike) for _ in "ab")
        layers = {name: Own(ATTENTION, name, backend=ours) for name in plan.names}
        layers[BAD] = Own(ATTENTION, BAD, backend=theirs)
        return [*plan.names, BAD], plan.spec, layers

    return change


def _unlike_specs(plan: GroupPlan) -> tuple[list[str], Any, Mapping[str, Any]]:
    size, dtype = plan.spec.block_size, np.dtype(np.float16)
    specs: dict[str, Any] = {
        name: reference.FullAttentionSpec(size, 2, 8, dtype) for name in plan.names
    }
    # Another class with the same numbers is another spec.
    specs[BAD] = reference.MLAAttentionSpec(size, 2, 8, dtype)
    uniform = reference.UniformTypeKVCacheSpecs(size, specs)
    return [*plan.names, BAD], uniform, {BAD: Own(ATTENTION, BAD, backend=plan.backend)}


def _foreign_specs(plan: GroupPlan) -> tuple[list[str], Any, Mapping[str, Any]]:
    spec = full_spec()
    uniform = reference.UniformTypeKVCacheSpecs(spec.block_size, {NOWHERE: spec})
    return list(plan.names), uniform, {}


class _Nameless(BackendClass):
    """A backend that has not been given a name."""

    def make(self, converter: Any) -> type:
        """Return the class."""
        builder = converter.convert(self.builder, "builder")
        return type("Nameless", (), {"get_builder_cls": staticmethod(lambda: builder)})


def _nameless(_: GroupPlan) -> tuple[list[str], Any, Mapping[str, Any]]:
    backend = _Nameless("", BuilderClass())
    return [BAD], full_spec(), {BAD: Own(ATTENTION, BAD, backend=backend)}


INIT_ATTN_BACKEND_INVALID_INPUTS = [
    # Without groups, the layers need not be read.
    *where(lambda call: call.facts, invalid_by_kind(**CONFIG)),
    *invalid_by_kind(
        kv_cache_config=Object(reads="kv_cache_groups"),
        **{
            "kv_cache_config.kv_cache_groups": List(),
            "kv_cache_config.kv_cache_groups[-1].layer_names": List(Str()),
        },
    ),
    *refusals(
        ValueError, layer_names={"a group is empty": _group(lambda plan: ([], plan.spec, {}))}
    ),
    *showing(
        NOWHERE,
        refusals(
            KeyError,
            kv_cache_groups={
                "a layer is unknown": _group(lambda plan: ([*plan.names, NOWHERE], plan.spec, {}))
            },
        ),
    ),
    *refusals(
        ValueError,
        kv_cache_groups={"backends differ": _group(_unlike(is_alike=False))},
        **{
            BAD: {
                "backends are equal, but not one": _group(_unlike(is_alike=True)),
                "a group's own specs differ": _group(_unlike_specs),
            }
        },
    ),
    *refusals(KeyError, kv_cache_spec={"no layer has a spec of its own": _group(_foreign_specs)}),
    *refusals(
        AttributeError,
        get_attn_backend={
            "a layer has no backend": _group(
                lambda _: ([BAD], full_spec(), {BAD: Own(ATTENTION, BAD)})
            )
        },
        get_name={"a backend has no name": _group(_nameless)},
    ),
]

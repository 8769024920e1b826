"""Invalid inputs of the functions about layers: wrong configurations, layers and groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

import reference
from conformance.contracts.contract import Change
from conformance.invalid_inputs.changes import (
    Refusals,
    chained,
    change_maker,
    changed,
    prepared,
    refusals,
    replaced,
    where,
)
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
from conformance.strategies.attention_layers import ATTENTION, GroupPlan, full_spec
from conformance.strategies.stub_factories import BackendClass, BuilderClass, Own
from conformance.values.call import Call

NOWHERE = "layers.99.attn"
"""The name of a layer that does not exist."""

BAD = "layers.77.attn"
"""The name of an invalid layer, which is added to those of a valid call."""

CONFIG: dict[str, Kind] = {
    "vllm_config": Object(reads="compilation_config"),
    "vllm_config.compilation_config": Object(reads="static_forward_context"),
}
"""The kinds of a configuration whose layers are read."""

UNKNOWN_NAME = refusals({(KeyError, "layer_names"): {"a name is unknown": [NOWHERE]}}, also=NOWHERE)

LAYERS = "vllm_config.compilation_config.static_forward_context"

NO_MAPPING = refusals(
    {(TypeError, "static_forward_context"): {"the layers are a list": changed(LAYERS, list)}}
)

GET_LAYERS_INVALID_INPUTS = [
    *invalid_by_kind(layer_type=Class(), layer_names=List(Str(), is_optional=True), **CONFIG),
    *UNKNOWN_NAME,
    *NO_MAPPING,
]

ATTRIBUTES: dict[str, Any] = {
    "attn_type": reference.AttentionType.DECODER,
    "num_kv_heads": 2,
    "head_size": 8,
    "sliding_window": None,
}
"""The attributes of an attention layer that are read."""


LAYER = f"{LAYERS}[{BAD}]"


def with_layers(layers: Mapping[str, Any]) -> Change:
    """Return the change that adds layers to a configuration, or replaces them."""
    return changed(LAYERS, lambda context: {**context, **layers})


WITH_LAYER = chained(
    with_layers({BAD: Own(ATTENTION, BAD, ATTRIBUTES)}),
    replaced("vllm_config.cache_config", reference.CacheConfig(block_size=16)),
)
"""Adds one more attention layer, and gives a cache configuration."""

GET_KV_CACHE_SPEC_REFUSALS: Refusals = {
    (ValueError, BAD): {
        f"a layer is of type {kind!r}": replaced(f"{LAYER}.attn_type", kind)
        for kind in ("encoder", "encoder_only", "encoder_decoder", "Decoder", None)
    }
}

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
        WITH_LAYER,
        [
            *refusals(GET_KV_CACHE_SPEC_REFUSALS),
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


Group: TypeAlias = "tuple[object, Any, Mapping[str, Any]]"
"""A group: its names, its spec, and layers that are added or replaced."""


@change_maker
def _group(call: Call, change: Callable[[GroupPlan], Group]) -> Call | None:
    """Change the last group, which is checked before the first group's builder."""
    if not call.source:
        return None
    names, spec, layers = change(call.source[-1])
    bad: Any = reference.KVCacheGroupSpec(names, spec)  # type: ignore[arg-type]  # invalid names too
    group = replaced("kv_cache_config.kv_cache_groups[-1]", bad)
    return chained(with_layers(layers), group)(call)


def _one_more(plan: GroupPlan, backend: Any, spec: Any = None) -> Group:
    """Return a group with one more layer, with this backend."""
    return [*plan.names, BAD], spec or plan.spec, {BAD: Own(ATTENTION, BAD, backend=backend)}


def _unlike(plan: GroupPlan, *, is_alike: bool) -> Group:
    """Return a group with one more layer, with another, possibly equal, backend class."""
    ours, theirs = (dataclasses.replace(plan.backend, is_alike=is_alike) for _ in "ab")
    names, spec, layers = _one_more(plan, theirs)
    return names, spec, {**layers, **{n: Own(ATTENTION, n, backend=ours) for n in plan.names}}


def _unlike_specs(plan: GroupPlan) -> Group:
    size, dtype = plan.spec.block_size, np.dtype(np.float16)
    specs: dict[str, Any] = {
        name: reference.FullAttentionSpec(size, 2, 8, dtype) for name in plan.names
    }
    # Another class with the same numbers is another spec.
    specs[BAD] = reference.MLAAttentionSpec(size, 2, 8, dtype)
    return _one_more(plan, plan.backend, reference.UniformTypeKVCacheSpecs(size, specs))


def _foreign_specs(plan: GroupPlan) -> Group:
    spec = full_spec()
    return [*plan.names], reference.UniformTypeKVCacheSpecs(spec.block_size, {NOWHERE: spec}), {}


def _only(layer: Own) -> Callable[[GroupPlan], Group]:
    """Return a function that makes a group of only one layer, a bad one."""
    return lambda _: ([BAD], full_spec(), {BAD: layer})


class _Nameless(BackendClass):
    """A factory of a backend class without `get_name`."""

    def make(self, converter: Any) -> type:
        """Return the class."""
        builder = converter.convert(self.builder, "builder")
        return type("Nameless", (), {"get_builder_cls": staticmethod(lambda: builder)})


NAMELESS = Own(ATTENTION, BAD, backend=_Nameless("", BuilderClass()))

INVALID_GROUPS: Refusals = {
    (ValueError, "layer_names"): {"a group is empty": _group(lambda plan: ([], plan.spec, {}))},
    (ValueError, "kv_cache_groups"): {
        "backends differ": _group(lambda plan: _unlike(plan, is_alike=False))
    },
    (ValueError, BAD): {
        "backends are equal, but not one": _group(lambda plan: _unlike(plan, is_alike=True)),
        "a group's own specs differ": _group(_unlike_specs),
    },
    (KeyError, "kv_cache_spec"): {"no layer has a spec of its own": _group(_foreign_specs)},
    (AttributeError, "get_attn_backend"): {
        "a layer has no backend": _group(_only(Own(ATTENTION, BAD)))
    },
    (AttributeError, "get_name"): {"a backend has no name": _group(_only(NAMELESS))},
}

UNKNOWN_LAYER = _group(lambda plan: ([*plan.names, NOWHERE], plan.spec, {}))

INIT_ATTN_BACKEND_INVALID_INPUTS = [
    # Without groups, the layers need not be read.
    *where(lambda call: call.source, [*invalid_by_kind(**CONFIG), *NO_MAPPING]),
    *invalid_by_kind(
        kv_cache_config=Object(reads="kv_cache_groups"),
        **{
            "kv_cache_config.kv_cache_groups": List(),
            "kv_cache_config.kv_cache_groups[-1].layer_names": List(Str()),
        },
    ),
    *refusals(INVALID_GROUPS),
    *refusals({(KeyError, "kv_cache_groups"): {"a layer is unknown": UNKNOWN_LAYER}}, also=NOWHERE),
]

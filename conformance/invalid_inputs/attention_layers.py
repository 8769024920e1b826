"""Bad calls of the functions about layers: configurations, layers and groups that do not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import reference
from conformance.contracts import Call, Change, InvalidInput, replaced
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


def config_faults() -> list[InvalidInput]:
    """Return the faults of a configuration that lacks the layers."""
    return [
        InvalidInput(
            "vllm_config is None",
            AttributeError,
            "compilation_config",
            replaced("vllm_config", None),
        ),
        InvalidInput(
            "compilation_config is None",
            AttributeError,
            "static_forward_context",
            lambda call: call.replacing(
                vllm_config=replacing_parts(call.arguments["vllm_config"], compilation_config=None)
            ),
        ),
    ]


def names_faults() -> list[InvalidInput]:
    """Return the faults of an argument `layer_names`."""
    return [
        InvalidInput("names are a tuple", TypeError, "layer_names", replaced("layer_names", ())),
        InvalidInput(
            "names are a str", TypeError, "layer_names", replaced("layer_names", "layers.0")
        ),
        InvalidInput("a name is an int", TypeError, "layer_names", replaced("layer_names", [0])),
        InvalidInput(
            "a name is unknown",
            KeyError,
            "layer_names",
            replaced("layer_names", [NOWHERE]),
            also=NOWHERE,
        ),
    ]


GET_LAYERS_INVALID_INPUTS = [
    *config_faults(),
    *names_faults(),
    InvalidInput(
        "the type is a name", TypeError, "layer_type", replaced("layer_type", "Attention")
    ),
    InvalidInput("the type is None", TypeError, "layer_type", replaced("layer_type", None)),
]


def _with_layer(**changes: Any) -> Change:
    """Return a fault that adds an attention layer with these attributes in place of good ones."""
    return lambda call: _adding_layer(call, **changes)


def _adding_layer(call: Call, **changes: Any) -> Call:
    good: dict[str, Any] = {"attn_type": reference.AttentionType.DECODER}
    good |= {"num_kv_heads": 2, "head_size": 8, "sliding_window": None}
    attributes = {k: v for k, v in {**good, **changes}.items() if v is not ...}
    layer = Own(ATTENTION, BAD, attributes)
    config = replacing_layers(call.arguments["vllm_config"], **{BAD: layer})
    return call.replacing(vllm_config=config)


def _with_block_size(block_size: object) -> Change:
    cache = reference.CacheConfig(block_size=block_size)  # type: ignore[arg-type]  # a fault

    def breaks(call: Call) -> Call:
        # A configuration without layers makes no spec.
        config = _adding_layer(call).arguments["vllm_config"]
        return call.replacing(vllm_config=replacing_parts(config, cache_config=cache))

    return breaks


GET_KV_CACHE_SPEC_INVALID_INPUTS = [
    *config_faults()[1:],
    InvalidInput(
        "vllm_config is None",
        AttributeError,
        "cache_config|compilation_config",
        replaced("vllm_config", None),
    ),
    *(
        InvalidInput(f"a layer is of type {kind!r}", ValueError, BAD, _with_layer(attn_type=kind))
        for kind in ("encoder", "encoder_only", "encoder_decoder", "Decoder", None)
    ),
    *(
        InvalidInput(
            f"the dtype is {what}", TypeError, "kv_cache_dtype", replaced("kv_cache_dtype", bad)
        )
        for what, bad in (
            ("a name", "float16"),
            ("Python's", float),
            ("None", None),
            ("of objects", np.dtype(object)),
            ("of records", np.dtype([("a", np.int32)])),
        )
    ),
    *(
        InvalidInput(f"{name} is {bad!r}", error, name, _with_layer(**{name: bad}), also=BAD)
        for name in ("num_kv_heads", "head_size", "sliding_window")
        for error, bad in ((ValueError, 0), (TypeError, True), (TypeError, 4.0))
    ),
    *(
        InvalidInput(f"a layer has no {name}", AttributeError, name, _with_layer(**{name: ...}))
        for name in ("num_kv_heads", "head_size", "sliding_window")
    ),
    InvalidInput("the block size is 0", ValueError, "block_size", _with_block_size(0)),
    InvalidInput("the block size is a float", TypeError, "block_size", _with_block_size(16.0)),
    InvalidInput(
        "cache_config is None",
        AttributeError,
        "block_size",
        lambda call: call.replacing(
            vllm_config=replacing_parts(call.arguments["vllm_config"], cache_config=None)
        ),
    ),
]


Broken = Callable[[GroupPlan], "tuple[list[str], Any, Mapping[str, Any]] | None"]
"""Makes a group bad: its names, its spec, and layers that are added or replaced."""


def _group(change: Broken) -> Change:
    """Return a fault of the last group, which is checked before the first group's builder."""

    def breaks(call: Call) -> Call | None:
        plans = call.facts
        broken = change(plans[-1]) if plans else None
        if broken is None:
            return None
        names, spec, layers = broken
        given = call.arguments["kv_cache_config"]
        bad = reference.KVCacheGroupSpec(names, spec)
        groups = [*given.kv_cache_groups[:-1], bad]
        return call.replacing(
            kv_cache_config=dataclasses.replace(given, kv_cache_groups=groups),
            vllm_config=replacing_layers(call.arguments["vllm_config"], **layers),
        )

    return breaks


def _unlike(*, is_alike: bool) -> Broken:
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


def _where_groups(breaks: Change) -> Change:
    """Return a fault of calls with groups alone: without, the layers need not be read."""
    return lambda call: breaks(call) if call.facts else None


class _Nameless(BackendClass):
    """A backend that has not been given a name."""

    def make(self, carrier: Any) -> type:
        """Return the class."""
        builder = carrier.carry(self.builder, "builder")
        return type("Nameless", (), {"get_builder_cls": staticmethod(lambda: builder)})


def _nameless(_: GroupPlan) -> tuple[list[str], Any, Mapping[str, Any]]:
    backend = _Nameless("", BuilderClass())
    return [BAD], full_spec(), {BAD: Own(ATTENTION, BAD, backend=backend)}


INIT_ATTN_BACKEND_INVALID_INPUTS = [
    *(dataclasses.replace(fault, change=_where_groups(fault.change)) for fault in config_faults()),
    InvalidInput("a group is empty", ValueError, "layer_names", _group(lambda p: ([], p.spec, {}))),
    InvalidInput(
        "a group's names are a tuple",
        TypeError,
        "layer_names",
        _group(lambda p: (p.names, p.spec, {})),  # type: ignore[arg-type,return-value]  # a fault
    ),
    InvalidInput(
        "a group's name is an int",
        TypeError,
        "layer_names",
        _group(lambda p: ([*p.names, 3], p.spec, {})),  # type: ignore[list-item]  # a fault
    ),
    InvalidInput(
        "a layer is unknown",
        KeyError,
        "kv_cache_groups",
        _group(lambda p: ([*p.names, NOWHERE], p.spec, {})),
        also=NOWHERE,
    ),
    InvalidInput(
        "backends are unlike", ValueError, "kv_cache_groups", _group(_unlike(is_alike=False))
    ),
    InvalidInput(
        "backends are equal, but not one", ValueError, BAD, _group(_unlike(is_alike=True))
    ),
    InvalidInput("a group's own specs are unlike", ValueError, BAD, _group(_unlike_specs)),
    InvalidInput(
        "no layer has a spec of its own", KeyError, "kv_cache_spec", _group(_foreign_specs)
    ),
    InvalidInput(
        "a layer has no backend",
        AttributeError,
        "get_attn_backend",
        _group(lambda _: ([BAD], full_spec(), {BAD: Own(ATTENTION, BAD)})),
    ),
    InvalidInput("a backend has no name", AttributeError, "get_name", _group(_nameless)),
    InvalidInput(
        "groups are a tuple",
        TypeError,
        "kv_cache_groups",
        lambda call: call.replacing(
            kv_cache_config=dataclasses.replace(
                call.arguments["kv_cache_config"], kv_cache_groups=()
            )
        ),
    ),
    InvalidInput(
        "kv_cache_config is None",
        AttributeError,
        "kv_cache_groups",
        replaced("kv_cache_config", None),
    ),
]

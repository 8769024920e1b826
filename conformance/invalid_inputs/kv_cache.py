"""Bad calls of the functions that allocate the KV cache of a model, and that do it all."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import reference
from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.kv_binding import by_default
from conformance.invalid_inputs.kv_cache_spec import bad_ints
from conformance.invalid_inputs.kv_views import (
    cached_groups,
    groups_are_a_tuple,
    in_one_group,
    in_two_groups,
    named_twice,
    with_groups,
)


def _tensors(change: Callable[[list[Any]], object]) -> Change:
    """Return a fault in the tensors of a configuration, of which there must be some."""

    def breaks(call: Call) -> Call | None:
        config = call.arguments["kv_cache_config"]
        if not call.facts.layers:
            return None
        # Those that somebody uses come first.
        tensors = sorted(config.kv_cache_tensors, key=lambda tensor: not tensor.shared_by)
        bad = change(tensors)
        if bad is None:
            return None
        return call.replacing(kv_cache_config=dataclasses.replace(config, kv_cache_tensors=bad))

    return breaks


def _first(**fields: Any) -> Change:
    return _tensors(lambda tensors: [dataclasses.replace(tensors[0], **fields), *tensors[1:]])


def _naming(change: Callable[[list[str]], object]) -> Change:
    """Return a fault in the layers of the first tensor."""

    def breaks(call: Call) -> Call | None:
        return _tensors(
            lambda tensors: [
                dataclasses.replace(tensors[0], shared_by=change(tensors[0].shared_by)),
                *tensors[1:],
            ]
        )(call)

    return breaks


def _in_two_tensors(tensors: list[Any]) -> list[Any]:
    return [*tensors, reference.KVCacheTensor(4, tensors[0].shared_by[-1:])]


def _encoder_only_in_a_tensor(call: Call) -> Call | None:
    names = {layer.name for layer in call.facts.layers}
    groups = [g for g in cached_groups(call) if not names.intersection(g.layer_names)]
    if not groups:
        return None
    return _naming(lambda known: [*known, groups[0].layer_names[0]])(call)


def _group_without_tensor(call: Call) -> Call:
    spec = reference.KVCacheSpec(16)
    group = reference.KVCacheGroupSpec(["layers.77.attn"], spec)
    return with_groups(call, [*cached_groups(call), group])


def _groups(change: Callable[[list[Any]], list[Any]]) -> Change:
    return lambda call: (
        with_groups(call, change(cached_groups(call))) if cached_groups(call) else None
    )


TENSORS = "(kv_cache_tensors|shared_by)"
MISSING = r"layers\.77\.attn"

ALLOCATE_INVALID_INPUTS = [
    *(
        InvalidInput(f"a size is {what}", error, "size", _first(size=value))
        for what, error, value in bad_ints(0)
    ),
    InvalidInput("a size is 2**63", ValueError, "size", _first(size=2**63)),
    InvalidInput("groups are a tuple", TypeError, "kv_cache_groups", groups_are_a_tuple),
    InvalidInput(
        "a layer of a group is an int",
        TypeError,
        "layer_names",
        named_twice(
            lambda groups: [
                dataclasses.replace(groups[0], layer_names=[*groups[0].layer_names, 7]),
                *groups[1:],
            ]
        ),
    ),
    InvalidInput(
        "a layer of a tensor is in no group",
        ValueError,
        MISSING,
        _naming(lambda n: [*n, "layers.77.attn"]),
    ),
    InvalidInput("a layer of a group is in no tensor", ValueError, MISSING, _group_without_tensor),
    InvalidInput(
        "a layer twice in a tensor", ValueError, TENSORS, _naming(lambda names: [*names, names[0]])
    ),
    InvalidInput("a layer in two tensors", ValueError, TENSORS, _tensors(_in_two_tensors)),
    InvalidInput("a tensor is gone", ValueError, TENSORS, _tensors(lambda tensors: tensors[1:])),
    InvalidInput(
        "an encoder-only layer is in a tensor", ValueError, TENSORS, _encoder_only_in_a_tensor
    ),
    InvalidInput("layers are a tuple", TypeError, "shared_by", _naming(tuple)),
    InvalidInput("layers are a text", TypeError, "shared_by", _naming(lambda names: names[0])),
    InvalidInput("a layer is an int", TypeError, "shared_by", _naming(lambda names: [*names, 7])),
    InvalidInput("tensors are a tuple", TypeError, "kv_cache_tensors", _tensors(tuple)),
    InvalidInput(
        "a layer twice in a group", ValueError, "kv_cache_groups", named_twice(in_one_group)
    ),
    InvalidInput(
        "a layer in two groups", ValueError, "kv_cache_groups", named_twice(in_two_groups)
    ),
    InvalidInput(
        "layers of a group are a tuple",
        TypeError,
        "layer_names",
        _groups(
            lambda groups: [
                *(dataclasses.replace(g, layer_names=tuple(g.layer_names)) for g in groups),
                reference.KVCacheGroupSpec((), reference.KVCacheSpec(2)),  # type: ignore[arg-type]  # the fault
            ]
        ),
    ),
    InvalidInput(
        "there is no configuration",
        AttributeError,
        "(kv_cache_groups|kv_cache_tensors)",
        replaced("kv_cache_config", None),
    ),
]


def _has_caches(breaks: Change) -> Change:
    return lambda call: breaks(call) if call.facts.layers else None


def _last_layer_gone(call: Call) -> Call | None:
    if not call.facts.layers:
        return None
    context = dict(call.arguments["forward_context"])
    del context[call.facts.layers[-1].name]
    return call.replacing(forward_context=context)


def _nameless(call: Call) -> Call | None:
    """Rename the last layer everywhere, so that its name has no index."""
    return _renamed(call, "layers.last.attn")


def _numbered_twice(call: Call) -> Call | None:
    """Rename the last layer everywhere, so that its name has two integers, and is no other's."""
    taken = call.arguments["forward_context"]
    return _renamed(
        call, next(name for n in itertools.count(1) if (name := f"layers.0.attn.{n}") not in taken)
    )


def _renamed(call: Call, new: str) -> Call | None:
    """Return the call with another name of the last layer, everywhere."""
    if not call.facts.layers:
        return None
    old = call.facts.layers[-1].name

    def renamed(names: list[str]) -> list[str]:
        return [new if name == old else name for name in names]

    def without(specs: dict[str, Any]) -> dict[str, Any]:
        return {new if name == old else name: spec for name, spec in specs.items()}

    groups = [
        dataclasses.replace(
            group,
            layer_names=renamed(group.layer_names),
            kv_cache_spec=dataclasses.replace(
                group.kv_cache_spec, kv_cache_specs=without(group.kv_cache_spec.kv_cache_specs)
            )
            if hasattr(group.kv_cache_spec, "kv_cache_specs")
            else group.kv_cache_spec,
        )
        for group in cached_groups(call)
    ]
    config = call.arguments["kv_cache_config"]
    tensors = [
        dataclasses.replace(tensor, shared_by=renamed(tensor.shared_by))
        for tensor in config.kv_cache_tensors
    ]
    return call.replacing(
        kv_cache_config=dataclasses.replace(
            config, kv_cache_groups=groups, kv_cache_tensors=tensors
        ),
        forward_context=without(call.arguments["forward_context"]),
        attn_backends=without(call.arguments["attn_backends"]),
    )


def _no_backends(call: Call) -> Call | None:
    if all(layer.is_mamba for layer in call.facts.layers):
        return None
    return call.replacing(attn_backends={})


INIT_INVALID_INPUTS = [
    InvalidInput(
        "the runner has caches", ValueError, "runner_kv_caches", replaced("runner_kv_caches", [7])
    ),
    InvalidInput(
        "the runner has a tuple", TypeError, "runner_kv_caches", replaced("runner_kv_caches", ())
    ),
    InvalidInput(
        "layers are a list", TypeError, "forward_context", replaced("forward_context", [])
    ),
    InvalidInput("a layer is not in the context", KeyError, "forward_context", _last_layer_gone),
    InvalidInput("a name without an index", ValueError, "layer_name", _nameless),
    InvalidInput(
        "a name with two integers, by default",
        ValueError,
        "layer_name",
        by_default(_numbered_twice),
    ),
    InvalidInput(
        "attention modules are 0", ValueError, "num_attn_module", replaced("num_attn_module", 0)
    ),
    InvalidInput(
        "attention modules are a bool",
        TypeError,
        "num_attn_module",
        replaced("num_attn_module", True),
    ),
    InvalidInput("a layer has no backend", KeyError, "attn_backends", _no_backends),
    InvalidInput("backends are None", TypeError, "attn_backends", replaced("attn_backends", None)),
    InvalidInput(
        "a layer of a group is in no tensor", ValueError, TENSORS, _naming(lambda n: n[1:])
    ),
    InvalidInput("a size is negative", ValueError, "size", _first(size=-1)),
    InvalidInput(
        "a size is no whole page",
        ValueError,
        "(kv_cache_raw_tensors|raw tensor)",
        _tensors(
            lambda tensors: [
                dataclasses.replace(tensors[0], size=tensors[0].size + 1),
                *tensors[1:],
            ]
        ),
    ),
    InvalidInput(
        "kernel sizes are a tuple",
        TypeError,
        "kernel_block_sizes",
        replaced("kernel_block_sizes", ()),
    ),
    InvalidInput(
        "kernel sizes are too many",
        ValueError,
        "kernel_block_sizes",
        replaced("kernel_block_sizes", [1] * 9),
    ),
    InvalidInput(
        "there is no configuration",
        AttributeError,
        "(kv_cache_groups|kv_cache_tensors)",
        replaced("kv_cache_config", None),
    ),
]

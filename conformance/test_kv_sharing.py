"""Sharing: layers that have no cache of their own, but use that of a target layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.goals import Goals
from conformance.coverage.size_axes import Axes, of_objects
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.kv_sharing import ADD_INVALID_INPUTS, INITIALIZE_INVALID_INPUTS
from conformance.strategies.kv_sharing import (
    GROUPS,
    LAYERS_OF_A_GROUP,
    SHARING_LAYERS,
    add_calls,
    initialize_calls,
)
from conformance.targets.target import Target
from conformance.values.call import Call


def shared(arguments: Mapping[str, Any]) -> object:
    """Return each group's layers, the first layer with each cache, and the runner-only layers."""
    caches = arguments.get("kv_caches", {})
    caches = caches if isinstance(caches, dict) else {}
    first = {id(cache): name for name, cache in reversed(caches.items())}
    groups = arguments["kv_cache_groups"]
    known = arguments.get("runner_only_attn_layers")
    return (
        [[*group.layer_names] for group in groups],
        {name: first[id(cache)] for name, cache in caches.items()},
        sorted(known) if isinstance(known, set) else known,
    )


def _pairs(call: Call) -> dict[str, str]:
    pairs: dict[str, str] = call["shared_kv_cache_layers"]
    return pairs


def _grouped(call: Call) -> set[str]:
    return {name for group in call["kv_cache_groups"] for name in group.layer_names}


GOALS: Goals = {
    "nothing is shared": lambda call: not _pairs(call),
    "two layers share from one": lambda call: len(set(_pairs(call).values())) < len(_pairs(call)),
    "layers share in two groups": lambda call: (
        sum(
            any(target in group.layer_names for target in _pairs(call).values())
            for group in call["kv_cache_groups"]
        )
        > 1
    ),
    "a layer in its target's group already": lambda call: any(
        layer in _grouped(call) for layer in _pairs(call)
    ),
    "a layer in no group yet": lambda call: any(
        layer not in _grouped(call) for layer in _pairs(call)
    ),
    "layers that names order otherwise": lambda call: list(_pairs(call)) != sorted(_pairs(call)),
}


AXES: Axes = {
    GROUPS: of_objects(lambda call: len(call["kv_cache_groups"]), last=257),
    LAYERS_OF_A_GROUP: of_objects(
        lambda call: max((len(group.layer_names) for group in call["kv_cache_groups"]), default=0),
        1,
    ),
    SHARING_LAYERS: of_objects(lambda call: len(_pairs(call)), last=4097),
}


def _had(call: Call, *, its_targets: bool) -> bool:
    caches = call["kv_caches"]
    return any(
        layer in caches and (caches[layer] is caches[target]) == its_targets
        for layer, target in _pairs(call).items()
    )


test_initialize_kv_cache_for_kv_sharing = Contract(
    "initialize_kv_cache_for_kv_sharing",
    initialize_calls,
    {
        **GOALS,
        "a layer that had a cache of its own": lambda call: _had(call, its_targets=False),
        "a layer that had its target's": lambda call: _had(call, its_targets=True),
    },
    axes=AXES,
    invalid_inputs=INITIALIZE_INVALID_INPUTS,
    changes=frozenset({"kv_cache_groups", "kv_caches"}),
    observe=shared,
    takes_objects=True,
    has_fixed_arrays=True,
)


test_add_kv_sharing_layers_to_kv_cache_groups = Contract(
    "add_kv_sharing_layers_to_kv_cache_groups",
    add_calls,
    {
        **GOALS,
        "not requested: the layers": lambda call: call.get("runner_only_attn_layers") is None,
        "an empty set": lambda call: call.get("runner_only_attn_layers") == set(),
        "a set that knows others": lambda call: bool(call.get("runner_only_attn_layers")),
    },
    pairs=(("an empty set", "a layer in its target's group already"),),
    axes=AXES,
    invalid_inputs=ADD_INVALID_INPUTS,
    changes=frozenset({"kv_cache_groups", "runner_only_attn_layers"}),
    observe=shared,
    takes_objects=True,
)


@property_check("initialize_kv_cache_for_kv_sharing", initialize_calls)
def test_sharing_twice_is_sharing_once(target: Target, call: Call) -> None:
    """Each layer has its target's cache and group, once; another call changes nothing."""
    invocation = Invocation(target, call)
    assert invocation.run() is None
    once = shared(invocation.arguments)
    caches, groups = invocation.arguments["kv_caches"], invocation.arguments["kv_cache_groups"]
    for layer, owner in _pairs(call).items():
        assert caches[layer] is caches[owner]
        [home] = [group for group in groups if layer in group.layer_names]
        assert owner in home.layer_names
        assert home.layer_names.count(layer) == 1
    invocation.run()
    assert once == shared(invocation.arguments)


@property_check("add_kv_sharing_layers_to_kv_cache_groups", add_calls)
def test_layers_are_added_behind_the_others(target: Target, call: Call) -> None:
    """A group keeps its layers in their order; added layers follow in the given order."""
    invocation = Invocation(target, call)
    invocation.run()
    known = invocation.arguments.get("runner_only_attn_layers")
    if known is not None:
        assert call["runner_only_attn_layers"] | _pairs(call).keys() == known
    for before, after in zip(
        call["kv_cache_groups"], invocation.arguments["kv_cache_groups"], strict=True
    ):
        number = len(before.layer_names)
        assert before.layer_names == after.layer_names[:number]
        added = [
            layer
            for layer, owner in _pairs(call).items()
            if owner in before.layer_names and layer not in before.layer_names
        ]
        assert added == after.layer_names[number:]
    once = shared(invocation.arguments)
    invocation.run()
    assert once == shared(invocation.arguments)

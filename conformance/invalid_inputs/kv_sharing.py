"""Invalid inputs of the functions that let layers share the KV caches of others."""

from __future__ import annotations

from conformance.contracts.contract import Change
from conformance.invalid_inputs.changes import (
    Refusals,
    change_maker,
    changed,
    refusals,
    without_key,
)
from conformance.invalid_inputs.kinds import Dict, invalid_by_kind
from conformance.values.call import Call

SHARED, GROUPS = "shared_kv_cache_layers", "kv_cache_groups"

LAYER = "layers.801.attn"
"""A layer with a wrong target."""


def _targets(call: Call) -> list[str]:
    """Return layers that have a cache of their own."""
    names = [name for group in call.arguments[GROUPS] for name in group.layer_names]
    return [name for name in names if name not in call.arguments[SHARED]]


def _more(call: Call, pairs: dict[str, str]) -> Call:
    """Return the call with more pairs of a layer and its target, after the others."""
    return call.replacing(**{SHARED: {**call.arguments[SHARED], **pairs}})


def _pair(layer: object, target: object) -> Change:
    return changed(SHARED, lambda pairs: {**pairs, layer: target})


@change_maker
def _chain(call: Call, *, is_end_last: bool) -> Call:
    """Let a layer share from a layer that itself shares."""
    pairs = [(LAYER, "layers.802.attn"), ("layers.802.attn", _targets(call)[0])]
    return _more(call, dict(pairs if is_end_last else pairs[::-1]))


def _chain_in_its_group(call: Call) -> Call | None:
    """Let a layer share from a sharing layer that is already in a group."""
    in_groups = {name for group in call.arguments[GROUPS] for name in group.layer_names}
    sharing = [name for name in call.arguments[SHARED] if name in in_groups]
    return _more(call, {LAYER: sharing[0]}) if sharing else None


def _itself(call: Call) -> Call | None:
    """Let a layer that is no target yet share from itself."""
    free = [name for name in _targets(call) if name not in call.arguments[SHARED].values()]
    return _more(call, {free[0]: free[0]}) if free else None


def _in_another_group(call: Call) -> Call | None:
    """Share across groups: a layer that is in a group has a target in another."""
    groups = call.arguments[GROUPS]
    if len(groups) < 2:
        return None
    first, last = groups[0].layer_names[0], groups[-1].layer_names[-1]
    shared = call.arguments[SHARED]
    is_free = not {first, last} & {*shared, *shared.values()}
    return _more(call, {last: first}) if is_free else None


def _gone_from_caches(call: Call) -> Call | None:
    if not call.arguments[SHARED]:
        return None
    *_, target = call.arguments[SHARED].values()
    return changed("kv_caches", lambda caches: without_key(caches, target))(call)


SHARING_REFUSALS: Refusals = {
    (KeyError, "shared_kv_cache_layers"): {
        "a chain, its end last": _chain(is_end_last=True),
        "a chain, its end first": _chain(is_end_last=False),
        "a chain to a layer of a group": _chain_in_its_group,
    },
    (KeyError, f"({SHARED}|{GROUPS})"): {"a target is in no group": _pair(LAYER, "layers.88.attn")},
    (ValueError, "shared_kv_cache_layers"): {
        "a layer is its own target": _itself,
        "a layer is in another group": _in_another_group,
    },
    (TypeError, "kv_cache_groups"): {"kv_cache_groups is a tuple": changed(GROUPS, tuple)},
    (TypeError, "layer_names"): {
        "layer_names is a tuple": changed(f"{GROUPS}[-1].layer_names", tuple),
        "a layer's name is an int": changed(
            f"{GROUPS}[-1].layer_names", lambda names: [*names, 801]
        ),
    },
    (TypeError, "shared_kv_cache_layers"): {
        "a target is None": _pair(LAYER, None),
        "a target is an int": _pair(LAYER, 0),
        "a layer is an int": lambda call: _pair(801, _targets(call)[0])(call),
    },
}

SHARING_INVALID_INPUTS = [
    *invalid_by_kind(shared_kv_cache_layers=Dict()),
    *refusals(SHARING_REFUSALS),
]

INITIALIZE_INVALID_INPUTS = [
    *SHARING_INVALID_INPUTS,
    *invalid_by_kind(kv_caches=Dict()),
    *refusals({(KeyError, "kv_caches"): {"the last target has no cache": _gone_from_caches}}),
]

KNOWN = "runner_only_attn_layers"
NO_SETS: tuple[object, ...] = ([], {}, "layers.0.attn", False, frozenset())

ADD_INVALID_INPUTS = [
    *SHARING_INVALID_INPUTS,
    *refusals({(TypeError, KNOWN): {f"{KNOWN} is {value!r}": value for value in NO_SETS}}),
]

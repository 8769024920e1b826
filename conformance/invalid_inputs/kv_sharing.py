"""Bad calls of the functions that give sharing layers the caches of others."""

from __future__ import annotations

import dataclasses
from typing import Any

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.arrays import changed

SHARED = "shared_kv_cache_layers"
GROUPS = "kv_cache_groups"


def _targets(call: Call) -> list[str]:
    """Return layers that have a cache of their own."""
    names = [name for group in call.arguments[GROUPS] for name in group.layer_names]
    return [name for name in names if name not in call.arguments[SHARED]]


def _pair(layer: str, target: object) -> Change:
    """Return a fault: one more pair, behind the others."""
    return lambda call: call.replacing(**{SHARED: {**call.arguments[SHARED], layer: target}})


def _chain(*, is_first: bool) -> Change:
    """Return a fault: a layer shares from one that itself shares."""

    def breaks(call: Call) -> Call:
        target = _targets(call)[0]
        pairs: dict[str, Any] = {"layers.801.attn": "layers.802.attn", "layers.802.attn": target}
        if not is_first:
            pairs = dict(reversed(pairs.items()))
        return call.replacing(**{SHARED: {**call.arguments[SHARED], **pairs}})

    return breaks


def _chain_in_its_group(call: Call) -> Call | None:
    """Share from a sharing layer that is in a group already, and has a cache."""
    in_groups = {name for group in call.arguments[GROUPS] for name in group.layer_names}
    sharing = [name for name in call.arguments[SHARED] if name in in_groups]
    if not sharing:
        return None
    return _pair("layers.801.attn", sharing[0])(call)


def _itself(call: Call) -> Call | None:
    """Let a layer that nobody shares from share from itself."""
    free = [name for name in _targets(call) if name not in call.arguments[SHARED].values()]
    return _pair(free[0], free[0])(call) if free else None


def _in_another_group(call: Call) -> Call | None:
    """Share across groups: a layer that stands in a group has a target in another."""
    groups = call.arguments[GROUPS]
    if len(groups) < 2:
        return None
    first, last = groups[0].layer_names[0], groups[-1].layer_names[-1]
    shared = call.arguments[SHARED]
    if {first, last} & {*shared, *shared.values()}:
        return None
    return call.replacing(**{SHARED: {**shared, last: first}})


def _gone_from_caches(call: Call) -> Call | None:
    pairs = call.arguments[SHARED]
    if not pairs:
        return None
    target = list(pairs.values())[-1]
    caches = {k: v for k, v in call.arguments["kv_caches"].items() if k != target}
    return call.replacing(kv_caches=caches)


def _tuple_of_names(call: Call) -> Call:
    groups = call.arguments[GROUPS]
    bad = dataclasses.replace(groups[-1], layer_names=tuple(groups[-1].layer_names))
    return call.replacing(**{GROUPS: [*groups[:-1], bad]})


SHARING_INVALID_INPUTS = [
    InvalidInput(
        "a target is in no group",
        KeyError,
        f"({SHARED}|{GROUPS})",
        _pair("layers.801.attn", "layers.88.attn"),
    ),
    InvalidInput("a chain, its end last", KeyError, SHARED, _chain(is_first=True)),
    InvalidInput("a chain, its end first", KeyError, SHARED, _chain(is_first=False)),
    InvalidInput("a chain to a layer of a group", KeyError, SHARED, _chain_in_its_group),
    InvalidInput("a layer is its own target", ValueError, SHARED, _itself),
    InvalidInput("a layer stands in another group", ValueError, SHARED, _in_another_group),
    InvalidInput(
        "pairs are a list", TypeError, SHARED, changed(SHARED, lambda pairs: [*pairs.items()])
    ),
    InvalidInput("pairs are None", TypeError, SHARED, replaced(SHARED, None)),
    InvalidInput("a target is None", TypeError, SHARED, _pair("layers.801.attn", None)),
    InvalidInput("a target is an int", TypeError, SHARED, _pair("layers.801.attn", 0)),
    InvalidInput(
        "a layer is an int",
        TypeError,
        SHARED,
        lambda call: call.replacing(**{SHARED: {**call.arguments[SHARED], 801: _targets(call)[0]}}),
    ),
    InvalidInput("groups are a tuple", TypeError, GROUPS, changed(GROUPS, tuple)),
    InvalidInput("layers of a group are a tuple", TypeError, "layer_names", _tuple_of_names),
]

INITIALIZE_INVALID_INPUTS = [
    *SHARING_INVALID_INPUTS,
    InvalidInput("caches are a list", TypeError, "kv_caches", changed("kv_caches", list)),
    InvalidInput("the last target has no cache", KeyError, "kv_caches", _gone_from_caches),
]

NO_SETS: tuple[object, ...] = ([], {}, "layers.0.attn", False, frozenset())

ADD_INVALID_INPUTS = [
    *SHARING_INVALID_INPUTS,
    *(
        InvalidInput(
            f"known layers are {value!r}",
            TypeError,
            "runner_only_attn_layers",
            replaced("runner_only_attn_layers", value),
        )
        for value in NO_SETS
    ),
]

"""Invalid inputs of `extract_layer_index` and `bind_kv_cache`."""

from __future__ import annotations

from typing import Any

from conformance.contracts.contract import Change
from conformance.invalid_inputs.changes import (
    Refusals,
    chained,
    change_maker,
    refusals,
    set_arguments,
    without_key,
)
from conformance.invalid_inputs.kinds import Dict, Int, List, Str, invalid_by_kind
from conformance.values.call import Call

MODULES = Int(is_optional=True)


def by_default(change: Change) -> Change:
    """Return a change that also leaves the number of attention modules to its default."""
    return chained(change, lambda call: call.without("num_attn_module"))


NAMES = (
    ("encoder.layers.0.sub.1", 1),
    ("model.layers.0.attn.1", 1),
    ("model.layers.0.attn.1", None),
    ("layers.0.sub.1", 2),
    ("layers.0.attn.1.2", 2),
    ("layers.0.attn.1.2", 3),
    ("layers.attn", 1),
    ("layers.attn", 2),
    ("", 1),
    ("...", 2),
    ("layers.².attn", 1),
    ("layers.٣.attn", 1),
    ("layers.-1.attn", 1),
    ("layers.+1.attn", 1),
    ("layers.1_0.attn", 2),
    ("layers. 1.attn", 1),
    ("layers.1\n.attn", 1),
    ("layers.0x1.attn", 1),
    ("layers12attn", 2),
)
"""Names without an index, by the number of attention modules in a layer."""

EXTRACT_REFUSALS: Refusals = {
    (ValueError, "layer_name"): {
        **{
            f"{name!r} with {modules}": set_arguments(layer_name=name, num_attn_module=modules)
            for name, modules in NAMES
        },
        "two integers, by default": by_default(set_arguments(layer_name="layers.0.attn.1")),
    },
    (TypeError, "layer_name"): {"layer_name is a list": ["layers", "0"]},
}

EXTRACT_INVALID_INPUTS = [
    *invalid_by_kind(layer_name=Str(), num_attn_module=MODULES),
    *refusals(EXTRACT_REFUSALS),
]


@change_maker
def _last_layer(call: Call, change: Any, *arguments: str) -> Call | None:
    """Change dicts by layer name, given the name of the last layer that has a cache."""
    names = list(call.arguments["kv_caches"])
    bad = {name: change(call.arguments[name], names[-1]) for name in arguments if names}
    return call.replacing(**bad) if bad else None


def _renamed(new: str) -> Change:
    """Return the change of the last layer's name, in the context too."""

    def change(entries: dict[str, Any], name: str) -> dict[str, Any]:
        return {**without_key(entries, name), new: entries[name]}

    return _last_layer(change, "forward_context", "kv_caches")


BIND_REFUSALS: Refusals = {
    (ValueError, "runner_kv_caches"): {"the runner has caches": [0]},
    (ValueError, "layer_name"): {
        "the last name has no index": _renamed("layers.last.attn"),
        "the last name has too many": _renamed("a.1.b.2.c.3"),
        "the last name has '²' for an index": _renamed("layers.²"),
        "the last name has two integers, by default": by_default(_renamed("layers.0.attn.1")),
    },
    (KeyError, "forward_context"): {
        "the last layer is not there": _last_layer(without_key, "forward_context")
    },
    (AttributeError, "kv_cache"): {
        "the last layer is None": _last_layer(
            lambda layers, name: {**layers, name: None}, "forward_context"
        )
    },
}

BIND_INVALID_INPUTS = [
    *invalid_by_kind(
        kv_caches=Dict(), forward_context=Dict(), runner_kv_caches=List(), num_attn_module=MODULES
    ),
    *refusals(BIND_REFUSALS),
]

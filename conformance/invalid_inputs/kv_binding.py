"""Bad calls of what finds the index of layers and binds their caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.arrays import changed
from conformance.invalid_inputs.kv_cache_spec import bad_ints, field_faults


def _name(name: str, modules: int | None = 1) -> Change:
    return lambda call: call.replacing(layer_name=name, num_attn_module=modules)


def by_default(breaks: Change) -> Change:
    """Return a fault of calls that leave the number of attention modules to its default."""

    def breaks_it(call: Call) -> Call | None:
        bad = breaks(call)
        return bad and bad.without("num_attn_module")

    return breaks_it


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

EXTRACT_INVALID_INPUTS = [
    *(
        InvalidInput(f"{name!r} with {modules}", ValueError, "layer_name", _name(name, modules))
        for name, modules in NAMES
    ),
    *(
        InvalidInput(f"the name is {name!r}", TypeError, "layer_name", replaced("layer_name", name))
        for name in (7, None, b"layers.0.attn", ["layers", "0"])
    ),
    InvalidInput(
        "two integers, by default", ValueError, "layer_name", by_default(_name("layers.0.attn.1"))
    ),
    *field_faults("num_attn_module", bad_ints(may_be_none=True)),
]


def _last(argument: str, change: Callable[[dict[str, Any], str], dict[str, Any]]) -> Change:
    """Return a fault at the last layer that has a cache, so that others come before it."""

    def breaks(call: Call) -> Call | None:
        names = list(call.arguments["kv_caches"])
        if not names:
            return None
        return call.replacing(**{argument: change(dict(call.arguments[argument]), names[-1])})

    return breaks


def _without(entries: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key != name}


def _renamed(new: str) -> Change:
    """Return a fault: the last layer has another name, in the context too."""

    def breaks(call: Call) -> Call | None:
        def change(entries: dict[str, Any], name: str) -> dict[str, Any]:
            return {**_without(entries, name), new: entries[name]}

        context = _last("forward_context", change)(call)
        return context and _last("kv_caches", change)(call).replacing(  # type: ignore[union-attr]  # both or none
            forward_context=context.arguments["forward_context"]
        )

    return breaks


BIND_INVALID_INPUTS = [
    InvalidInput("caches are a list", TypeError, "kv_caches", changed("kv_caches", list)),
    InvalidInput(
        "layers are a list", TypeError, "forward_context", changed("forward_context", list)
    ),
    InvalidInput(
        "layers are None", TypeError, "forward_context", replaced("forward_context", None)
    ),
    InvalidInput(
        "the runner's list is a tuple",
        TypeError,
        "runner_kv_caches",
        replaced("runner_kv_caches", ()),
    ),
    InvalidInput(
        "the runner's list is None",
        TypeError,
        "runner_kv_caches",
        replaced("runner_kv_caches", None),
    ),
    InvalidInput(
        "the runner has caches", ValueError, "runner_kv_caches", replaced("runner_kv_caches", [0])
    ),
    InvalidInput(
        "the last layer is not there",
        KeyError,
        "forward_context",
        _last("forward_context", _without),
    ),
    InvalidInput(
        "the last layer is None",
        AttributeError,
        "kv_cache",
        _last("forward_context", lambda entries, name: {**entries, name: None}),
    ),
    InvalidInput(
        "the last name has no index", ValueError, "layer_name", _renamed("layers.last.attn")
    ),
    InvalidInput("the last name has too many", ValueError, "layer_name", _renamed("a.1.b.2.c.3")),
    InvalidInput(
        "the last name has '²' for an index", ValueError, "layer_name", _renamed("layers.²")
    ),
    InvalidInput(
        "the last name has two integers, by default",
        ValueError,
        "layer_name",
        by_default(_renamed("layers.0.attn.1")),
    ),
    *field_faults("num_attn_module", bad_ints(may_be_none=True)),
]

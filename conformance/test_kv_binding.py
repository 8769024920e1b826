"""Binding: each layer of a model gets its cache, and the runner gets them in layer order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import reference
from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.size_axes import Axis, of_ints, of_objects
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.kv_binding import BIND_INVALID_INPUTS, EXTRACT_INVALID_INPUTS
from conformance.strategies.kv_binding import (
    ATTENTION_MODULES,
    COMPONENTS,
    LAYER_INDEX,
    LAYERS,
    LAYERS_WITHOUT_CACHE,
    bind_calls,
    extract_calls,
)
from conformance.targets.target import Target
from conformance.values.call import Call


def _integers(name: str) -> list[str]:
    digits = set("0123456789")
    return [part for part in name.split(".") if part and set(part) <= digits]


def _modules(call: Call) -> int:
    return call.get("num_attn_module", 1) or 1


test_extract_layer_index = Contract(
    "extract_layer_index",
    extract_calls,
    {
        "one integer": lambda call: len(_integers(call["layer_name"])) == 1 and _modules(call) == 1,
        "one integer, several modules": lambda call: (
            len(_integers(call["layer_name"])) == 1
            and _modules(call) > 1
            and "attn" in call["layer_name"]
        ),
        "two integers": lambda call: len(_integers(call["layer_name"])) == 2,
        "several modules, and no attention": lambda call: (
            _modules(call) > 1 and "attn" not in call["layer_name"]
        ),
        "digits that are not ASCII's": lambda call: any(
            part.isdigit() and not part.isascii() for part in call["layer_name"].split(".")
        ),
        "what int() takes, and is no digits": lambda call: bool(
            {"-1", "+3", "1_0", " 4", "7\n"} & set(call["layer_name"].split("."))
        ),
        "an integer with zeros before it": lambda call: any(
            part.startswith("00") for part in _integers(call["layer_name"])
        ),
        "empty components": lambda call: "" in call["layer_name"].split("."),
        "modules are None": lambda call: call.get("num_attn_module", 1) is None,
    },
    axes={
        LAYER_INDEX: of_ints(lambda call: max(map(int, _integers(call["layer_name"])))),
        ATTENTION_MODULES: of_ints(_modules, 1),
        COMPONENTS: Axis(lambda call: call["layer_name"].count("."), 65_537),
    },
    invalid_inputs=EXTRACT_INVALID_INPUTS,
)


@property_check("extract_layer_index", extract_calls)
def test_what_is_no_integer_does_not_matter(target: Target, call: Call) -> None:
    """Components of a name that are not integers do not change its index."""
    index = Invocation(target, call).run()
    assert type(index) is int
    parts = call["layer_name"].split(".")
    for other in ("²", "mixer", "", "1_0", "a1"):
        for place in (0, len(parts)):
            name = ".".join([*parts[:place], other, *parts[place:]])
            assert index == Invocation(target, call.replacing(layer_name=name)).run()


def bound(arguments: Mapping[str, Any]) -> object:
    """Return the names in `kv_caches` of the caches that the runner and each layer have."""
    caches = dict(arguments["kv_caches"]) if isinstance(arguments["kv_caches"], dict) else {}
    names = {id(cache): name for name, cache in reversed(caches.items())}

    def whose(held: Any) -> Any:
        if not isinstance(held, list | tuple):
            return held if held is None else type(held).__name__
        kind = type(held).__name__
        return kind, [names[id(c)] if id(c) in names else repr(c) for c in held]

    context = arguments["forward_context"]
    layers = context if isinstance(context, dict) else {}
    return (
        whose(arguments["runner_kv_caches"]),
        {name: whose(getattr(layer, "kv_cache", None)) for name, layer in layers.items()},
    )


def _indices(call: Call) -> list[int]:
    modules = _modules(call)
    return [reference.extract_layer_index(name, modules) for name in call["kv_caches"]]


def _is_unsorted_within_index(call: Call) -> bool:
    """Return whether two layers of one index are not in the order of their names."""
    indices = _indices(call)
    names = list(call["kv_caches"])
    return any(
        a == b and first > second
        for i, (a, first) in enumerate(zip(indices, names, strict=True))
        for b, second in zip(indices[i + 1 :], names[i + 1 :], strict=True)
    )


test_bind_kv_cache = Contract(
    "bind_kv_cache",
    bind_calls,
    {
        "no caches": lambda call: not call["kv_caches"],
        "caches out of order": lambda call: _indices(call) != sorted(_indices(call)),
        "layers of one index": lambda call: len(set(_indices(call))) < len(_indices(call)),
        "layers of one index, not by name": _is_unsorted_within_index,
        "indices that text orders otherwise": lambda call: (
            sorted(_indices(call)) != sorted(_indices(call), key=str)
        ),
        "several modules": lambda call: _modules(call) > 1,
        "a layer without a cache": lambda call: (
            len(call["forward_context"]) > len(call["kv_caches"])
        ),
        "a layer that had another cache": lambda call: any(
            call["forward_context"][name].kv_cache == ["an old cache"] for name in call["kv_caches"]
        ),
        "a cache that is a list of states": lambda call: any(
            isinstance(cache, list) for cache in call["kv_caches"].values()
        ),
        "two layers with one cache": lambda call: (
            len({id(cache) for cache in call["kv_caches"].values()}) < len(call["kv_caches"])
        ),
    },
    axes={
        LAYERS: of_objects(lambda call: len(call["kv_caches"])),
        LAYERS_WITHOUT_CACHE: of_objects(
            lambda call: len(call["forward_context"]) - len(call["kv_caches"])
        ),
        LAYER_INDEX: of_ints(
            lambda call: min((int(_integers(name)[0]) for name in call["kv_caches"]), default=0)
        ),
    },
    invalid_inputs=BIND_INVALID_INPUTS,
    changes=frozenset({"forward_context", "runner_kv_caches"}),
    observe=bound,
    has_fixed_arrays=True,
)


@property_check("bind_kv_cache", bind_calls)
def test_caches_stand_in_layer_order(target: Target, call: Call) -> None:
    """The runner's caches are stably sorted by index; each layer has its cache in its own list."""
    invocation = Invocation(target, call)
    assert invocation.run() is None
    caches, context = invocation.arguments["kv_caches"], invocation.arguments["forward_context"]
    extract = target.lookup("extract_layer_index")
    indices = {name: extract(name, _modules(call)) for name in caches}
    rest = list(caches)
    before = -1
    for cache in invocation.arguments["runner_kv_caches"]:
        first = min(rest, key=lambda name: indices[name])
        assert cache is caches[first]
        assert before <= indices[first]
        before = indices[first]
        rest.remove(first)
    assert not rest
    holders = []
    for name, cache in caches.items():
        [held] = context[name].kv_cache
        assert held is cache
        holders.append(context[name].kv_cache)
    assert len({id(holder) for holder in holders}) == len(holders)
    for name in context.keys() - caches.keys():
        assert call["forward_context"][name].kv_cache == context[name].kv_cache

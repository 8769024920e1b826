"""Sharing: layers that have no cache of their own, but use that of a target layer."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.functions.kv_binding import Cache, identities
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Factory, Fresh, Twin
from conformance.harness.sizes import fit, sizes
from conformance.laws.batches import choices, deferred


@dataclasses.dataclass
class Names(Factory):
    """A set of names, which the function changes."""

    names: list[str]

    def make(self, _: Twin) -> Any:
        return {*self.names}

    def state(self, made: Any) -> Any:
        return sorted(map(repr, made))


@st.composite
def shared(draw: st.DrawFn, *, has_caches: bool) -> st.SearchStrategy[Arguments]:
    """Draw sharing layers with their targets; some are in their groups already."""
    number = draw(sizes(0, 600))
    num_groups, num_layers = fit(200, draw(sizes(1, 140, small=3)), draw(sizes(1, 140)))
    known, part = choices(draw, ("absent", "None", "empty", "full"), (0.3, 0.0, 0.9))

    def contents(draw: st.DrawFn) -> Arguments:
        rng = random.Random(draw(st.integers(0, 2**32 - 1)))  # noqa: S311  # no secret
        layers = [[f"layers.{g}.{i}.attn" for i in range(num_layers)] for g in range(num_groups)]
        owners = [(name, names) for names in layers for name in names]
        caches = {name: Cache(i) for i, (name, _) in enumerate(owners)}
        pairs = {}
        for i in rng.sample(range(number), number):
            layer = f"layers.{10**6 - i}.attn"
            pairs[layer], names = rng.choice(owners)
            if rng.random() < part:  # as after an earlier call
                names.insert(rng.randint(0, len(names)), layer)
            had = rng.choice(("nothing", "nothing", "its target's", "its own"))
            if had != "nothing":
                caches[layer] = Cache(99) if had == "its own" else caches[pairs[layer]]
        spec = reference.FullAttentionSpec(16, 1, 1, np.dtype(np.float16))
        groups: list[Any] = [
            reference.KVCacheGroupSpec(Fresh(names), spec)  # type: ignore[arg-type]  # made anew
            for names in layers
        ]
        arguments: Arguments = {"shared_kv_cache_layers": pairs, "kv_cache_groups": groups}
        if has_caches:
            return {**arguments, "kv_caches": Fresh(caches)}
        sets = {"None": None, "empty": Names([]), "full": Names(["layers.7.attn", *[*pairs][:1]])}
        more = {} if known == "absent" else {"runner_only_attn_layers": sets[known]}
        return {**arguments, **more}

    return deferred(contents)


def wrong_target(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let a layer share from itself, or from a sharing one; or be in another group; or no cache."""
    pairs, groups = arguments["shared_kv_cache_layers"], arguments["kv_cache_groups"]
    if not pairs:
        return None
    layer, kind = rng.choice([*pairs]), rng.randrange(4)
    if kind == 3 and "kv_caches" in arguments:
        del arguments["kv_caches"].value[pairs[layer]]
    elif kind:
        pairs[layer] = layer if kind == 1 else rng.choice([*pairs])
    else:
        rng.choice(groups).layer_names.value.append(layer)
    return arguments


def share(function: str) -> Callable[..., list[Any]]:
    """Return a `run`: it returns the layers of groups, and which caches are the same."""

    def run(twin: Twin, **arguments: Any) -> list[Any]:
        returned = twin.function(function)(**arguments)
        caches = arguments.get("kv_caches", {})
        layers = [group.layer_names for group in arguments["kv_cache_groups"]]
        return [returned, layers, caches, identities(*caches.values())]

    return run


def _is_grouped(arguments: Arguments) -> set[bool]:
    """Return whether there are sharing layers in their groups already, and others."""
    groups = arguments["kv_cache_groups"]
    found = {name for group in groups for name in group.layer_names.value}
    return {layer in found for layer in arguments["shared_kv_cache_layers"]}


HARD_CASES = {
    "layers in their groups already, and others": lambda args: len(_is_grouped(args)) == 2,
    "more than 256 layers join": lambda args: (
        len(args["shared_kv_cache_layers"]) > 256 and _is_grouped(args) == {False}
    ),
    "layers that names order otherwise": lambda args: (
        [*args["shared_kv_cache_layers"]] != sorted(args["shared_kv_cache_layers"])
        and False in _is_grouped(args)
    ),
}

CONTRACTS = [
    Contract(
        function="initialize_kv_cache_for_kv_sharing",
        calls=shared(has_caches=True),
        run=share("initialize_kv_cache_for_kv_sharing"),
        has_objects=True,
        takes_own_objects=True,
        specials=(wrong_target,),
        hard_cases=HARD_CASES,
        examples=0.4,
    ),
    Contract(
        function="add_kv_sharing_layers_to_kv_cache_groups",
        calls=shared(has_caches=False),
        run=share("add_kv_sharing_layers_to_kv_cache_groups"),
        has_objects=True,
        takes_own_objects=True,
        specials=(wrong_target,),
        hard_cases=HARD_CASES,
        examples=0.4,
    ),
]

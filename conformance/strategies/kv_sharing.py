"""Calls of the functions that let layers share the KV caches of others."""

from __future__ import annotations

from typing import Final

import numpy as np

import reference
from conformance.coverage.presets import MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.strategies.kv_binding import shuffled
from conformance.strategies.repeated import MAX_DRAWN, lists, repeated
from conformance.values.call import Arguments, Call

GROUPS: Final = "groups"
LAYERS_OF_A_GROUP: Final = "layers of a group"
SHARING_LAYERS: Final = "sharing layers"


def _sharing(draw: st.DrawFn, preset: Preset) -> tuple[dict[str, str], list[list[str]]]:
    """Draw sharing layers with their targets, and the layers of groups, which may include them."""
    maximum = 3 if preset is MINIMAL else 12
    layers = preset.sizes(LAYERS_OF_A_GROUP, st.integers(1, maximum))
    sizes = [draw(layers) for _ in range(draw(st.integers(1, 3)))]
    groups = [
        [f"layers.{g}.{i}.attn" for i in range(size)]
        for g, size in enumerate(repeated(draw, preset, GROUPS, sizes))
    ]
    shared: dict[str, str] = {}
    owners = [(name, group) for group in groups for name in group]
    places = st.integers(0, 2**16)
    pairs = lists(draw, preset, SHARING_LAYERS, st.tuples(places, st.SOMETIMES), max_size=maximum)
    for i, (place, is_in_group) in enumerate(pairs if owners else ()):
        target, group = owners[(place + i // 8) % len(owners)]
        layer = f"layers.{10**6 - i}.attn"
        shared[layer] = target
        # As after an earlier call, or if the layer was in its group from the beginning.
        if is_in_group:
            group.insert(place % (len(group) + 1), layer)
    return shared, groups


def _groups(layers: list[list[str]]) -> list[reference.KVCacheGroupSpec]:
    spec = reference.FullAttentionSpec(16, 1, 1, np.float16)
    return [reference.KVCacheGroupSpec([*names], spec) for names in layers]


@st.composite
def initialize_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `initialize_kv_cache_for_kv_sharing`."""
    shared, layers = _sharing(draw, preset)
    names = [name for group in layers for name in group if name not in shared]
    caches = {name: np.full(2, i % 99, np.int8) for i, name in enumerate(shuffled(draw, names))}
    had = st.sampled_from(("nothing", "nothing", "its target's", "its own"))
    drawn = draw(st.lists(had, min_size=1, max_size=MAX_DRAWN))
    for i, (layer, target) in enumerate(shared.items()):
        before = drawn[i % len(drawn)]
        if before != "nothing":
            caches[layer] = caches[target] if before == "its target's" else np.full(2, 99, np.int8)
    arguments: Arguments = {
        "shared_kv_cache_layers": shared,
        "kv_cache_groups": _groups(layers),
        "kv_caches": caches,
    }
    return Call("initialize_kv_cache_for_kv_sharing", arguments)


@st.composite
def add_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `add_kv_sharing_layers_to_kv_cache_groups`."""
    shared, layers = _sharing(draw, preset)
    arguments: Arguments = {
        "shared_kv_cache_layers": shared,
        "kv_cache_groups": _groups(layers),
    }
    known = draw(st.sampled_from(("absent", "None", "empty", "full")))
    if known != "absent":
        before = {"None": None, "empty": set(), "full": {"layers.7.attn", *list(shared)[:1]}}
        arguments["runner_only_attn_layers"] = before[known]
    return Call("add_kv_sharing_layers_to_kv_cache_groups", arguments)

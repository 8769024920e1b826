"""Layer names, and calls of `extract_layer_index` and `bind_kv_cache`."""

from __future__ import annotations

import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from conformance.coverage.presets import MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.strategies.repeated import MAX_DRAWN, lists
from conformance.values.call import Arguments, Call

LAYERS: Final = "layers"
LAYERS_WITHOUT_CACHE: Final = "layers without a cache"
LAYER_INDEX: Final = "index of a layer"
ATTENTION_MODULES: Final = "attention modules"
COMPONENTS: Final = "dots of a name"

NO_INTEGERS = (
    *("model", "layers", "self_attn", "mixer", "attention", "v2", "h", "", "-1", "+3", "1_0"),
    *("²", "٣", "1e3", " 4", "0x5", "½", "7\n"),
)
"""Components that are not integers, although `isdigit` or `int` accepts some of them."""

PREFIXES = ("model.layers", "transformer.h", "language_model.model.layers", "layers")


def shuffled(draw: st.DrawFn, values: Iterable[Any]) -> list[Any]:
    """Draw values in some order: as they are, backwards, or any other, in one draw."""
    found = list(values)
    seed = draw(st.integers(0, 7))
    if seed == 1:
        found.reverse()
    elif seed > 1:
        random.Random(seed).shuffle(found)  # noqa: S311  # no secret
    return found


def layer_names(draw: st.DrawFn, preset: Preset, number: int) -> tuple[list[str], int]:
    """Draw names of that many layers, in any order, and how many attention modules a layer has.

    Indices may pass 10, so that they do not sort like text. Two names have the same index if a
    layer has self and cross attention.
    """
    first = draw(preset.sizes(LAYER_INDEX, st.sampled_from((0, 1, 8, 98))))
    prefix = draw(st.sampled_from(PREFIXES))
    scheme = draw(st.sampled_from(("plain", "plain", "cross", "modules", "modules", "mixer")))
    modules = draw(st.integers(2, 3)) if scheme == "modules" else 1
    # A name with one integer has that index, which another layer may have too.
    kinds = st.sampled_from(("attn", "attn", "attn", "attn", "self_attn", "mixer"))
    has_kinds = scheme == "modules" and number > 0
    drawn = draw(st.lists(kinds, min_size=1, max_size=MAX_DRAWN)) if has_kinds else [""]
    names = []
    for k in range(number):
        kind = drawn[k % len(drawn)]
        if scheme == "cross":
            part = ("self_attn", "encoder_attn")[k % 2]
            names.append(f"decoder.layers.{first + k // 2}.{part}.attn")
        elif kind == "attn":
            names.append(f"{prefix}.{first + k // modules}.attn.{k % modules}")
        elif kind:
            names.append(f"{prefix}.{first + k}.{kind}.of{k}")
        elif scheme == "mixer":
            names.append(f"{first + k}.mixer")
        else:
            names.append(f"{prefix}.{first + k}.self_attn.attn")
    return shuffled(draw, names), modules


@st.composite
def extract_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `extract_layer_index`: one or two integers among lookalikes."""
    maximum = 12 if preset is MINIMAL else 10**20
    modules = draw(preset.sizes(ATTENTION_MODULES, st.sampled_from((1, None, 2, 2, 3, 64))))
    has_attn = draw(st.booleans())
    can_have_two = has_attn and modules not in {1, None}
    count = draw(st.integers(1, 2)) if can_have_two else 1
    indices = preset.sizes(LAYER_INDEX, st.integers(0, maximum))
    parts = [str(draw(indices)) for _ in range(count)]
    if draw(st.SOMETIMES):
        parts[0] = f"00{parts[0]}"
    others = [part for part in NO_INTEGERS if "attn" not in part]
    parts += lists(draw, preset, COMPONENTS, st.sampled_from(others), max_size=3)
    if has_attn:
        parts.append(draw(st.sampled_from(("attn", "self_attn", "cross_attn2", "attn²"))))
    arguments: Arguments = {"layer_name": ".".join(shuffled(draw, parts))}
    if modules != 1 or draw(st.booleans()):
        arguments["num_attn_module"] = modules
    return Call("extract_layer_index", arguments)


def forward_contexts(draw: st.DrawFn, preset: Preset, names: list[str]) -> dict[str, Any]:
    """Draw layers with these names, and some without a cache, in any order."""
    others: Iterable[str] = draw(
        st.sampled_from(((), ("layers.9.mlp.experts",), ("head", "layers.1.2.3")))
    )
    if preset.axis == LAYERS_WITHOUT_CACHE:
        number = draw(preset.sizes(LAYERS_WITHOUT_CACHE, st.nothing()))
        others = (f"layers.{i}.mlp.experts" for i in range(number))
    found = shuffled(draw, [*names, *others])
    before = st.sampled_from((None, [], ["an old cache"]))
    drawn = draw(st.lists(before, min_size=1, max_size=MAX_DRAWN))
    return {name: SimpleNamespace(kv_cache=drawn[i % len(drawn)]) for i, name in enumerate(found)}


@st.composite
def bind_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `bind_kv_cache`: caches that are arrays or lists of states."""
    maximum = 4 if preset is MINIMAL else 12
    kinds = st.tuples(st.SOMETIMES, st.SOMETIMES)
    drawn = lists(draw, preset, LAYERS, kinds, max_size=maximum)
    if preset.axis == LAYER_INDEX:
        drawn.append((False, False))
    names, modules = layer_names(draw, preset, len(drawn))
    caches: dict[str, Any] = {}
    made: list[Any] = []
    turn = draw(st.integers(0, 99))
    for i, (name, (has_states, is_shared)) in enumerate(zip(names, drawn, strict=True)):
        own: Any = np.full(2, i % 128, np.int8)
        if has_states:
            own = [own, np.full(1, i, np.float32)]
        made.append(made[turn % i] if i and is_shared else own)
        caches[name] = made[-1]
    arguments: Arguments = {
        "kv_caches": caches,
        "forward_context": forward_contexts(draw, preset, names),
        "runner_kv_caches": [],
    }
    if modules != 1 or draw(st.booleans()):
        arguments["num_attn_module"] = modules
    elif draw(st.booleans()):
        arguments["num_attn_module"] = None
    return Call("bind_kv_cache", arguments)

"""Views of the raw bytes of a layer's cache, for attention backends and as Mamba states."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import reference
from conformance.functions.kv_cache import caches, has_possible_strides, layout, specs_of
from conformance.functions.kv_cache_spec import Spec
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Factory, Twin
from conformance.harness.targets import Target
from conformance.harness.values import arrays
from conformance.laws.backends import Backend
from conformance.laws.batches import choices, deferred


@st.composite
def raw_caches(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw caches over random bytes; a layer that is in no group may have any tensor."""
    cached = draw(caches())
    has_more, has_sizes = choices(draw, (False, False, True), (True, False, None))

    def contents(draw: st.DrawFn) -> Arguments:
        cache = draw(cached)
        rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        raws: dict[str, Any] = {}
        for tensor in cache.config.kv_cache_tensors:
            raw = rng.integers(-128, 128, tensor.size, np.int8)
            raws |= dict.fromkeys(tensor.shared_by, raw)
        if has_more:
            raws["layers.77.attn"] = np.zeros((2, 3), np.float32)
        arguments: Arguments = {
            "kv_cache_config": cache.config,
            "kv_cache_raw_tensors": raws,
            "attn_backends": cache.backends,
        }
        if has_sizes is not None:
            arguments["kernel_block_sizes"] = cache.kernel_block_sizes if has_sizes else None
        return arguments

    return deferred(contents)


def view(twin: Twin, **arguments: Any) -> dict[str, Any]:
    views = twin.function("_reshape_kv_cache")(**arguments)
    layouts = {}
    for name, found in views.items():
        _, start = layout(arguments["kv_cache_raw_tensors"][name])
        layouts[name] = [
            (strides, max(place - start, 0)) for strides, place in map(layout, arrays(found))
        ]
    return {"views": views, "layouts": layouts}


# Refusals of several places.


def other_memory(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let a tensor lie at an odd address, or have gaps; or let it be another object for a layer."""
    raws = arguments["kv_cache_raw_tensors"]
    if not raws:
        return None
    kind, layer = rng.randrange(3), rng.choice([*raws])
    old = raws[layer]
    if old.ndim != 1:
        return None
    memory = np.repeat(old, 2) if kind == 1 else np.pad(old, (1, 1))
    new = memory[::2] if kind == 1 else memory[1:-1]
    if kind == 2:
        memory, new = old, old[:]
    changed = {
        name: new if raw is old and (kind < 2 or name == layer) else raw
        for name, raw in raws.items()
    }
    # Both lie in memory that the harness keeps as it is.
    return {**arguments, "kv_cache_raw_tensors": {**changed, "layers.78.attn": memory}}


def wrong_shape(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let a backend return a length of another type, or one more; or no dimension, or two grow."""
    found = [one for one in arguments["attn_backends"].values() if one.name != "MAMBA"]
    if not found:
        return None
    backend: Backend = rng.choice(found)
    backend.shape.insert(rng.randint(0, len(backend.shape)), rng.choice((1.0, True, 1, -1, 2)))
    if rng.random() < 0.3:
        backend.shape[:] = [-2, -1, *backend.shape[2:]]
    backend.stride_order = rng.choice((None, tuple(range(len(backend.shape)))))
    return arguments


def one_size_more(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Give one kernel block size more than there are groups."""
    del rng
    found = arguments.get("kernel_block_sizes")
    return {**arguments, "kernel_block_sizes": [*found, 1]} if found else None


@dataclasses.dataclass
class States(Factory):
    """An engine's own spec of states, which checks nothing."""

    page_size_bytes: int
    shapes: list[Any]
    dtypes: list[Any]

    def make(self, _: Twin) -> Any:
        return type("MambaSpec", (), {"block_size": 2, **vars(self)})()


def wrong_states(_: Arguments, rng: random.Random) -> Arguments:
    """Return a call about one layer, whose states do not fit into its page, or are of no kind."""
    page = rng.choice((0, 6, 8, 8, 16))
    dtypes = [np.dtype(name) for name in rng.choices(("float32", "int8", "float16"), k=3)]
    number = rng.randrange(3)
    states = [(rng.randint(1, 3),) for _ in range(number)]
    spec: Any = States(page, states, dtypes[: rng.choice((number, number, number + 1))])
    if rng.random() < 0.2:
        spec = Spec("KVCacheSpec", {"block_size": 2})
    if rng.random() < 0.2:
        spec = Spec("EncoderOnlyAttentionSpec", {"block_size": 2, "num_kv_heads": 1})
    name = "layers.0.mixer"
    config = reference.KVCacheConfig(2, [], [reference.KVCacheGroupSpec([name], spec)])
    raws = {name: np.zeros(2 * page, np.int8)}
    return {"kv_cache_config": config, "kv_cache_raw_tensors": raws, "attn_backends": {}}


def a_state_may_begin_past_two_gib(target: Target, _: Arguments) -> None:
    """The states of a page lie one after the other, however long they are."""
    if target.device != "cpu":
        return
    length = 2**31 + 8
    raw = torch.from_numpy(np.zeros(length + 4, np.int8))  # which nobody touches
    dtypes = torch.int8, torch.int8
    spec = target.function("MambaSpec")(block_size=1, shapes=((length,), (4,)), dtypes=dtypes)
    group = target.function("KVCacheGroupSpec")(layer_names=["0"], kv_cache_spec=spec)
    lists = {"kv_cache_tensors": [], "kv_cache_groups": [group]}
    config = target.function("KVCacheConfig")(num_blocks=1, **lists)
    views = target.function("_reshape_kv_cache")(config, {"0": raw}, {})
    starts = [state.storage_offset() for state in views["0"]]
    assert starts == [0, length], f"states at bytes {starts}, expected {[0, length]}"


def _is_hybrid(arguments: Arguments) -> bool:
    kinds = {spec.kind for spec in specs_of(arguments)}
    return "MambaSpec" in kinds and any(kind.endswith("AttentionSpec") for kind in kinds)


def _splits(arguments: Arguments) -> bool:
    found = arguments.get("kernel_block_sizes") or []
    sizes = [spec.fields["block_size"] for spec in specs_of(arguments) if spec.kind != "MambaSpec"]
    return bool(found and sizes) and min(found) < max(sizes)


def _has_three_cycle(arguments: Arguments) -> bool:
    orders = [one.stride_order or () for one in arguments["attn_backends"].values()]
    return any(order[p] != i for order in orders for i, p in enumerate(order))


CONTRACTS = [
    Contract(
        function="_reshape_kv_cache",
        calls=raw_caches(),
        run=view,
        has_objects=True,
        loose=frozenset({"fields"}),
        is_affordable=has_possible_strides,
        dense=frozenset({"kv_cache_raw_tensors"}),
        properties=(a_state_may_begin_past_two_gib,),
        specials=(other_memory, wrong_shape, wrong_states, one_size_more),
        hard_cases={
            "kernel blocks, next to states, in another order": lambda args: (
                _is_hybrid(args) and _splits(args) and _has_three_cycle(args)
            ),
            "a cache_dtype_str without a letter": lambda args: any(
                spec.fields.get("cache_dtype_str") == "" for spec in specs_of(args)
            ),
            "strides past 2**32": lambda args: any(
                spec.fields.get("head_size", 0) * spec.fields["block_size"] > 2**32
                for spec in specs_of(args)
            ),
        },
        examples=0.5,
    ),
]

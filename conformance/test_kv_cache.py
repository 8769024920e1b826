"""The KV cache of a model: allocation, a view for each layer, and binding."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.goals import Goals
from conformance.coverage.size_axes import of_objects
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.kv_cache import ALLOCATE_INVALID_INPUTS, INIT_INVALID_INPUTS
from conformance.strategies.kv_binding import LAYERS_WITHOUT_CACHE
from conformance.strategies.kv_cache import allocate_calls, init_calls, is_encoder_only
from conformance.strategies.kv_cache_axes import AXES, tensors_of
from conformance.targets.target import Target
from conformance.values.aliases import address_of, memory_of, strides_of
from conformance.values.call import Call
from conformance.values.comparison import as_bytes
from conformance.values.parts import is_array


def _groups(call: Call) -> list[Any]:
    return [group.kv_cache_spec for group in call.source.config.kv_cache_groups]


GOALS: Goals = {
    "several groups": lambda call: len(_groups(call)) > 1,
    "an encoder-only group": lambda call: any(map(is_encoder_only, _groups(call))),
    "a tensor that several layers share": lambda call: any(
        len(tensor.shared_by) > 1 for tensor in tensors_of(call)
    ),
    "several tensors": lambda call: len(tensors_of(call)) > 1,
    "a tensor of no bytes": lambda call: any(tensor.size == 0 for tensor in tensors_of(call)),
    "a tensor that no layer uses": lambda call: any(not t.shared_by for t in tensors_of(call)),
    "Mamba layers": lambda call: call.source.has_mamba,
    "another number of blocks than the config's": lambda call: any(
        call.source.num_blocks(layer) != call.source.config.num_blocks
        for layer in call.source.layers
    ),
}


test_allocate_kv_cache = Contract(
    "_allocate_kv_cache",
    allocate_calls,
    {
        **GOALS,
        "no layers": lambda call: not call.source.layers,
        "a uniform encoder-only group": lambda call: any(
            is_encoder_only(spec) and hasattr(spec, "kv_cache_specs") for spec in _groups(call)
        ),
        "tensors in another order than groups": lambda call: (
            [name for tensor in tensors_of(call) for name in tensor.shared_by]
            != [layer.name for layer in call.source.layers]
        ),
    },
    axes=AXES,
    invalid_inputs=ALLOCATE_INVALID_INPUTS,
    compares_views=True,
    takes_objects=True,
)


@property_check("_allocate_kv_cache", allocate_calls)
def test_the_bytes_of_tensors_add_up(target: Target, call: Call) -> None:
    """Layers of one tensor share one zeroed array of the requested size; others are disjoint."""
    invocation = Invocation(target, call)
    found = invocation.run()
    tensors = [tensor for tensor in tensors_of(call) if tensor.shared_by]
    distinct = {id(raw): raw for raw in found.values()}
    assert sum(tensor.size for tensor in tensors) == sum(r.numel() for r in distinct.values())
    for tensor in tensors:
        [raw] = {id(found[name]): found[name] for name in tensor.shared_by}.values()
        assert (raw.dtype, tuple(raw.shape)) == (torch.int8, (tensor.size,))
        assert not as_bytes(raw).any()
        assert raw.device.type == target.device
        raw.fill_(1)
    starts = sorted((raw.data_ptr(), raw.numel()) for raw in distinct.values() if raw.numel())
    for (start, size), (next_start, _) in itertools.pairwise(starts):
        assert start + size <= next_start
    assert {name for tensor in tensors for name in tensor.shared_by} == found.keys()


def observed(arguments: Mapping[str, Any]) -> object:
    """Return a description of the views of the runner and each layer, and whose each one is."""
    context = arguments["forward_context"]
    layers = context if isinstance(context, dict) else {}
    names: dict[int, str] = {}
    memories: dict[int, int] = {}
    for name, layer in layers.items():
        for held in layer.kv_cache or ():
            names.setdefault(id(held), name)

    def words(cache: Any) -> Any:
        if isinstance(cache, list):
            return [words(state) for state in cache]
        if not is_array(cache):
            return repr(cache)
        return names.get(id(cache)), _words(cache, memories)

    runner = arguments["runner_kv_caches"]
    return (
        {name: [words(held) for held in layer.kv_cache or ()] for name, layer in layers.items()},
        [words(cache) for cache in runner] if isinstance(runner, list) else runner,
    )


def _words(array: Any, memories: dict[int, int]) -> tuple[object, ...]:
    """Return an array's dtype, shape and place in memory, and whether any byte is not 0."""
    shape = tuple(map(int, array.shape))
    dtype = str(array.dtype).removeprefix("torch.")
    if 0 in shape:
        return dtype, shape
    start = memory_of(array)
    offset, memory = address_of(array) - start, memories.setdefault(start, len(memories))
    return dtype, shape, strides_of(array), memory, offset, bool(as_bytes(array).any())


test_init_kv_cache = Contract(
    "init_kv_cache",
    init_calls,
    {
        **GOALS,
        "kernel block sizes": lambda call: call.get("kernel_block_sizes") is not None,
        "several attention modules": lambda call: call.source.num_attn_module > 1,
        "layers that have no cache": lambda call: (
            len(call["forward_context"]) > len(call.source.layers)
        ),
    },
    axes={
        **AXES,
        LAYERS_WITHOUT_CACHE: of_objects(
            lambda call: len(call["forward_context"]) - len(call.source.layers)
        ),
    },
    invalid_inputs=INIT_INVALID_INPUTS,
    changes=frozenset({"forward_context", "runner_kv_caches"}),
    observe=observed,
    takes_objects=True,
)


@property_check("init_kv_cache", init_calls)
def test_init_does_what_the_three_do(target: Target, call: Call) -> None:
    """`init_kv_cache` gives the same caches as allocating, reshaping and binding in order."""
    whole, apart = Invocation(target, call), Invocation(target, call)
    assert whole.run() is None
    given = apart.arguments
    allocate, reshape, bind = (
        target.lookup(name) for name in ("_allocate_kv_cache", "_reshape_kv_cache", "bind_kv_cache")
    )
    raw = allocate(given["kv_cache_config"], given["device"])
    sizes = given.get("kernel_block_sizes")
    views = reshape(given["kv_cache_config"], raw, given["attn_backends"], sizes)
    runner = given["runner_kv_caches"]
    bind(views, given["forward_context"], runner, call.source.num_attn_module)
    assert observed(given) == observed(whole.arguments)
    assert len(call.source.layers) == len(runner)


@property_check("init_kv_cache", init_calls)
def test_a_write_is_seen_by_those_that_share(target: Target, call: Call) -> None:
    """Filling one layer's cache changes the caches over the same tensor, and no others."""
    invocation = Invocation(target, call)
    invocation.run()
    context = invocation.arguments["forward_context"]
    writers = [layer for layer in call.source.layers if not layer.is_mamba]
    if not writers or not call.source.num_blocks(writers[-1]):
        return
    [view] = context[writers[-1].name].kv_cache
    view.copy_(torch.ones_like(view))
    for layer in call.source.layers:
        [held] = context[layer.name].kv_cache
        states = held if layer.is_mamba else [held]
        is_written = any(np.any(as_bytes(state)) for state in states)
        assert is_written or layer.tensor != writers[-1].tensor or layer.is_mamba
        assert layer.tensor == writers[-1].tensor or not is_written

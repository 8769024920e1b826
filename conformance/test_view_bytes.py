"""The bytes of its tensor that each layer's view covers: each once, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.arrays.guard_bands import Array
from conformance.contracts.check import property_check
from conformance.contracts.evaluation import outcome
from conformance.coverage.presets import Preset
from conformance.execution.invocations import Invocation
from conformance.messages.mismatch import Mismatch
from conformance.strategies import cached as st
from conformance.strategies.kv_cache import Cache, Layer
from conformance.strategies.kv_views import GUARD_BYTES, reshape_calls
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call
from conformance.values.comparison import as_bytes
from conformance.values.parts import arrays_in


@st.composite
def _writes(draw: st.DrawFn, preset: Preset) -> tuple[Call, int, float]:
    """Draw a call, the number of a layer, and the relative position of the element to write."""
    return draw(reshape_calls(preset)), draw(st.integers(0, 9)), draw(st.floats(0, 1))


def _memories(invocation: Invocation, call: Call) -> dict[int, Any]:
    """Return the tensors of an invocation with the guard bands around them, by number."""
    found = {}
    for layer in call.source.layers:
        raw = invocation.arguments["kv_cache_raw_tensors"][layer.name]
        if isinstance(raw, torch.Tensor):
            raw = raw.as_strided((raw.numel() + 2 * GUARD_BYTES,), (1,), 0)
        found[layer.tensor] = raw
    return found


def _bytes_of(memory: Any) -> Array:
    return as_bytes(memory).reshape(-1).copy()


def _address(call: Call, layer: Layer, index: tuple[int, ...]) -> int:
    """Return an element's byte offset in its tensor, by the definition: axes in physical order."""
    cache: Cache = call.source
    shape, order = cache.shape(layer), list(cache.backends[layer.name].order)
    if cache.has_mamba:
        blocks = cache.block_dimension(layer)
        order = [blocks, *(d for d in order if d != blocks)]
    physical = [shape[d] for d in order]
    element = int(np.ravel_multi_index([index[d] for d in order], physical))
    return element * int(layer.spec.dtype.itemsize)


@property_check("_reshape_kv_cache", _writes)
def test_a_write_shows_where_it_is_defined_to(
    target: Target, example: tuple[Call, int, float]
) -> None:
    """An element written by one layer changes its own bytes, in its own tensor, and no others."""
    call, number, part = example
    layers = [layer for layer in call.source.attention_layers if call.source.num_blocks(layer)]
    if not layers:
        return
    layer = layers[number % len(layers)]
    invocation = Invocation(target, call)
    view = invocation.run()[layer.name]
    shape = call.source.shape(layer)
    assert shape == tuple(view.shape)
    element = round(part * (view.numel() - 1))
    index = tuple(map(int, np.unravel_index(element, shape)))
    memories = _memories(invocation, call)
    before = {t: _bytes_of(memory) for t, memory in memories.items()}
    # Flip all bits of the element, whatever its dtype.
    one = view[index].reshape(1).view(torch.uint8)
    one.copy_(~one)
    start = GUARD_BYTES + _address(call, layer, index)
    expected = {start + i for i in range(layer.spec.dtype.itemsize)}
    for t, memory in memories.items():
        changed = np.flatnonzero(before[t] != _bytes_of(memory)).tolist()
        assert changed == (sorted(expected) if t == layer.tensor else [])


def _places(view: Any, raw: Any) -> Array:
    """Return the byte offset in its tensor of each element of a view."""
    size = view.element_size()
    found = np.array(view.data_ptr() - raw.data_ptr())
    for length, stride in zip(view.shape, view.stride(), strict=True):
        found = np.add.outer(found, np.arange(length) * stride * size)
    return found


@property_check("_reshape_kv_cache", reshape_calls)
def test_views_cover_their_tensors_once(target: Target, call: Call) -> None:
    """Attention views cover their tensor exactly once, and state views their part of each page."""
    invocation = Invocation(target, call)
    views = invocation.run()
    assert [layer.name for layer in call.source.layers] == list(views)
    for layer in call.source.layers:
        raw, page = (
            invocation.arguments["kv_cache_raw_tensors"][layer.name],
            layer.spec.page_size_bytes,
        )
        if not raw.numel():
            continue
        if not layer.is_mamba:
            places = np.sort(_places(views[layer.name], raw).reshape(-1))
            step = layer.spec.dtype.itemsize
            assert np.array_equal(places, np.arange(0, raw.numel(), step))
            continue
        behind = 0
        for state, shape in zip(views[layer.name], layer.spec.shapes, strict=True):
            assert (call.source.num_blocks(layer), *shape) == tuple(state.shape)
            places = _places(state, raw).reshape(len(state), -1)
            first = np.sort(places[0])
            step = state.element_size()
            assert np.array_equal(first, np.arange(behind, behind + first.size * step, step))
            assert np.array_equal(places, places[0] + page * np.arange(len(state))[:, None])
            behind += first.size * step
        assert behind <= page


@property_check(
    "_reshape_kv_cache",
    reshape_calls,
    goals={"a hybrid cache of several blocks": lambda call: call.source.moves_blocks},
)
def test_beside_states_each_block_fills_its_page(target: Target, call: Call) -> None:
    """If a model has Mamba layers, block k of any layer is page k of its tensor."""
    if not call.source.has_mamba:
        return
    invocation = Invocation(target, call)
    views = invocation.run()
    for layer in call.source.attention_layers:
        raw = invocation.arguments["kv_cache_raw_tensors"][layer.name]
        num_blocks = call.source.num_blocks(layer)
        if not num_blocks:
            continue
        dimension = call.source.block_dimension(layer)
        places = np.moveaxis(_places(views[layer.name], raw), dimension, 0)
        pages = places.reshape(num_blocks, -1) // layer.spec.page_size_bytes
        assert np.array_equal(pages, np.arange(num_blocks)[:, None] + np.zeros_like(pages))


@property_check("_reshape_kv_cache", reshape_calls)
def test_layers_over_one_tensor_see_each_other(target: Target, call: Call) -> None:
    """Layers over one tensor all read what one of them writes; other tensors do not change."""
    if not call.source.attention_layers:
        return
    invocation = Invocation(target, call)
    views = invocation.run()
    writer = call.source.attention_layers[0]
    views[writer.name].copy_(torch.zeros_like(views[writer.name]))
    for layer in call.source.layers:
        seen = views[layer.name] if layer.is_mamba else [views[layer.name]]
        are_zero = all(not as_bytes(view).any() for view in seen)
        if layer.tensor == writer.tensor:
            assert are_zero
        else:
            raw = invocation.call["kv_cache_raw_tensors"][layer.name]
            now = invocation.arguments["kv_cache_raw_tensors"][layer.name]
            assert np.array_equal(as_bytes(raw), as_bytes(now))


def _views_over(target: Target, call: Call, make: Callable[[Target, int], Any]) -> object:
    """Return the shapes of views over other tensors, or the name of the error's class.

    `make` takes a target and a number of bytes, and returns the replacement of a tensor.
    """
    invocation = Invocation(target, call)
    raws = invocation.arguments["kv_cache_raw_tensors"]
    others = {id(raw): make(target, len(raw)) for raw in raws.values()}
    invocation.arguments["kv_cache_raw_tensors"] = {n: others[id(raw)] for n, raw in raws.items()}
    answer = invocation.answer_or_error()
    if isinstance(answer, Exception):
        return type(answer).__name__
    return {path: tuple(view.shape) for path, view in arrays_in(answer, "views")}


def _check_views_over(target: Target, call: Call, make: Callable[[Target, int], Any]) -> None:
    """Raise an error if a target's views over such tensors, or its errors, are not reference's."""
    expected, got = (_views_over(one, call, make) for one in (REFERENCE, target))
    if isinstance(expected, str) and not isinstance(got, str):
        raise Mismatch(call, target.name, outcome(f"returned {got}", f"raise {expected}"))
    assert expected == got


@property_check("_reshape_kv_cache", reshape_calls)
def test_empty_tensors_need_no_alignment(target: Target, call: Call) -> None:
    """An empty tensor may begin at any address, aligned or not."""

    def make(one: Target, _size: int) -> Any:
        return one.array(np.zeros(8, np.int8))[1:1]

    _check_views_over(target, call, make)


@property_check("_reshape_kv_cache", reshape_calls, tests_invalid_inputs=True)
def test_memory_may_begin_at_an_odd_address(target: Target, call: Call) -> None:
    """A tensor over memory at an odd address is refused, unless its views are of single bytes."""
    if target.device == "cuda":
        return  # a copy there is aligned

    def make(one: Target, size: int) -> Any:
        return one.array(np.zeros(size + 1, np.int8)[1:])

    _check_views_over(target, call, make)

"""Views of billions of bytes: shapes, strides and offsets that no 32-bit int holds.

The bytes are neither read nor written, so they take up no memory.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

import reference
from conformance.checks.contract_checks import along_axes
from conformance.contracts.check import property_check
from conformance.contracts.evaluation import check_equal
from conformance.coverage.presets import Preset
from conformance.coverage.size_axes import Axis
from conformance.strategies import cached as st
from conformance.strategies.backends import backends
from conformance.strategies.kv_cache_spec import BLOCK_SIZE, HEAD_SIZE, HEADS, STATE_LENGTH
from conformance.strategies.kv_plans import BLOCKS
from conformance.targets.target import REFERENCE, Target
from conformance.values.aliases import address_of, strides_of
from conformance.values.call import Call

LAYER: Final = "layers.0.attn"

LAST: Final = 2**31 + 1
"""The largest size, at which keys and values of one byte take more than 2**32 bytes."""


@st.composite
def _large_views(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `_reshape_kv_cache` for one layer; the source is the size of each axis."""
    lengths = {
        axis: draw(preset.sizes(axis, st.just(1)))
        for axis in (BLOCKS, BLOCK_SIZE, HEADS, HEAD_SIZE, STATE_LENGTH)
    }
    block_size = lengths[BLOCK_SIZE]
    spec: Any = reference.AttentionSpec(
        block_size, lengths[HEADS], lengths[HEAD_SIZE], np.dtype(np.int8)
    )
    if preset.axis == STATE_LENGTH:
        shapes = ((2, 1), (lengths[STATE_LENGTH],), (3,))
        spec = reference.MambaSpec(block_size, shapes, (np.dtype(np.int8),) * 3)
    group = reference.KVCacheGroupSpec([LAYER], spec)
    arguments = {
        "kv_cache_config": reference.KVCacheConfig(lengths[BLOCKS], [], [group]),
        "attn_backends": {LAYER: draw(backends())},
        "kernel_block_sizes": draw(st.sampled_from((None, [1], [block_size]))),
    }
    return Call("_reshape_kv_cache", arguments, lengths)


@property_check("_reshape_kv_cache", _large_views)
def _of_untouched_bytes(target: Target, call: Call) -> None:
    """Views of a tensor of any size have the shapes, strides and offsets of `reference`'s."""
    [group] = call["kv_cache_config"].kv_cache_groups
    num_bytes = call.source[BLOCKS] * group.kv_cache_spec.page_size_bytes
    untouched = np.zeros(num_bytes, np.int8)
    on_target = torch.from_numpy(untouched)
    if target.device != "cpu":
        on_target = torch.empty(num_bytes, dtype=torch.int8, device=target.device)
    found: list[Any] = []
    for twin, raw in ((REFERENCE, untouched), (target, on_target)):
        given = {n: twin.converter().convert(v, n) for n, v in call.arguments.items()}
        views = twin.lookup(call.function)(kv_cache_raw_tensors={LAYER: raw}, **given)[LAYER]
        views = views if isinstance(views, list) else [views]
        found.append(
            [
                (tuple(view.shape), strides_of(view), address_of(view) - address_of(raw))
                for view in views
            ]
        )
    check_equal(target, call, found[0], found[1])


def _size(axis: str) -> Axis:
    return Axis(lambda call: call.source[axis], LAST, first=0 if axis == BLOCKS else 1)


test_views_of_billions_of_bytes = along_axes(
    _of_untouched_bytes,
    {axis: _size(axis) for axis in (BLOCKS, BLOCK_SIZE, HEADS, HEAD_SIZE, STATE_LENGTH)},
    lambda call: call,
)

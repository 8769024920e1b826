"""Invalid inputs of `_reshape_kv_cache`: wrong tensors, sizes and specs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import reference
from conformance.arrays.guard_bands import Array
from conformance.contracts.contract import Change
from conformance.invalid_inputs.changes import (
    Refusals,
    change_maker,
    changed,
    one_fewer,
    refusals,
    replaced,
    set_arguments,
    without_key,
)
from conformance.invalid_inputs.kinds import Dict, Int, List, Object, invalid_by_kind
from conformance.strategies.kv_cache import Cache, Layer
from conformance.strategies.kv_views import GUARD_BYTES, raw_bytes
from conformance.targets.factories import Factory, FactoryContext
from conformance.values.call import Call

GROUPS = "kv_cache_config.kv_cache_groups"

Chosen = Callable[[Cache, Layer], bool]
"""Returns whether a layer can be made invalid."""


def is_attention(_: Cache, layer: Layer) -> bool:
    """Return whether a layer has attention, so that its backend is called."""
    return not layer.is_mamba


def anyone(_: Cache, __: Layer) -> bool:
    """Accept any layer."""
    return True


def has_blocks(cache: Cache, layer: Layer) -> bool:
    """Return whether a layer's tensor is not empty."""
    return cache.num_blocks(layer) > 0


def choose(call: Call, chosen: Chosen) -> Layer | None:
    """Return the last layer that can be made invalid; None if there is none."""
    cache: Cache = call.source
    return next((layer for layer in reversed(cache.layers) if chosen(cache, layer)), None)


@change_maker
def with_raw(
    call: Call, change: Callable[[Array, Layer], object], chosen: Chosen = anyone
) -> Call | None:
    """Change the raw tensor of one layer, and of those that share it."""
    layer = choose(call, chosen)
    if layer is None:
        return None
    raw = call.arguments["kv_cache_raw_tensors"][layer.name]
    bad = change(raw, layer)
    if bad is None:
        return None
    return changed(
        "kv_cache_raw_tensors",
        lambda raws: {name: bad if one is raw else one for name, one in raws.items()},
    )(call)


def _itemsize(layer: Layer) -> int:
    dtypes = layer.spec.dtypes if layer.is_mamba else [layer.spec.dtype]
    return max(int(np.dtype(dtype).itemsize) for dtype in dtypes)


def _spread(raw: Array, _: Layer) -> Array | None:
    return raw_bytes(2 * raw.size, 0)[::2] if raw.size > 1 else None


def _misaligned(raw: Array, layer: Layer) -> Array | None:
    if not raw.size or _itemsize(layer) == 1:
        return None
    memory = raw_bytes(raw.size + GUARD_BYTES, 0)
    return memory[1 : 1 + raw.size]


def _longer_by(number: Callable[[Layer], int]) -> Callable[[Array, Layer], Array | None]:
    def change(raw: Array, layer: Layer) -> Array | None:
        longer = raw.size + number(layer)
        return raw_bytes(longer, 0) if longer % int(layer.spec.page_size_bytes) else None

    return change


@change_maker
def without_last(call: Call, argument: str, chosen: Chosen = anyone) -> Call | None:
    """Remove the argument's entry of the last layer that can be made invalid."""
    layer = choose(call, chosen)
    if layer is None:
        return None
    return changed(argument, lambda entries: without_key(entries, layer.name))(call)


@change_maker
def _kernel_size(call: Call, value: Callable[[int], int]) -> Call | None:
    """Change the kernel block size of a group that has an attention layer."""
    layer = choose(call, is_attention)
    if layer is None or not call.arguments.get(SIZES):
        return None
    return replaced(f"{SIZES}[{layer.group}]", value(layer.spec.block_size))(call)


def cached_groups(call: Call) -> list[Any]:
    """Return the groups of a call's configuration."""
    return [*call.arguments["kv_cache_config"].kv_cache_groups]


@change_maker
def _another_spec(call: Call, change: Callable[[Any], Any], chosen: Chosen = anyone) -> Call | None:
    """Replace the spec of one layer's group, which is not a uniform group."""
    groups = cached_groups(call)

    def is_of_plain_group(cache: Cache, layer: Layer) -> bool:
        return chosen(cache, layer) and any(
            layer.name in group.layer_names and group.kv_cache_spec is layer.spec
            for group in groups
        )

    layer = choose(call, is_of_plain_group)
    spec = layer and change(layer.spec)
    if layer is None or spec is None:
        return None
    g = next(g for g, group in enumerate(groups) if layer.name in group.layer_names)
    groups[g] = dataclasses.replace(groups[g], kv_cache_spec=spec)
    return replaced(GROUPS, groups)(call)


def _shares_with_another_group(cache: Cache, layer: Layer) -> bool:
    return (
        not layer.is_mamba
        and cache.num_blocks(layer) > 1
        and any(one.tensor == layer.tensor and one.group != layer.group for one in cache.layers)
    )


def _half_a_page(spec: Any) -> Any:
    """Return a spec with pages half as large, which still divide the tensor."""
    if spec.head_size % 2 or getattr(spec, "cache_dtype_str", None) == "fp8_ds_mla":
        return None
    return dataclasses.replace(spec, head_size=spec.head_size // 2)


def _shares_with_attention(cache: Cache, layer: Layer) -> bool:
    is_shared = any(one.tensor == layer.tensor and not one.is_mamba for one in cache.layers)
    return layer.is_mamba and is_shared and cache.num_blocks(layer) > 0


def _is_mamba(_: Cache, layer: Layer) -> bool:
    return layer.is_mamba


def _odd_offset(spec: Any) -> Any:
    """Return a spec whose second state begins at an odd byte, with pages of the same size."""
    page = spec.page_size_bytes
    if page < 8:
        return None
    return dataclasses.replace(
        spec, shapes=((3,), (2,)), dtypes=(np.int8, np.float16), page_size_padded=page
    )


def _of_one_layer(spec: Any) -> Change:
    """Return the change to a cache of one Mamba layer, with two blocks."""
    name = "layers.0.mixer"
    return set_arguments(
        kv_cache_config=reference.KVCacheConfig(2, [], [reference.KVCacheGroupSpec([name], spec)]),
        kv_cache_raw_tensors={name: raw_bytes(2 * spec.page_size_bytes, 0)},
        attn_backends={},
        kernel_block_sizes=None,
    )


def foreign_mamba(**members: object) -> Any:
    """Return an engine's own `MambaSpec`, which checks nothing."""
    return type("MambaSpec", (), members)()


@dataclasses.dataclass(frozen=True)
class _ForeignStates(Factory):
    """A factory of a `foreign_mamba` whose states have two elements each.

    Attributes:
        page_size_bytes: The bytes of one block.
        dtypes: The dtypes of the states.
        num_shapes: How many shapes there are.
    """

    page_size_bytes: int
    dtypes: tuple[object, ...] = ()
    num_shapes: int = 0

    def make(self, converter: FactoryContext) -> Any:
        """Return the spec, with the implementation's dtypes."""
        return foreign_mamba(
            block_size=2,
            shapes=((2,),) * self.num_shapes,
            dtypes=tuple(converter.convert(dtype, "dtypes") for dtype in self.dtypes),
            page_size_bytes=self.page_size_bytes,
        )


@change_maker
def _named_twice(call: Call, change: Callable[[list[Any]], list[Any]]) -> Call | None:
    """Change the groups of a configuration, those of layers with caches first."""
    layers = {layer.name for layer in call.source.layers}
    groups = sorted(cached_groups(call), key=lambda g: not layers.intersection(g.layer_names))
    return replaced(GROUPS, change(groups))(call) if layers else None


def _in_one_group(groups: list[Any]) -> list[Any]:
    """Return the groups, the first of which lists a layer twice."""
    names = groups[0].layer_names
    return [dataclasses.replace(groups[0], layer_names=[*names, names[0]]), *groups[1:]]


def _in_two_groups(groups: list[Any]) -> list[Any]:
    """Return the groups, two of which list the same layer."""
    return [*groups, dataclasses.replace(groups[0], layer_names=groups[0].layer_names[:1])]


def _uniform_without(call: Call) -> Call | None:
    """Give a layer without a spec a tensor that it does not share with another layer."""
    names = [layer.name for layer in call.source.layers if not layer.has_own_spec]
    if not names:
        return None
    # The same memory, but another object.
    return changed(f"kv_cache_raw_tensors[{names[0]}]", lambda raw: raw[:])(call)


@dataclasses.dataclass(frozen=True)
class _OddSpec(reference.KVCacheSpec):
    """An engine's own spec, of an unknown kind.

    Attributes:
        page: The bytes of one block.
    """

    page: int

    @property
    def page_size_bytes(self) -> int:
        """The bytes of one block."""
        return self.page


RAW = "(kv_cache_raw_tensors|raw tensor)"
SIZES = "kernel_block_sizes"
PAGE = "(page_size_bytes|pages|attn_backends)"
STATES = "(dtypes|state|states)"

TWICE_IN_GROUPS = {
    "a layer twice in a group": _named_twice(_in_one_group),
    "a layer in two groups": _named_twice(_in_two_groups),
}

RESHAPE_REFUSALS: Refusals = {
    (KeyError, f"{RAW}|kv_cache_specs"): {
        "a layer has no tensor": without_last("kv_cache_raw_tensors")
    },
    (KeyError, "kv_cache_specs"): {"a layer without a spec": _uniform_without},
    (TypeError, RAW): {
        "a tensor is a list": with_raw(lambda raw, _: raw.tolist()),
        "a tensor is uint8": with_raw(lambda raw, _: raw.astype(np.uint8)),
    },
    (TypeError, "(dtypes|state)"): {
        "a foreign spec's dtype is a text": _of_one_layer(_ForeignStates(8, ("float32",), 1))
    },
    (ValueError, RAW): {
        "a tensor has two axes": with_raw(lambda raw, _: raw[None].copy()),
        "a tensor is not contiguous": with_raw(_spread),
        "a tensor is not aligned": with_raw(_misaligned, is_attention),
        "a tensor of states is not aligned": with_raw(_misaligned, _is_mamba),
        "a byte too many": with_raw(_longer_by(lambda _: 1)),
        "a byte too few": with_raw(_longer_by(lambda _: -1), has_blocks),
        "half a page too many": with_raw(
            _longer_by(lambda layer: int(layer.spec.page_size_bytes) // 2)
        ),
    },
    (ValueError, PAGE): {
        "different pages over one tensor": _another_spec(_half_a_page, _shares_with_another_group),
        "different pages of states over one tensor": _another_spec(
            lambda spec: dataclasses.replace(spec, page_size_padded=2 * spec.page_size_bytes),
            _shares_with_attention,
        ),
    },
    (ValueError, SIZES): {
        "a kernel size too few": one_fewer(SIZES),
        "a kernel size too many": changed(SIZES, lambda s: [*s, 1] if s else None),
        "a kernel size is too large": _kernel_size(lambda size: 2 * size),
        "a kernel size does not divide": _kernel_size(lambda size: size + 1),
    },
    (ValueError, STATES): {
        "a state begins at an odd byte": _another_spec(_odd_offset, _is_mamba),
        "a page ends inside an element": _of_one_layer(
            reference.MambaSpec(2, ((1,), (2,)), (np.float32, np.int8), 6)
        ),
        "a state ends past its page": _of_one_layer(_ForeignStates(8, (np.float32,) * 2, 2)),
        "a dtype too few": _of_one_layer(_ForeignStates(16, (np.float32,), 2)),
        "a dtype too many": _of_one_layer(_ForeignStates(8, (np.float32,) * 2, 1)),
    },
    (ValueError, "page_size_bytes"): {"pages of no bytes": _of_one_layer(_ForeignStates(0))},
    (ValueError, "kv_cache_groups"): TWICE_IN_GROUPS,
    (NotImplementedError, "_OddSpec"): {
        "a spec of no kind": _another_spec(
            lambda spec: _OddSpec(spec.block_size, spec.page_size_bytes)
        )
    },
    (NotImplementedError, "KVCacheSpec"): {
        "a spec of the base": _another_spec(lambda spec: reference.KVCacheSpec(spec.block_size))
    },
}

RESHAPE_INVALID_INPUTS = [
    *invalid_by_kind(
        kv_cache_config=Object(reads="kv_cache_groups"),
        kernel_block_sizes=List(Int(), is_optional=True),
        attn_backends=Dict(),
        kv_cache_raw_tensors=Dict(names=RAW),
        **{GROUPS: List()},
    ),
    *refusals(RESHAPE_REFUSALS),
]

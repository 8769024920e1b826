"""Views of a KV cache, as one makes them in a hurry."""

# ruff: noqa: C901, PLR0912  # a branch, or an answer, for each bug

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import fast
from known_bad.entries import rewritten
from known_bad.kv_cache import ENCODER, kind_of

REAL_RESHAPE = fast._reshape_kv_cache


def _is_mamba(spec: Any) -> bool:  # noqa: ANN401  # a spec
    return any(cls.__name__ == "MambaSpec" for cls in type(spec).__mro__)


def _spec_of(bug: str | None, name: str, group: Any, raws: Any) -> Any:  # noqa: ANN401  # any
    specs = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    if specs is None:
        return group.kv_cache_spec
    if bug == "a uniform group has its first spec":
        return next(iter(specs.values()))
    if name in specs and bug != "the first layer over a tensor says its spec":
        return specs[name]
    names = list(group.layer_names)
    if bug == "the last layer over a tensor says the spec":
        names.reverse()
    return next(specs[other] for other in names if other in specs and raws[other] is raws[name])


def _views_of_states(bug: str | None, raw: torch.Tensor, spec: Any) -> list[torch.Tensor]:  # noqa: ANN401  # a spec
    page = int(spec.page_size_bytes)
    blocks = raw.numel() // page
    found, offset = [], 0
    needed = sum(math.prod(s) * d.itemsize for s, d in zip(spec.shapes, spec.dtypes, strict=True))
    for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True):
        size = math.prod(shape)
        if bug == "each state begins its own part of the tensor":
            part = raw[offset * blocks : (offset + size * dtype.itemsize) * blocks]
            found.append(part.view(dtype).view(blocks, *shape))
        else:
            numbers = raw.view(dtype)
            inner = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
            step = needed if bug == "pages end with the last state" else page
            stride = (step // dtype.itemsize, *inner)
            start = numbers.storage_offset() + offset // dtype.itemsize
            found.append(numbers.as_strided((blocks, *shape), stride, start))
        if bug == "every state begins the page":
            continue
        offset += size * (1 if bug == "offsets count elements" else dtype.itemsize)
    return found


def _order_of(bug: str | None, backend: Any, rank: int) -> list[int]:  # noqa: ANN401  # a backend
    ask = getattr(backend, "get_kv_cache_stride_order", None)
    try:
        order = [int(d) for d in ask()] if ask else list(range(rank))
    except NotImplementedError:
        order = list(range(rank))
    if bug == "no order at all":
        return list(range(rank))
    return order


def _view_of(  # all that a view is made of
    bug: str | None,
    raw: torch.Tensor,
    spec: Any,  # noqa: ANN401  # a spec
    backend: Any,  # noqa: ANN401  # a backend
    kernel: int | None,
    *,
    has_mamba: bool,
) -> torch.Tensor:
    size = int(spec.block_size)
    blocks = raw.numel() // int(spec.page_size_bytes)
    if kernel is not None:
        blocks *= 1 if bug == "as many kernel blocks as blocks" else size // int(kernel)
        size = size if bug == "kernel blocks of the spec's size" else int(kernel)
    keywords = {}
    cache_dtype = getattr(spec, "cache_dtype_str", None)
    if cache_dtype is not None and bug != "the backend is not told the format":
        keywords["cache_dtype_str"] = cache_dtype
    if cache_dtype != "fp8_ds_mla" and bug == "the backend is told of fp8_ds_mla alone":
        keywords = {}
    if cache_dtype is None and bug == "the backend is always told a format":
        keywords["cache_dtype_str"] = "auto"
    heads, head_size = int(spec.num_kv_heads), int(spec.head_size)
    shape = [int(n) for n in backend.get_kv_cache_shape(blocks, size, heads, head_size, **keywords)]
    order = _order_of(bug, backend, len(shape))
    moves = has_mamba if bug != "blocks are always in front" else True
    if moves and bug != "blocks are not moved":
        larger = backend.get_kv_cache_shape(blocks + 1, size, heads, head_size, **keywords)
        block = next(d for d, length in enumerate(larger) if int(length) > shape[d])
        if bug == "blocks are the dimension of that length":
            block = next((d for d, length in enumerate(shape) if length == blocks), block)
        place = order.index(block)
        if bug == "the first changes places with the blocks":
            order[0], order[place] = order[place], order[0]
        elif bug == "the order's entry of that number is moved":
            order.insert(0, order.pop(block))
        else:
            order.insert(0, order.pop(place))
    physical = [shape[d] for d in order]
    if bug == "the shape is not permuted":
        physical = list(shape)
    inverse = [order.index(d) for d in range(len(shape))]
    if bug == "permuted the wrong way round":
        physical = [shape[d] for d in inverse]
        inverse = order
    view = raw.view(spec.dtype).view(physical)
    if bug == "a copy in the logical order":
        return view.permute(inverse).contiguous()
    return view.permute(inverse)


def _make_reshape(bug: str | None) -> Callable[..., dict[str, Any]]:
    def reshape(
        kv_cache_config: Any,  # noqa: ANN401  # any
        kv_cache_raw_tensors: Any,  # noqa: ANN401  # any
        attn_backends: Any,  # noqa: ANN401  # any
        kernel_block_sizes: Any = None,  # noqa: ANN401  # any
    ) -> dict[str, Any]:
        config, raws = kv_cache_config, kv_cache_raw_tensors
        sizes = kernel_block_sizes
        if bug == "too many kernel sizes pass" and isinstance(sizes, list):
            groups = [g for g in config.kv_cache_groups if kind_of(g.kv_cache_spec) != ENCODER]
            sizes = sizes[: len(groups)]
        try:
            REAL_RESHAPE(config, raws, attn_backends, sizes)
        except AttributeError as error:
            if bug != "attributes that are missing inside pass" or "inside" not in str(error):
                raise
            return {}
        except ValueError as error:
            if bug != "pages over a tensor need not agree" or "pages" not in str(error):
                raise
            return {}
        groups = [g for g in config.kv_cache_groups if kind_of(g.kv_cache_spec) != ENCODER]
        specs = [
            spec
            for group in groups
            for spec in getattr(
                group.kv_cache_spec, "kv_cache_specs", {"": group.kv_cache_spec}
            ).values()
        ]
        has_mamba = any(map(_is_mamba, specs))
        if bug == "a uniform group has no states":
            has_mamba = any(_is_mamba(group.kv_cache_spec) for group in groups)
        found: dict[str, Any] = {}
        for g, group in enumerate(groups):
            place = g
            if bug == "kernel sizes are counted with encoder-only groups":
                place = next(i for i, one in enumerate(config.kv_cache_groups) if one is group)
            kernel = sizes[place % len(sizes)] if sizes else None
            for name in group.layer_names:
                spec, raw = _spec_of(bug, name, group, raws), raws[name]
                if _is_mamba(spec):
                    found[name] = _views_of_states(bug, raw, spec)
                else:
                    found[name] = _view_of(
                        bug, raw, spec, attn_backends[name], kernel, has_mamba=has_mamba
                    )
        if bug == "one view for layers of one tensor":
            first: dict[tuple[Any, int], str] = {}
            for name, view in list(found.items()):
                if not isinstance(view, list):
                    key = tuple(view.shape), id(raws[name])
                    found[name] = found[first.setdefault(key, name)]
        if bug == "in the order of the tensors":
            return {name: found[name] for name in raws if name in found}
        return found

    reshape.__name__ = "_reshape_kv_cache"
    return reshape


KV_VIEWS = [
    *rewritten(
        "_reshape_kv_cache",
        _make_reshape,
        answers={
            "permuted the wrong way round": "Right for every swap: only a 3-cycle tells.",
            "no order at all": "Right for NHD.",
            "the shape is not permuted": "Right where the dimensions are of one length.",
            "blocks are not moved": "Right without states: keys of one block on another's state.",
            "blocks are always in front": "Right beside states.",
            "blocks are the dimension of that length": "Two heads and two blocks.",
            "the first changes places with the blocks": "Right for (K/V, blocks, ...).",
            "the order's entry of that number is moved": "Right for the identity.",
            "as many kernel blocks as blocks": "A shape of too few bytes.",
            "kernel blocks of the spec's size": "A shape of too many bytes.",
            "the backend is not told the format": "Right where the shape does not depend on it.",
            "the backend is told of fp8_ds_mla alone": "The one format that changes a page's size.",
            "the backend is always told a format": "Not every backend knows the keyword.",
            "a copy in the logical order": "`contiguous`: the writes go elsewhere.",
            "kernel sizes are counted with encoder-only groups": "Right without an encoder.",
            "a uniform group has its first spec": "Right where they are alike.",
            "a uniform group has no states": "Its own class is no MambaSpec.",
            "the first layer over a tensor says its spec": "It has one of its own.",
            "the last layer over a tensor says the spec": "A dict by tensor: the last one wins.",
            "each state begins its own part of the tensor": "Right alone, not beside attention.",
            "every state begins the page": "Right for one state.",
            "offsets count elements": "Right for int8.",
            "pages end with the last state": "Padding is forgotten.",
            "one view for layers of one tensor": "Backends order their dimensions differently.",
            "in the order of the tensors": "The order of a dict.",
        },
        refusals={
            "too many kernel sizes pass": "`zip` without `strict`.",
            "attributes that are missing inside pass": "`except AttributeError` around the call.",
            "pages over a tensor need not agree": "Block 1 of one is half of another's block 0.",
        },
    ),
]

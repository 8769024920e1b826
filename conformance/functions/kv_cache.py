"""The KV cache of a model: allocation, and all of it: allocated, viewed by layer, and bound."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.functions.kv_binding import forward_context, held, identities, layer_names
from conformance.functions.kv_cache_spec import BOUNDED, FULL, Spec
from conformance.harness.cases import DTYPES
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Device, Fresh, Twin
from conformance.harness.sizes import fit, sizes
from conformance.harness.values import arrays, root_of
from conformance.laws.backends import FP8_DS_MLA_BYTES, Backend, any_backend
from conformance.laws.batches import choices, deferred

CACHE_DTYPES: Final = [
    DTYPES[name]
    for name in (
        *("float16", "bfloat16", "float32", "int8", "uint8"),
        *("float8_e4m3fn", "float8_e5m2"),
    )
]

FACTORS: Final = (1, 2, 3, 4, 12, 64, 5040)
"""What the greatest common divisor is taken with, to find a divisor of a size."""


@dataclasses.dataclass
class Cache:
    """The KV cache of a model, drawn."""

    config: reference.KVCacheConfig  # its configuration
    tensors: dict[str, int]  # the number of the tensor of each layer, in the order of groups
    backends: dict[str, Backend]  # the backend of each layer that has one
    kernel_block_sizes: list[int]  # the size for each group that has a cache
    num_attn_module: int  # attention modules in a layer


def _divisor(rng: random.Random, number: int) -> int:
    return math.gcd(number, rng.choice((*FACTORS, number)))


def spec_of_page(rng: random.Random, kind: str, page: int, block_size: int | None = None) -> Spec:
    """Choose a spec of a kind with pages of so many bytes, an even number.

    The block size of attention divides half of a page.
    """
    if kind == "MambaSpec":
        return _states(rng, page, block_size or rng.choice((1, 2, 3, 512)))
    more: dict[str, Any] = {}
    if kind == "MLAAttentionSpec":
        more["cache_dtype_str"] = rng.choice((None, "auto", "fp8", ""))
        tokens, rest = divmod(page, FP8_DS_MLA_BYTES)
        if not rest and block_size in {None, tokens}:
            sizes_of_mla = {"block_size": tokens, "num_kv_heads": 1, "head_size": rng.randint(1, 8)}
            more = {"dtype": DTYPES[rng.choice(("uint8", "int8"))], "cache_dtype_str": "fp8_ds_mla"}
            return Spec(kind, {**sizes_of_mla, **more})
    elif kind == "SlidingWindowSpec":
        more["sliding_window"] = rng.randint(1, 64)
    elif kind == "ChunkedLocalAttentionSpec":
        more["attention_chunk_size"] = rng.randint(1, 64)
    vectors = page if kind == "MLAAttentionSpec" else page // 2
    fitting = [one for one in CACHE_DTYPES if vectors % (one.itemsize * (block_size or 1)) == 0]
    dtype = rng.choice(fitting)
    rest = vectors // dtype.itemsize
    block_size = block_size or _divisor(rng, rest)
    heads = _divisor(rng, rest // block_size)
    size = rest // block_size // heads
    fields = {"block_size": block_size, "num_kv_heads": heads, "head_size": size, "dtype": dtype}
    return Spec(kind, {**fields, **more}, "subclass" if rng.random() < 0.1 else "")


def _states(rng: random.Random, page: int, block_size: int) -> Spec:
    """Choose states that fit into a page, or fill it, each aligned."""
    shapes: list[tuple[int, ...]] = []
    kinds: list[Any] = []
    end, fills, number = 0, rng.random() < 0.5, rng.randint(1, 3)
    while len(shapes) < number:
        fitting = [
            dtype
            for dtype in CACHE_DTYPES
            if not (end % dtype.itemsize or page % dtype.itemsize) and page - end >= dtype.itemsize
        ]
        if not fitting:
            break
        kinds.append(rng.choice(fitting))
        room = (page - end) // kinds[-1].itemsize
        is_last = fills and len(kinds) == number
        length = room if is_last else rng.choice((1, rng.randint(1, room), 1 + room // 3))
        rows = _divisor(rng, length)
        shape = rng.choice(((length,), (rows, length // rows), (rows, 1, length // rows)))
        shapes.append(() if length == 1 and rng.random() < 0.5 else shape)
        end += length * kinds[-1].itemsize
    padded = None if end == page and rng.random() < 0.5 else page
    fields = {"block_size": block_size, "shapes": tuple(shapes), "dtypes": tuple(kinds)}
    return Spec("MambaSpec", {**fields, "page_size_padded": padded})


Member = tuple[int, Spec, bool]
"""A layer of a group: the number of its tensor, its spec, and whether the group states that."""


def _one_page(
    rng: random.Random, kind: str, num_groups: int, num_tensors: int, page: int
) -> list[list[Member]]:
    """Choose groups of one page size, whose n-th layers lie in the n-th tensor."""
    attention = ("AttentionSpec", *FULL, *BOUNDED)
    kinds = ["MambaSpec" if kind == "Mamba" else rng.choice(attention) for _ in range(num_groups)]
    if kind == "hybrid":
        kinds[rng.randrange(num_groups)] = "MambaSpec"
    groups = []
    for g, one in enumerate(kinds):
        spec = spec_of_page(rng, one, page)
        members = [(t, spec, True) for t in range(num_tensors) if not g or rng.random() < 0.7]
        if members and rng.random() < 0.3:  # a layer that shares another's, and is in the group
            members.append(rng.choice(members))
        groups.append(rng.sample(members, len(members)))
    return groups


def _uniform(
    rng: random.Random, num_groups: int, num_layers: int, block_size: int, page: int
) -> tuple[list[list[Member]], list[int]]:
    """Choose groups whose layers have specs of their own, unless they share a cache; and pages."""
    groups, pages = [], list[int]()
    for _ in range(num_groups):
        first = rng.choice(("FullAttentionSpec", "SlidingWindowSpec", "AttentionSpec"))
        kinds = first, first, "MLAAttentionSpec", rng.choice(("MambaSpec", first))
        members: list[Member] = []
        for _ in range(num_layers):
            pages.append(8 * block_size * rng.choice((1, 2, 3, page)))
            # Two layers of one page size may share a tensor, and view it differently.
            for _ in range(rng.choice((1, 1, 2))):
                spec = spec_of_page(rng, rng.choice(kinds), pages[-1], block_size)
                members.append((len(pages) - 1, spec, True))
        rng.shuffle(members)
        for tensor, _, _ in rng.choices(members, k=rng.choice((0, 0, 1, 2))):
            spec = next(spec for t, spec, _ in members if t == tensor)
            members.insert(rng.randint(0, len(members)), (tensor, spec, False))
        groups.append(members)
    return groups, pages


@st.composite
def caches(draw: st.DrawFn) -> st.SearchStrategy[Cache]:
    """Draw KV caches: attention, hybrid, Mamba-only and uniform groups, of any sizes."""
    kind, itemsize, is_huge, is_odd = choices(
        draw,
        ("one page", "one page", "hybrid", "hybrid", "Mamba", "uniform", "uniform"),
        (2, 1, 4),
        (False,) * 7 + (True,),
        (False,) * 7 + (True,),
    )
    num_groups, num_tensors = draw(sizes(1, 20, small=3)), draw(sizes(1, 70, small=3))
    num_groups, num_tensors = fit(40, num_groups, num_tensors)
    num_groups = max(num_groups, 1 + (kind == "hybrid"))
    lengths = [draw(sizes(1, small=4)) for _ in range(3)]
    if is_huge:  # no bytes, but strides that no 32-bit int holds
        num_blocks, lengths = 0, [length * 2**8 for length in lengths]
    else:
        factor = num_groups if kind == "uniform" else 1
        num_blocks, *lengths = fit(2_000 // factor, draw(sizes(0, small=3)), *lengths)
        num_tensors = min(num_tensors, max(2_000 // max(num_blocks * math.prod(lengths), 1), 1))

    def contents(draw: st.DrawFn) -> Cache:
        rng = random.Random(draw(st.integers(0, 2**32 - 1)))  # noqa: S311  # no secret
        block_size = lengths[0]
        if kind == "uniform":
            page = lengths[1] * lengths[2] if num_blocks < 9 else 1
            groups, pages = _uniform(rng, num_groups, num_tensors, block_size, page)
        else:
            page = 2 * math.prod(lengths) * itemsize
            if is_odd:
                page = FP8_DS_MLA_BYTES * (2 if num_blocks > 2 else 2 * block_size)
            groups, pages = (
                _one_page(rng, kind, num_groups, num_tensors, page),
                [page] * num_tensors,
            )
        # Without blocks, pages may be larger than any memory.
        blocks = (
            (num_blocks, num_blocks, num_blocks + (kind != "uniform"), 0) if num_blocks else (0,)
        )
        tensor_sizes = [rng.choice(blocks) * page for page in pages]
        return _named(rng, groups, tensor_sizes)

    return deferred(contents)


def _named(rng: random.Random, groups: list[list[Member]], tensor_sizes: list[int]) -> Cache:
    (encoder, *names), modules = layer_names(rng, 1 + sum(map(len, groups)))
    rest = iter(names)
    shared_by: list[list[str]] = [[] for _ in tensor_sizes]
    cache = Cache(reference.KVCacheConfig(rng.randint(0, 3), [], []), {}, {}, [], modules)
    specs = dict[str, Spec]()
    for members in groups:
        own = {next(rest): member for member in members}
        block_size = members[0][1].fields["block_size"] if members else 1
        stated = {name: spec for name, (_, spec, is_stated) in own.items() if is_stated}
        is_uniform = len({id(spec) for spec in stated.values()}) > 1 or len(stated) < len(own)
        uniform = {"block_size": block_size, "kv_cache_specs": stated}
        whole: Any = Spec("UniformTypeKVCacheSpecs", uniform)
        whole = (
            whole
            if is_uniform
            else members[0][1]
            if members
            else Spec("KVCacheSpec", {"block_size": 2})
        )
        cache.config.kv_cache_groups.append(reference.KVCacheGroupSpec([*own], whole))
        for name, (tensor, spec, _) in own.items():
            specs[name], cache.tensors[name] = spec, tensor
            shared_by[tensor].append(name)
        cache.kernel_block_sizes.append(_kernel_size(rng, [spec for _, spec, _ in members]))
        cache.backends |= _backends(rng, {name: specs[name] for name in own})
    if rng.random() < 0.3:
        spec = Spec(
            "EncoderOnlyAttentionSpec", {"block_size": 3, "num_kv_heads": 1, "head_size": 2}
        )
        spec.fields["dtype"] = DTYPES["float16"]
        if rng.random() < 0.5:
            spec = Spec(
                "UniformTypeKVCacheSpecs", {"block_size": 3, "kv_cache_specs": {encoder: spec}}
            )
        group = reference.KVCacheGroupSpec([encoder], spec)  # type: ignore[arg-type]  # made by a twin
        cache.config.kv_cache_groups.insert(rng.randint(0, len(groups)), group)
    for t in rng.sample(range(len(tensor_sizes)), len(tensor_sizes)):
        layers = rng.sample(shared_by[t], len(shared_by[t]))
        cache.config.kv_cache_tensors.append(reference.KVCacheTensor(tensor_sizes[t], layers))
    if rng.random() < 0.2:  # no layer uses it
        cache.config.kv_cache_tensors.append(reference.KVCacheTensor(rng.choice((0, 7)), []))
    return cache


def _kernel_size(rng: random.Random, specs: list[Spec]) -> int:
    if all(spec.kind == "MambaSpec" for spec in specs):
        return rng.randint(1, 7)
    return _divisor(rng, specs[0].fields["block_size"])


def _backends(rng: random.Random, specs: dict[str, Spec]) -> dict[str, Backend]:
    found, made = {}, dict[tuple[bool, bool], Backend]()
    has_needless = rng.random() < 0.3
    for name, spec in specs.items():
        if spec.kind == "MambaSpec":
            if has_needless:
                found[name] = Backend("MAMBA")
            continue
        key = spec.kind != "MLAAttentionSpec", spec.fields.get("cache_dtype_str") is not None
        if key not in made or rng.random() < 0.3:
            made[key] = any_backend(rng, has_kv=key[0], knows_dtype=key[1])
        found[name] = made[key]
    return found


@st.composite
def allocations(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    return draw(caches()).map(lambda cache: {"kv_cache_config": cache.config, "device": Device()})


def allocate(twin: Twin, **arguments: Any) -> list[Any]:
    found = twin.function("_allocate_kv_cache")(**arguments)
    return [found, identities(*found.values())]


@st.composite
def whole_caches(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    cached, without = draw(caches()), draw(sizes(0, 20, small=2))
    has_sizes, is_stated = choices(draw, (True, False, None), (True, False))

    def contents(draw: st.DrawFn) -> Arguments:
        cache = draw(cached)
        rng = random.Random(draw(st.integers(0, 2**16)))  # noqa: S311  # no secret
        arguments: Arguments = {
            "runner_kv_caches": Fresh([]),
            "forward_context": forward_context(rng, cache.tensors, without),
            "kv_cache_config": cache.config,
            "attn_backends": cache.backends,
            "device": Device(),
        }
        if has_sizes is not None:
            arguments["kernel_block_sizes"] = cache.kernel_block_sizes if has_sizes else None
        if cache.num_attn_module != 1 or is_stated:
            arguments["num_attn_module"] = cache.num_attn_module
        return arguments

    return deferred(contents)


def layout(view: Any) -> tuple[tuple[int, ...], int]:
    if not isinstance(view, np.ndarray):
        return tuple(view.stride()), view.storage_offset() * view.element_size() * bool(
            view.numel()
        )
    place = view.__array_interface__["data"][0] - root_of(view).__array_interface__["data"][0]
    return tuple(stride // view.itemsize for stride in view.strides), place * bool(view.size)


def initialize(twin: Twin, **arguments: Any) -> list[Any]:
    returned = twin.function("init_kv_cache")(**arguments)
    runner = arguments["runner_kv_caches"]
    return [returned, held(arguments["forward_context"], runner), [*map(layout, arrays(runner))]]


def specs_of(arguments: Arguments) -> list[Spec]:
    groups = arguments["kv_cache_config"].kv_cache_groups
    specs = [group.kv_cache_spec for group in groups if isinstance(group.kv_cache_spec, Spec)]
    return [
        one for spec in specs for one in (spec.fields.get("kv_cache_specs") or {"": spec}).values()
    ]


def has_possible_strides(arguments: Arguments) -> bool:
    """Return whether NumPy can have such strides, even of an array without elements."""
    shapes = [
        [n for n in spec.fields.values() if isinstance(n, int)] for spec in specs_of(arguments)
    ]
    return all(math.prod(shape) < 2**55 for shape in shapes)


def _is_affordable(arguments: Arguments) -> bool:
    tensors = arguments["kv_cache_config"].kv_cache_tensors
    return not any(2**22 < tensor.size < 2**63 for tensor in tensors)


def _tensors(arguments: Arguments) -> list[reference.KVCacheTensor]:
    return arguments["kv_cache_config"].kv_cache_tensors  # type: ignore[no-any-return]


CONTRACTS = [
    Contract(
        function="_allocate_kv_cache",
        calls=allocations(),
        run=allocate,
        has_objects=True,
        takes_own_objects=True,
        is_affordable=_is_affordable,
        hard_cases={
            "a tensor of no bytes, before another": lambda args: any(
                tensor.size == 0 for tensor in _tensors(args)[:-1]
            ),
            "a tensor that no layer uses": lambda args: (
                not all(t.shared_by for t in _tensors(args))
            ),
        },
        examples=0.5,
    ),
    Contract(
        function="init_kv_cache",
        calls=whole_caches(),
        run=initialize,
        loose=frozenset({"fields"}),
        has_objects=True,
        is_affordable=lambda args: _is_affordable(args) and has_possible_strides(args),
        hard_cases={
            "several attention modules": lambda args: args.get("num_attn_module", 1) > 1,
        },
        examples=0.4,
    ),
]

"""Kernel block sizes: the sizes that all backends of a group support."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.functions.kv_cache_spec import (
    ATTENTION,
    BOUNDED,
    FULL,
    UNIFORM,
    Spec,
    fields_of_kind,
    many,
    numbers,
)
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Factory, Twin
from conformance.harness.targets import Target
from conformance.laws.batches import choices, deferred


@dataclasses.dataclass
class Group(Factory):
    """An attention group whose backend supports some block sizes."""

    sizes: Any  # what the backend lists
    is_instance: bool = False  # whether the backend is an instance of its class
    is_own: bool = True  # whether its class is an engine's own

    def make(self, twin: Twin) -> Any:
        has_base = twin.target is None or twin.target.offers("AttentionBackend")
        base = twin.find("AttentionBackend") if has_base and not self.is_own else object
        plain = dict.fromkeys(getattr(base, "__abstractmethods__", ()))
        found = {**plain, "get_supported_kernel_block_sizes": staticmethod(lambda: self.sizes)}
        made = type("Backend", (base,), found)
        return SimpleNamespace(backend=made() if self.is_instance else made, layer_names=[])


MANAGERS: Final = (1, 2, 12, 16, 16, 32, 48, 64, 96, 128, 256, 544, 2**33)


def divisors(size: int) -> list[int]:
    return [d for d in range(1, min(size, 600) + 1) if size % d == 0]


def listed(
    rng: random.Random, manager: int, common: int, *, number: int, is_reluctant: bool
) -> list[Any]:
    """Choose what a backend supports: a common size, and others.

    A reluctant one does not support the manager's size, so that the common size may be the answer.
    """
    known = divisors(manager)
    odd = [d + 1 for d in known if manager % (d + 1)] + [2 * manager]
    if is_reluctant and common != manager:
        needed: Any = common
        entries: list[Any] = [d for d in known if d < manager]
        entries += [*odd, *map(reference.MultipleOf, odd)]
    else:
        needed = rng.choice((common, *map(reference.MultipleOf, divisors(common))))
        entries = [*known, *map(reference.MultipleOf, known), *odd]
    found = [needed, *rng.choices(entries, k=number)]
    rng.shuffle(found)
    return found


def groups_of(rng: random.Random, manager: int, number: int, most: int) -> list[Any]:
    """Choose attention groups whose backends share a size that divides the manager's."""
    common = rng.choice((manager, *divisors(manager)))
    reluctant = rng.choice((None, 0, number - 1, "all"))
    found = []
    for i in range(number):
        is_reluctant = reluctant in {i, "all"}
        own = listed(rng, manager, common, number=rng.randint(0, most), is_reluctant=is_reluctant)
        if rng.randrange(4) == 0:
            own = [np.int64(e) if isinstance(e, int) else e for e in own]
        chosen: Any = rng.choice((list, list, tuple))(own)
        found.append(Group(chosen, rng.randrange(2) == 1, rng.randrange(2) == 1))
    return found


def rngs() -> st.SearchStrategy[random.Random]:
    return st.integers(0, 2**32 - 1).map(random.Random)


@st.composite
def selections(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw groups of few or many backends that list few or many sizes."""
    number, most = draw(st.integers(0, 3) | many(3)), draw(st.integers(0, 4) | many(4))
    [manager] = choices(draw, MANAGERS)

    def contents(draw: st.DrawFn) -> Arguments:
        groups = groups_of(draw(rngs()), manager, number, min(most, 300 // max(number, 1)))
        return {"kv_manager_block_size": manager, "attn_groups": groups}

    return deferred(contents)


def with_group(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let backends support nothing in common, or a multiple alone that does not divide."""
    m16, m32 = reference.MultipleOf(16), reference.MultipleOf(32)
    lists: list[Any] = rng.choice(([[2], [3]], [[32], [m16]], [[m32], [m16]], [[]]))
    found = [Group(own) for own in lists]
    name = "kv_manager_block_size"
    if name in arguments:
        return {name: rng.choice((12, 48)), "attn_groups": found}
    lists = [[*own, *found] if isinstance(own, list) else own for own in arguments["attn_groups"]]
    return {**arguments, "attn_groups": lists}


# prepare_kernel_block_sizes

CACHED: Final = ("AttentionSpec", *FULL, *BOUNDED, "MambaSpec")


@st.composite
def group_spec(draw: st.DrawFn, kinds: tuple[str, ...], block_size: int) -> Spec:
    """Draw the spec of a group, which may be uniform, with a second inner spec of any kind."""

    def one() -> Spec:
        kind = draw(st.sampled_from(kinds))
        return Spec(kind, draw(fields_of_kind(kind, block_size=block_size)))

    spec, how = one(), draw(st.integers(0, 7))
    spec.owner = "foreign" if how == 7 else ""
    if how > 1:
        return spec
    inner = {"layers.0.attn": spec} | ({"layers.1.attn": one()} if how else {})
    return Spec(UNIFORM, {"block_size": block_size, "kv_cache_specs": inner})


@st.composite
def prepared(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw KV cache groups of all kinds in any order, and the attention groups of each."""
    number, few = draw(st.integers(0, 4) | many(4)), draw(st.integers(0, 3))
    [has_fewer, has_more] = choices(draw, (False, True), (False, False, True))

    def contents(draw: st.DrawFn) -> Arguments:
        kinds = (*ATTENTION, "MambaSpec", "MambaSpec", "EncoderOnlyAttentionSpec")
        rng = draw(rngs())
        found: list[Any] = []
        lists: list[Any] = []
        for _ in range(min(number, 4)):
            manager = draw(st.sampled_from(MANAGERS))
            spec: Any = draw(group_spec(kinds, manager))
            found.append(reference.KVCacheGroupSpec(["layers.0.attn"], spec))
            lists.append(groups_of(rng, manager, few, 3))
        order = rng.choices(range(len(found)), k=number) if number > 4 else range(number)
        found, lists = [found[i] for i in order], [lists[i] for i in order]
        if has_fewer:  # groups at the end that need no list
            needs = [_first_kind(group.kv_cache_spec) in ATTENTION[:-1] for group in found]
            lists = lists[
                : max((i + 1 for i, is_needed in enumerate(needs) if is_needed), default=0)
            ]
        config = reference.KVCacheConfig(0, [], found)
        return {"kv_cache_config": config, "attn_groups": [*lists, *[[]] * has_more]}

    return deferred(contents)


def _first_kind(spec: Any) -> str:
    inner = spec.fields.get("kv_cache_specs")
    found: str = next(iter(inner.values())).kind if inner else spec.kind
    return found


def a_group_of_no_kind(arguments: Arguments, rng: random.Random) -> Arguments:
    """Put a group before the others that has no kind, no specs, or a wrong block size."""
    spec: Any = Spec("KVCacheSpec", {"block_size": 16})
    foreign = type("MambaSpec", (), {"block_size": rng.choice((16.0, 0, True))})
    empty = type(UNIFORM, (), {"block_size": 16, "kv_cache_specs": {}})
    uniform = Spec(UNIFORM, {"block_size": 16, "kv_cache_specs": {"a": spec}})
    chosen: Any = rng.choice((spec, foreign(), empty(), uniform))
    group = reference.KVCacheGroupSpec(["a"], chosen)
    config = reference.KVCacheConfig(0, [], [group, *arguments["kv_cache_config"].kv_cache_groups])
    return {"kv_cache_config": config, "attn_groups": [[], *arguments["attn_groups"]]}


def fewer_lists(arguments: Arguments, _: random.Random) -> Arguments:
    """Leave out the lists of groups."""
    return {**arguments, "attn_groups": arguments["attn_groups"][:-1]}


def multiples_are_values(target: Target, arguments: Arguments) -> None:
    """`MultipleOf` compares and hashes by its base, and does not equal the int itself."""
    base, made = arguments["base"], target.find("MultipleOf")
    assert {made(base), made(base)} == {made(base)}, "equal bases make unequal multiples"
    assert made(base) != made(base + 1), "the base is not compared"
    assert made(base) != base, "a multiple equals its base"


CONTRACTS = [
    Contract(
        function="MultipleOf",
        calls=st.just(st.fixed_dictionaries({"base": numbers()})),
        properties=(multiples_are_values,),
        examples=0.1,
    ),
    Contract(
        function="select_common_block_size",
        examples=0.6,
        calls=selections(),
        has_objects=True,
        takes_own_objects=True,
        specials=(with_group,),
        hard_cases={
            "more than 16 sizes of a backend": lambda args: any(
                len(group.sizes) > 16 for group in args["attn_groups"]
            ),
            "a manager's size past 2**31": lambda args: args["kv_manager_block_size"] > 2**31,
        },
    ),
    Contract(
        function="prepare_kernel_block_sizes",
        examples=0.6,
        calls=prepared(),
        has_objects=True,
        takes_own_objects=True,
        specials=(with_group, a_group_of_no_kind, fewer_lists),
        hard_cases={
            "encoder-only before another": lambda args: (
                "EncoderOnlyAttentionSpec"
                in [
                    _first_kind(group.kv_cache_spec)
                    for group in args["kv_cache_config"].kv_cache_groups
                ][:-1]
            ),
            "more than 64 groups": lambda args: len(args["kv_cache_config"].kv_cache_groups) > 64,
        },
    ),
]

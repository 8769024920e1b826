"""Specs of the layers of one group: merged into one, and uniform."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import reference
from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.goals import Goals, one_for_each
from conformance.coverage.presets import Preset
from conformance.coverage.size_axes import Axes, of_ints, of_objects
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.spec_groups import MERGE_INVALID_INPUTS, UNIFORM_TYPE_INVALID_INPUTS
from conformance.messages.mismatch import Mismatch
from conformance.strategies import cached as st
from conformance.strategies.kv_cache_spec import (
    FULL,
    KINDS,
    SPECS,
    UNIFORM,
    UNIFORM_FIELD,
    class_of,
    specs,
)
from conformance.strategies.spec_groups import (
    LAYERS,
    NUMBER,
    container_calls,
    merge_calls,
    uniform_calls,
)
from conformance.targets.target import Target
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict, raised


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


test_containers = Contract(
    "KVCacheConfig",
    container_calls,
    {
        **one_for_each(("KVCacheTensor", "KVCacheGroupSpec", "KVCacheConfig"), class_of),
        "layers that are not a list": lambda call: "no list" in call.arguments.values(),
        "a negative number": lambda call: -1 in call.arguments.values(),
        "no spec": lambda call: call.get("kv_cache_spec", 0) is None,
    },
    axes={
        LAYERS: of_objects(lambda call: max(map(_length, call.arguments.values())), last=4097),
        NUMBER: of_ints(lambda call: call.get("size", call.get("num_blocks", 0))),
    },
    compares_views=True,
)


@property_check("KVCacheConfig", container_calls)
def test_containers_can_be_changed(target: Target, call: Call) -> None:
    """Containers store the given objects themselves, compare by value, and can be changed."""
    invocation, again = Invocation(target, call), Invocation(target, call)
    held = invocation.run()
    assert held == again.run()
    for name, value in invocation.arguments.items():
        assert getattr(held, name) is value
        with contextlib.suppress(AttributeError):
            setattr(held, name, "another")
        assert getattr(held, name) == "another"


def _values(call: Call, field: str) -> list[Any]:
    return [getattr(spec, field, None) for spec in call["specs"]]


def _is_found_later(call: Call, field: str) -> bool:
    values = _values(call, field)
    return values[0] is None and any(value is not None for value in values)


AXES: Axes = {SPECS: of_objects(lambda call: len(call["specs"]), 1)}

test_merge = Contract(
    "KVCacheSpec.merge",
    merge_calls,
    {
        **one_for_each((*KINDS, UNIFORM), class_of),
        "one spec alone": lambda call: len(call["specs"]) == 1,
        "a window that the first lacks": lambda call: _is_found_later(call, "sliding_window"),
        "a chunk size that the first lacks": lambda call: _is_found_later(
            call, "attention_chunk_size"
        ),
        "no window and no chunk size": lambda call: (
            class_of(call) in FULL
            and {*_values(call, "sliding_window"), *_values(call, "attention_chunk_size")} == {None}
        ),
        "a cache format": lambda call: any(_values(call, "cache_dtype_str")),
    },
    axes=AXES,
    invalid_inputs=MERGE_INVALID_INPUTS,
)


def _kinds(call: Call) -> list[str]:
    return [type(spec).__name__ for spec in call["specs"].values()]


def _is_uniform(call: Call) -> bool:
    return reference.UniformTypeKVCacheSpecs.is_uniform_type(call["specs"])


def _differ(call: Call, kind: str) -> bool:
    """Return whether specs of one kind and block size are not uniform."""
    block_sizes = {spec.block_size for spec in call["specs"].values()}
    return len(block_sizes) == 1 and {*_kinds(call)} == {kind} and not _is_uniform(call)


UNIFORM_TYPE: Goals = {
    **one_for_each(UNIFORM_FIELD, lambda call: _kinds(call)[0]),
    "uniform": _is_uniform,
    "full attention and MLA": lambda call: set(_kinds(call)) == set(FULL),
    "different block sizes, and a first of no kind": lambda call: (
        _kinds(call)[0] in {"EncoderOnlyAttentionSpec", "AttentionSpec"}
    ),
    "different block sizes": lambda call: (
        len({spec.block_size for spec in call["specs"].values()}) > 1
    ),
    "windows that differ": lambda call: _differ(call, "SlidingWindowSpec"),
    "chunk sizes that differ": lambda call: _differ(call, "ChunkedLocalAttentionSpec"),
    "speculative blocks that differ": lambda call: _differ(call, "MambaSpec"),
    "of two kinds": lambda call: len({*_kinds(call)} - {"MLAAttentionSpec"}) > 1,
}


test_is_uniform_type = Contract(
    f"{UNIFORM}.is_uniform_type",
    uniform_calls("is_uniform_type"),
    UNIFORM_TYPE,
    axes=AXES,
    invalid_inputs=UNIFORM_TYPE_INVALID_INPUTS,
    takes_objects=True,
)


test_from_specs = Contract(
    f"{UNIFORM}.from_specs",
    uniform_calls("from_specs"),
    UNIFORM_TYPE,
    axes=AXES,
    invalid_inputs=UNIFORM_TYPE_INVALID_INPUTS,
    compares_views=True,
    takes_objects=True,
)


@property_check("KVCacheSpec.merge", merge_calls)
def test_merging_again_changes_nothing(target: Target, call: Call) -> None:
    """Reordering or repeating specs, or adding the merged one, does not change the result."""
    invocation = Invocation(target, call)
    merged, entries = invocation.run(), invocation.arguments["specs"]
    merge = target.lookup(call.function)
    for again in ([*reversed(entries)], [*entries, *entries], [merged], [merged, *entries]):
        assert merged == merge(again)
    assert type(entries[0]) is type(merged)
    for field in ("sliding_window", "attention_chunk_size"):
        given = {getattr(spec, field, None) for spec in entries} - {None}
        assert {getattr(merged, field, None)} - {None} == given


@property_check(f"{UNIFORM}.from_specs", uniform_calls("from_specs"))
def test_uniform_specs_are_their_specs(target: Target, call: Call) -> None:
    """`from_specs` combines uniform specs and sums their page sizes; otherwise it returns None."""
    invocation = Invocation(target, call)
    uniform, own = invocation.run(), invocation.arguments["specs"]
    assert (uniform is not None) == target.lookup(f"{UNIFORM}.is_uniform_type")(own)
    if uniform is None:
        return
    assert own == uniform.kv_cache_specs
    pages = [target.of(spec, "page_size_bytes") for spec in own.values()]
    assert sum(pages) == target.of(uniform, "page_size_bytes")
    assert {uniform.block_size} == {spec.block_size for spec in own.values()}
    turned = target.lookup(f"{UNIFORM}.from_specs")(dict(reversed(own.items())))
    assert target.own(uniform) == target.own(turned)
    try:
        hashes = [hash(target.own(spec)) for spec in (uniform, turned)]
    except TypeError as error:
        wrong = Difference(Verdict.TYPE, "hash(result)", None, raised(error), "an int")
        raise Mismatch(call, target.name, wrong) from error
    assert hashes[0] == hashes[1]


@st.composite
def _alike(draw: st.DrawFn, preset: Preset) -> dict[str, Any]:
    """Draw specs by layer name, all of kinds that may be the first."""
    names = ("layers.0.attn", "layers.1.attn", "layers.2.attn")
    size = draw(st.integers(1, 3))
    kinds = (*UNIFORM_FIELD, "MLAAttentionSpec")
    return {name: draw(specs(preset, *kinds, block_size=2)) for name in names[:size]}


@property_check(f"{UNIFORM}.is_uniform_type", _alike)
def test_whether_specs_are_uniform_is_of_pairs(target: Target, drawn: dict[str, Any]) -> None:
    """Specs are uniform if and only if every pair of them is, in any order."""
    is_uniform_type = target.lookup(f"{UNIFORM}.is_uniform_type")
    own = target.converter().convert(drawn, "value")
    pairs = [
        is_uniform_type({"a": first, "b": second})
        for first, second in itertools.product(own.values(), repeat=2)
    ]
    for order in itertools.permutations(own.items()):
        assert all(pairs) == is_uniform_type(dict(order))

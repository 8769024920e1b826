"""Kernel block sizes: the sizes that all backends of a group support."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import reference
from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.size_axes import of_ints, of_objects
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.block_size import (
    MULTIPLE_OF_INVALID_INPUTS,
    PREPARE_INVALID_INPUTS,
    SELECT_INVALID_INPUTS,
)
from conformance.strategies.backends import Backend
from conformance.strategies.block_size import (
    ATTENTION_GROUPS,
    BLOCK_SIZE,
    GROUPS,
    SUPPORTED_SIZES,
    divisors,
    is_of_attention,
    multiple_of_calls,
    prepare_calls,
    select_calls,
)
from conformance.strategies.kv_cache_spec import kind_of
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call

test_multiple_of = Contract(
    "MultipleOf",
    multiple_of_calls,
    {"past 2**31": lambda call: call["base"] >= 2**31},
    axes={BLOCK_SIZE: of_ints(lambda call: call["base"], 1)},
    invalid_inputs=MULTIPLE_OF_INVALID_INPUTS,
)


@property_check("MultipleOf", multiple_of_calls)
def test_multiples_are_values(target: Target, call: Call) -> None:
    """`MultipleOf` compares and hashes by its base, and does not equal the int itself."""
    base = call["base"]
    multiple_of = target.lookup("MultipleOf")
    assert {multiple_of(base), multiple_of(base)} == {multiple_of(base)}
    assert multiple_of(base) != multiple_of(base + 1)
    assert multiple_of(base) != base


def _listed(call: Call) -> list[list[Any]]:
    """Return the sizes that each backend lists, with NumPy's ints as Python's."""
    found = []
    for group in call["attn_groups"]:
        answer = group.backend.methods.get("get_supported_kernel_block_sizes")
        entries = answer() if answer else group.backend.supported
        found.append([e if isinstance(e, reference.MultipleOf) else int(e) for e in entries])
    return found


def _supports(listed: list[Any], size: int) -> bool:
    return any(
        size % entry.base == 0 if isinstance(entry, reference.MultipleOf) else entry == size
        for entry in listed
    )


def _answers_itself(call: Call) -> bool:
    size = call["kv_manager_block_size"]
    return all(_supports(listed, size) for listed in _listed(call))


def _candidates(call: Call) -> list[int]:
    """Return the divisors of the manager's size that all backends support."""
    size = call["kv_manager_block_size"]
    return [d for d in divisors(size) if all(_supports(listed, d) for listed in _listed(call))]


def _multiples(call: Call) -> set[int]:
    return {
        entry.base
        for listed in _listed(call)
        for entry in listed
        if isinstance(entry, reference.MultipleOf)
    }


test_select_common_block_size = Contract(
    "select_common_block_size",
    select_calls,
    {
        "no groups": lambda call: not call["attn_groups"],
        "the manager's size, as a multiple": lambda call: (
            bool(call["attn_groups"])
            and _answers_itself(call)
            and any(call["kv_manager_block_size"] not in one for one in _listed(call))
        ),
        "the manager's size, listed by all": lambda call: (
            bool(call["attn_groups"])
            and all(call["kv_manager_block_size"] in one for one in _listed(call))
        ),
        "a smaller size": lambda call: not _answers_itself(call),
        "a smaller size that one lists and another has as a multiple": lambda call: (
            not _answers_itself(call)
            and any(max(_candidates(call)) not in one for one in _listed(call))
        ),
        "several sizes to choose from": lambda call: (
            not _answers_itself(call) and len(_candidates(call)) > 1
        ),
        "a base that would do, were it an int": lambda call: (
            not _answers_itself(call)
            and any(call["kv_manager_block_size"] % base == 0 for base in _multiples(call))
        ),
        "a greater size that does not divide": lambda call: (
            not _answers_itself(call)
            and any(
                call["kv_manager_block_size"] % entry != 0
                for one in _listed(call)
                for entry in one
                if isinstance(entry, int) and entry > max(_candidates(call))
            )
        ),
        "a backend that is an instance": lambda call: any(
            group.backend.is_instance for group in call["attn_groups"]
        ),
        "NumPy's ints in a tuple": lambda call: any(
            group.backend.methods for group in call["attn_groups"]
        ),
    },
    axes={
        BLOCK_SIZE: of_ints(lambda call: call["kv_manager_block_size"], 1),
        ATTENTION_GROUPS: of_objects(lambda call: len(call["attn_groups"]), last=4097),
        SUPPORTED_SIZES: of_objects(
            lambda call: max(map(len, _listed(call)), default=0), 1, last=4097
        ),
    },
    invalid_inputs=SELECT_INVALID_INPUTS,
    takes_objects=True,
)


@property_check("select_common_block_size", select_calls)
def test_the_size_suits_all_and_none_is_greater(target: Target, call: Call) -> None:
    """The size divides the manager's, all groups support it, and no greater listed int is valid."""
    size = call["kv_manager_block_size"]
    answer = Invocation(target, call).run()
    assert size % answer == 0
    assert all(_supports(listed, answer) for listed in _listed(call))
    assert answer == size or any(answer in listed for listed in _listed(call))
    for greater in {entry for listed in _listed(call) for entry in listed if entry != size}:
        if isinstance(greater, int) and greater > answer and size % greater == 0:
            assert not all(_supports(listed, greater) for listed in _listed(call))


@property_check("select_common_block_size", select_calls)
def test_order_and_repeats_do_not_matter(target: Target, call: Call) -> None:
    """Reordering or repeating groups, or adding one that takes any size, changes nothing."""
    groups = call["attn_groups"]
    answer = Invocation(target, call).run()
    anything = SimpleNamespace(backend=Backend(supported=[reference.MultipleOf(1)]))
    for others in ([*reversed(groups)], groups * 2, [*groups, anything]):
        assert answer == Invocation(target, call.replacing(attn_groups=others)).run()


def _kinds(call: Call) -> list[str]:
    config = call["kv_cache_config"]
    return [kind_of(group.kv_cache_spec) for group in config.kv_cache_groups]


def _uniform(call: Call) -> list[Any]:
    groups = call["kv_cache_config"].kv_cache_groups
    found = [group.kv_cache_spec for group in groups]
    return [spec for spec in found if isinstance(spec, reference.UniformTypeKVCacheSpecs)]


def _second_kind_differs(spec: Any) -> bool:
    are_mamba = [isinstance(inner, reference.MambaSpec) for inner in spec.kv_cache_specs.values()]
    return len(set(are_mamba)) == 2


test_prepare_kernel_block_sizes = Contract(
    "prepare_kernel_block_sizes",
    prepare_calls,
    {
        "no groups": lambda call: not _kinds(call),
        "an encoder-only group before another": lambda call: (
            "EncoderOnlyAttentionSpec" in _kinds(call)[:-1]
        ),
        "an encoder-only group alone": lambda call: _kinds(call) == ["EncoderOnlyAttentionSpec"],
        "a Mamba group": lambda call: "MambaSpec" in _kinds(call),
        "a group of full attention": lambda call: "FullAttentionSpec" in _kinds(call),
        "a uniform group": lambda call: bool(_uniform(call)),
        "a uniform encoder-only group": lambda call: any(
            kind_of(spec) == "EncoderOnlyAttentionSpec" for spec in _uniform(call)
        ),
        "a uniform Mamba group": lambda call: any(
            kind_of(spec) == "MambaSpec" for spec in _uniform(call)
        ),
        "a uniform group of attention and Mamba": lambda call: any(
            map(_second_kind_differs, _uniform(call))
        ),
        "fewer lists than groups": lambda call: len(call["attn_groups"]) < len(_kinds(call)),
        "more lists than groups": lambda call: len(call["attn_groups"]) > len(_kinds(call)),
        "a kernel's size below the manager's": lambda call: any(
            size < group.kv_cache_spec.block_size
            for group, size in zip(
                [
                    group
                    for group in call["kv_cache_config"].kv_cache_groups
                    if kind_of(group.kv_cache_spec) != "EncoderOnlyAttentionSpec"
                ],
                _reference_answer(call),
                strict=True,
            )
        ),
    },
    axes={
        GROUPS: of_objects(lambda call: len(_kinds(call)), last=257),
        ATTENTION_GROUPS: of_objects(lambda call: max(map(len, call["attn_groups"]), default=0)),
        BLOCK_SIZE: of_ints(
            lambda call: max(
                (
                    group.kv_cache_spec.block_size
                    for group in call["kv_cache_config"].kv_cache_groups
                ),
                default=0,
            ),
            1,
        ),
    },
    invalid_inputs=PREPARE_INVALID_INPUTS,
    takes_objects=True,
)


def _reference_answer(call: Call) -> list[int]:
    found: list[int] = Invocation(REFERENCE, call).run()
    return found


@property_check("prepare_kernel_block_sizes", prepare_calls)
def test_kernel_blocks_make_whole_blocks(target: Target, call: Call) -> None:
    """Each group with a cache has a size that divides its block size; Mamba's equals it."""
    answer = Invocation(target, call).run()
    groups = [
        group.kv_cache_spec
        for group, kind in zip(call["kv_cache_config"].kv_cache_groups, _kinds(call), strict=True)
        if kind != "EncoderOnlyAttentionSpec"
    ]
    for spec, size in zip(groups, answer, strict=True):
        assert spec.block_size % size == 0
        assert is_of_attention(spec) or spec.block_size == size

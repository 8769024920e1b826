"""Bad calls of the functions that choose the block sizes of kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import reference
from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.arrays import changed
from conformance.invalid_inputs.kv_cache_spec import bad_ints, field_faults
from conformance.invalid_inputs.kv_views import foreign_mamba, groups_are_a_tuple
from conformance.strategies.backends import Backend
from conformance.strategies.block_size import is_of_attention

MULTIPLE_OF_INVALID_INPUTS = field_faults("base", bad_ints())


def _listing(supported: object) -> SimpleNamespace:
    """Return an attention group whose backend answers this."""
    answer = {"get_supported_kernel_block_sizes": lambda: supported}
    return SimpleNamespace(backend=Backend(methods=answer), layer_names=[])


def _with_group(group: Any) -> Change:
    """Return a fault that adds an attention group, behind the others."""
    return changed("attn_groups", lambda groups: [*groups, group])


BAD_LISTS: tuple[tuple[str, type[Exception], object], ...] = (
    ("0", ValueError, [0]),
    ("negative", ValueError, [16, -16]),
    ("a bool", ValueError, [True]),
    ("a float", ValueError, [16.0]),
    ("a str", ValueError, ["16"]),
    ("None", ValueError, [16, None]),
    ("a list", ValueError, [[16]]),
)

WORD = "(attn_groups|get_supported_kernel_block_sizes)"


def _foreign(base: object) -> object:
    """Return an engine's own `MultipleOf`, which checks nothing."""
    cls = type("MultipleOf", (), {"base": base, "__repr__": lambda _: "MultipleOf(...)"})
    return cls()


def _no_common_size(call: Call) -> Call:
    # Two sizes that are no multiples of each other, and each a divisor.
    groups = [_listing([2]), _listing([3])]
    return call.replacing(kv_manager_block_size=12, attn_groups=groups)


SELECT_INVALID_INPUTS = [
    *field_faults("kv_manager_block_size", bad_ints()),
    InvalidInput("groups are a tuple", TypeError, "attn_groups", changed("attn_groups", tuple)),
    InvalidInput("groups are None", TypeError, "attn_groups", replaced("attn_groups", None)),
    *(
        InvalidInput(f"an entry is {what}", error, WORD, _with_group(_listing(supported)))
        for what, error, supported in BAD_LISTS
    ),
    *(
        InvalidInput(
            f"a foreign base is {base!r}", ValueError, WORD, _with_group(_listing([_foreign(base)]))
        )
        for base in (0, True, 2.0, None)
    ),
    InvalidInput("a backend lists an int", TypeError, WORD, _with_group(_listing(16))),
    InvalidInput("a backend lists a set", TypeError, WORD, _with_group(_listing({16}))),
    InvalidInput("a backend lists None", TypeError, WORD, _with_group(_listing(None))),
    InvalidInput("a backend supports nothing", ValueError, WORD, _with_group(_listing([]))),
    InvalidInput("two sizes that never meet", ValueError, WORD, _no_common_size),
    InvalidInput(
        "a size that does not divide the manager's",
        ValueError,
        "kv_manager_block_size",
        lambda call: call.replacing(
            kv_manager_block_size=48,
            attn_groups=[_listing([32]), _listing([reference.MultipleOf(16)])],
        ),
    ),
    InvalidInput(
        "a divisor that is of multiples alone",
        ValueError,
        "kv_manager_block_size",
        lambda call: call.replacing(
            kv_manager_block_size=48,
            attn_groups=[
                _listing([reference.MultipleOf(32)]),
                _listing([reference.MultipleOf(16)]),
            ],
        ),
    ),
    InvalidInput(
        "a group has no backend",
        AttributeError,
        "backend",
        _with_group(SimpleNamespace(layer_names=[])),
    ),
]


def _with_spec(spec: Any) -> Change:
    """Return a fault that gives the first group another spec."""

    def breaks(call: Call) -> Call | None:
        config = call.arguments["kv_cache_config"]
        groups = [reference.KVCacheGroupSpec(["layers.9.attn"], spec), *config.kv_cache_groups]
        config = dataclasses.replace(config, kv_cache_groups=groups)
        lists = [[], *call.arguments["attn_groups"]]
        return call.replacing(kv_cache_config=config, attn_groups=lists)

    return breaks


def _first_list(change: Callable[[list[Any]], object]) -> Change:
    """Return a fault in the list of the first group that needs one."""

    def breaks(call: Call) -> Call | None:
        lists = call.arguments["attn_groups"]
        for i, group in enumerate(call.arguments["kv_cache_config"].kv_cache_groups):
            if is_of_attention(group.kv_cache_spec):
                bad = [change(one) if i == j else one for j, one in enumerate(lists)]
                return call.replacing(attn_groups=bad)
        return None

    return breaks


def _too_few_lists(call: Call) -> Call | None:
    groups = call.arguments["kv_cache_config"].kv_cache_groups
    needs = [is_of_attention(group.kv_cache_spec) for group in groups]
    last = max((i for i, is_needed in enumerate(needs) if is_needed), default=-1)
    if last < 0:
        return None
    return call.replacing(attn_groups=call.arguments["attn_groups"][:last])


PREPARE_INVALID_INPUTS = [
    InvalidInput("groups are a tuple", TypeError, "attn_groups", changed("attn_groups", tuple)),
    InvalidInput(
        "KV cache groups are a tuple",
        TypeError,
        "kv_cache_groups",
        groups_are_a_tuple,
    ),
    InvalidInput("fewer lists than groups need", ValueError, "attn_groups", _too_few_lists),
    *(
        InvalidInput(
            f"the list of a group is {what}",
            TypeError,
            "attn_groups",
            _first_list(lambda _, bad=bad: bad),  # type: ignore[misc]  # which of them
            also=r"attn_groups\[\d+",
        )
        for what, bad in (("None", None), ("one group", _listing([1])))
    ),
    *(
        InvalidInput(
            f"a foreign Mamba group's block size is {size!r}",
            error,
            "block_size",
            _with_spec(foreign_mamba(block_size=size)),
        )
        for error, size in ((ValueError, 0), (TypeError, 16.0))
    ),
    InvalidInput(
        "a backend of a group supports nothing",
        ValueError,
        WORD,
        _first_list(lambda groups: [*groups, _listing([])]),
    ),
    InvalidInput(
        "a backend of a group lists a float",
        ValueError,
        WORD,
        _first_list(lambda groups: [_listing([1.0]), *groups]),
    ),
    InvalidInput(
        "a group of no kind",
        NotImplementedError,
        "KVCacheSpec",
        _with_spec(reference.KVCacheSpec(16)),
    ),
    InvalidInput(
        "a uniform group whose first is of no kind",
        NotImplementedError,
        "KVCacheSpec",
        _with_spec(reference.UniformTypeKVCacheSpecs(16, {"a": reference.KVCacheSpec(16)})),
    ),
    InvalidInput(
        "there is no configuration",
        AttributeError,
        "kv_cache_groups",
        replaced("kv_cache_config", None),
    ),
]

"""Bad calls of the functions that choose the block sizes of kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import reference
from conformance.contracts import Breaks, Call, Draw, Fault, replaced
from conformance.faults.arrays import changed
from conformance.faults.kv_cache_spec import bad_ints, field_faults
from conformance.faults.kv_views import foreign_mamba, groups_are_a_tuple
from conformance.strategies.backends import Backend
from conformance.strategies.block_size import is_of_attention

MULTIPLE_OF_FAULTS = field_faults("base", bad_ints())


def _listing(supported: object) -> SimpleNamespace:
    """Return an attention group whose backend answers this."""
    answer = {"get_supported_kernel_block_sizes": lambda: supported}
    return SimpleNamespace(backend=Backend(methods=answer), layer_names=[])


def _with_group(group: Any) -> Breaks:
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


def _no_common_size(call: Call, _: Draw) -> Call:
    # Two sizes that are no multiples of each other, and each a divisor.
    groups = [_listing([2]), _listing([3])]
    return call.replacing(kv_manager_block_size=12, attn_groups=groups)


SELECT_FAULTS = [
    *field_faults("kv_manager_block_size", bad_ints()),
    Fault("groups are a tuple", TypeError, "attn_groups", changed("attn_groups", tuple)),
    Fault("groups are None", TypeError, "attn_groups", replaced("attn_groups", None)),
    *(
        Fault(f"an entry is {what}", error, WORD, _with_group(_listing(supported)))
        for what, error, supported in BAD_LISTS
    ),
    *(
        Fault(
            f"a foreign base is {base!r}", ValueError, WORD, _with_group(_listing([_foreign(base)]))
        )
        for base in (0, True, 2.0, None)
    ),
    Fault("a backend lists an int", TypeError, WORD, _with_group(_listing(16))),
    Fault("a backend lists a set", TypeError, WORD, _with_group(_listing({16}))),
    Fault("a backend lists None", TypeError, WORD, _with_group(_listing(None))),
    Fault("a backend supports nothing", ValueError, WORD, _with_group(_listing([]))),
    Fault("two sizes that never meet", ValueError, WORD, _no_common_size),
    Fault(
        "a size that does not divide the manager's",
        ValueError,
        "kv_manager_block_size",
        lambda call, _: call.replacing(
            kv_manager_block_size=48,
            attn_groups=[_listing([32]), _listing([reference.MultipleOf(16)])],
        ),
    ),
    Fault(
        "a divisor that is of multiples alone",
        ValueError,
        "kv_manager_block_size",
        lambda call, _: call.replacing(
            kv_manager_block_size=48,
            attn_groups=[
                _listing([reference.MultipleOf(32)]),
                _listing([reference.MultipleOf(16)]),
            ],
        ),
    ),
    Fault(
        "a group has no backend",
        AttributeError,
        "backend",
        _with_group(SimpleNamespace(layer_names=[])),
    ),
]


def _with_spec(spec: Any) -> Breaks:
    """Return a fault that gives the first group another spec."""

    def breaks(call: Call, _: Draw) -> Call | None:
        config = call.arguments["kv_cache_config"]
        groups = [reference.KVCacheGroupSpec(["layers.9.attn"], spec), *config.kv_cache_groups]
        config = dataclasses.replace(config, kv_cache_groups=groups)
        lists = [[], *call.arguments["attn_groups"]]
        return call.replacing(kv_cache_config=config, attn_groups=lists)

    return breaks


def _first_list(change: Callable[[list[Any]], object]) -> Breaks:
    """Return a fault in the list of the first group that needs one."""

    def breaks(call: Call, _: Draw) -> Call | None:
        lists = call.arguments["attn_groups"]
        for i, group in enumerate(call.arguments["kv_cache_config"].kv_cache_groups):
            if is_of_attention(group.kv_cache_spec):
                bad = [change(one) if i == j else one for j, one in enumerate(lists)]
                return call.replacing(attn_groups=bad)
        return None

    return breaks


def _too_few_lists(call: Call, _: Draw) -> Call | None:
    groups = call.arguments["kv_cache_config"].kv_cache_groups
    needs = [is_of_attention(group.kv_cache_spec) for group in groups]
    last = max((i for i, is_needed in enumerate(needs) if is_needed), default=-1)
    if last < 0:
        return None
    return call.replacing(attn_groups=call.arguments["attn_groups"][:last])


PREPARE_FAULTS = [
    Fault("groups are a tuple", TypeError, "attn_groups", changed("attn_groups", tuple)),
    Fault(
        "KV cache groups are a tuple",
        TypeError,
        "kv_cache_groups",
        groups_are_a_tuple,
    ),
    Fault("fewer lists than groups need", ValueError, "attn_groups", _too_few_lists),
    *(
        Fault(
            f"the list of a group is {what}",
            TypeError,
            "attn_groups",
            _first_list(lambda _, bad=bad: bad),  # type: ignore[misc]  # which of them
            also=r"attn_groups\[\d+",
        )
        for what, bad in (("None", None), ("one group", _listing([1])))
    ),
    *(
        Fault(
            f"a foreign Mamba group's block size is {size!r}",
            error,
            "block_size",
            _with_spec(foreign_mamba(block_size=size)),
        )
        for error, size in ((ValueError, 0), (TypeError, 16.0))
    ),
    Fault(
        "a backend of a group supports nothing",
        ValueError,
        WORD,
        _first_list(lambda groups: [*groups, _listing([])]),
    ),
    Fault(
        "a backend of a group lists a float",
        ValueError,
        WORD,
        _first_list(lambda groups: [_listing([1.0]), *groups]),
    ),
    Fault(
        "a group of no kind",
        NotImplementedError,
        "KVCacheSpec",
        _with_spec(reference.KVCacheSpec(16)),
    ),
    Fault(
        "a uniform group whose first is of no kind",
        NotImplementedError,
        "KVCacheSpec",
        _with_spec(reference.UniformTypeKVCacheSpecs(16, {"a": reference.KVCacheSpec(16)})),
    ),
    Fault(
        "there is no configuration",
        AttributeError,
        "kv_cache_groups",
        replaced("kv_cache_config", None),
    ),
]

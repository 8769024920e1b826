"""Invalid inputs of the functions that choose the block sizes of kernels."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import reference
from conformance.contracts.contract import Change
from conformance.invalid_inputs.changes import (
    Refusals,
    change_maker,
    changed,
    refusals,
    replaced,
    set_arguments,
)
from conformance.invalid_inputs.kinds import Int, List, Object, invalid_by_kind
from conformance.invalid_inputs.kv_views import GROUPS, foreign_mamba
from conformance.strategies.backends import Backend
from conformance.strategies.block_size import is_of_attention
from conformance.values.call import Call

MULTIPLE_OF_INVALID_INPUTS = invalid_by_kind(base=Int())


def _listing(supported: object) -> SimpleNamespace:
    """Return an attention group whose backend returns this value as its supported sizes."""
    answer = {"get_supported_kernel_block_sizes": lambda: supported}
    return SimpleNamespace(backend=Backend(methods=answer), layer_names=[])


def _with_group(group: Any) -> Change:
    """Return the change that adds an attention group, after the others."""
    return changed("attn_groups", lambda groups: [*groups, group])


def _supporting(*supported: object) -> Change:
    """Return the change that adds a group whose backend supports these sizes."""
    return _with_group(_listing(list(supported)))


LISTS = "(attn_groups|get_supported_kernel_block_sizes)"


def _foreign(base: object) -> object:
    """Return an engine's own `MultipleOf`, which checks nothing."""
    cls = type("MultipleOf", (), {"base": base, "__repr__": lambda _: "MultipleOf(...)"})
    return cls()


SELECT_REFUSALS: Refusals = {
    (ValueError, LISTS): {
        "an entry is 0": _supporting(0),
        "an entry is negative": _supporting(16, -16),
        "an entry is a bool": _supporting(True),
        "an entry is a float": _supporting(16.0),
        "an entry is a str": _supporting("16"),
        "an entry is None": _supporting(16, None),
        "an entry is a list": _supporting([16]),
        **{
            f"a foreign base is {base!r}": _supporting(_foreign(base))
            for base in (0, True, 2.0, None)
        },
        "a backend supports nothing": _supporting(),
        # Two divisors of the manager's size, neither of which is a multiple of the other.
        "two sizes that never meet": set_arguments(
            kv_manager_block_size=12, attn_groups=[_listing([2]), _listing([3])]
        ),
    },
    (ValueError, "kv_manager_block_size"): {
        "a size that does not divide the manager's": set_arguments(
            kv_manager_block_size=48,
            attn_groups=[_listing([32]), _listing([reference.MultipleOf(16)])],
        ),
        "a divisor that is of multiples alone": set_arguments(
            kv_manager_block_size=48,
            attn_groups=[_listing([reference.MultipleOf(n)]) for n in (32, 16)],
        ),
    },
    (TypeError, LISTS): {
        "a backend lists an int": _with_group(_listing(16)),
        "a backend lists a set": _with_group(_listing({16})),
        "a backend lists None": _with_group(_listing(None)),
    },
    (AttributeError, "backend"): {
        "a group has no backend": _with_group(SimpleNamespace(layer_names=[]))
    },
}

SELECT_INVALID_INPUTS = [
    *invalid_by_kind(kv_manager_block_size=Int(), attn_groups=List()),
    *refusals(SELECT_REFUSALS),
]


@change_maker
def _with_spec(call: Call, spec: Any) -> Call | None:
    """Insert a group with this spec before the others."""
    group = reference.KVCacheGroupSpec(["layers.9.attn"], spec)
    with_list = call.replacing(attn_groups=[[], *call.arguments["attn_groups"]])
    return changed(GROUPS, lambda groups: [group, *groups])(with_list)


def _needing(call: Call) -> list[int]:
    """Return the indices of the KV cache groups that need a list of attention groups."""
    groups = call.arguments["kv_cache_config"].kv_cache_groups
    return [i for i, group in enumerate(groups) if is_of_attention(group.kv_cache_spec)]


@change_maker
def _first_list(call: Call, change: Callable[[list[Any]], object]) -> Call | None:
    """Change the list of the first group that needs one."""
    needing = _needing(call)
    if not needing:
        return None
    first = call.arguments["attn_groups"][needing[0]]
    return replaced(f"attn_groups[{needing[0]}]", change(first))(call)


def _too_few_lists(call: Call) -> Call | None:
    needing = _needing(call)
    lists = call.arguments["attn_groups"]
    return call.replacing(attn_groups=lists[: needing[-1]]) if needing else None


PREPARE_REFUSALS: Refusals = {
    (TypeError, "block_size"): {
        "a foreign Mamba group's block size is a float": _with_spec(foreign_mamba(block_size=16.0))
    },
    (ValueError, "attn_groups"): {"fewer lists than groups need": _too_few_lists},
    (ValueError, "block_size"): {
        "a foreign Mamba group's block size is 0": _with_spec(foreign_mamba(block_size=0))
    },
    (ValueError, "kv_cache_specs"): {
        "a foreign uniform group has no specs": _with_spec(
            type("UniformTypeKVCacheSpecs", (), {"block_size": 16, "kv_cache_specs": {}})()
        )
    },
    (ValueError, LISTS): {
        "a backend of a group supports nothing": _first_list(
            lambda groups: [*groups, _listing([])]
        ),
        "a backend of a group lists a float": _first_list(
            lambda groups: [_listing([1.0]), *groups]
        ),
    },
    (NotImplementedError, "KVCacheSpec"): {
        "a group of no kind": _with_spec(reference.KVCacheSpec(16)),
        "a uniform group whose first is of no kind": _with_spec(
            reference.UniformTypeKVCacheSpecs(16, {"a": reference.KVCacheSpec(16)})
        ),
    },
}

WRONG_LISTS: Refusals = {
    (TypeError, "attn_groups"): {
        "the list of a group is None": _first_list(lambda _: None),
        "the list of a group is one group": _first_list(lambda _: _listing([1])),
    }
}

PREPARE_INVALID_INPUTS = [
    *invalid_by_kind(
        attn_groups=List(),
        kv_cache_config=Object(reads="kv_cache_groups"),
        **{GROUPS: List()},
    ),
    *refusals(WRONG_LISTS, also=r"attn_groups\[\d+"),
    *refusals(PREPARE_REFUSALS),
]

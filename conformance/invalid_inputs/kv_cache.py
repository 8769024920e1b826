"""Invalid inputs of `_allocate_kv_cache` and `init_kv_cache`."""

from __future__ import annotations

import itertools
import re
from typing import Any

import reference
from conformance.invalid_inputs.changes import (
    Refusals,
    changed,
    prepared,
    refusals,
    replaced,
    where,
    without_key,
)
from conformance.invalid_inputs.kinds import (
    MAX_INT64,
    Dict,
    Int,
    List,
    Object,
    Str,
    invalid_by_kind,
)
from conformance.invalid_inputs.kv_binding import by_default
from conformance.invalid_inputs.kv_views import GROUPS, RAW, TWICE_IN_GROUPS, cached_groups
from conformance.values.call import Call
from conformance.values.parts import is_reference_object, map_children

CONFIG_TENSORS = "kv_cache_config.kv_cache_tensors"
FIRST_TENSOR = f"{CONFIG_TENSORS}[0]"
TENSORS = "(kv_cache_tensors|shared_by)"
MISSING = "layers.77.attn"
NAMING_MISSING = re.escape(MISSING)


def _has_caches(call: Call) -> bool:
    return bool(call.source.layers)


def _used_tensor_first(call: Call) -> Call | None:
    """Return the call with the tensors that layers use first; None if there are none."""
    tensors = call.arguments["kv_cache_config"].kv_cache_tensors
    used_first = sorted(tensors, key=lambda tensor: not tensor.shared_by)
    return replaced(CONFIG_TENSORS, used_first)(call) if _has_caches(call) else None


def _used_group_last(call: Call) -> Call | None:
    """Return the call with a group whose layers have caches last; None if there is none."""
    used = {layer.name for layer in call.source.layers}
    groups = sorted(
        cached_groups(call), key=lambda group: bool(used.intersection(group.layer_names))
    )
    return replaced(GROUPS, groups)(call) if used else None


def _one_name_more(name: object) -> Any:
    return changed(f"{FIRST_TENSOR}.shared_by", lambda names: [*names, name])


def _encoder_only_in_a_tensor(call: Call) -> Call | None:
    names = {layer.name for layer in call.source.layers}
    groups = [g for g in cached_groups(call) if not names.intersection(g.layer_names)]
    return _one_name_more(groups[0].layer_names[0])(call) if groups else None


GROUP_WITHOUT_TENSOR = reference.KVCacheGroupSpec([MISSING], reference.KVCacheSpec(16))

NO_CONFIG = invalid_by_kind(kv_cache_config=Object(reads="(kv_cache_groups|kv_cache_tensors)"))

INVALID_TENSORS: Refusals = {
    (ValueError, TENSORS): {
        "a layer twice in a tensor": changed(
            f"{FIRST_TENSOR}.shared_by", lambda names: [*names, names[0]]
        ),
        "a layer in two tensors": changed(
            CONFIG_TENSORS,
            lambda tensors: [*tensors, reference.KVCacheTensor(4, tensors[0].shared_by[-1:])],
        ),
        "a tensor is gone": changed(CONFIG_TENSORS, lambda tensors: tensors[1:]),
        "an encoder-only layer is in a tensor": _encoder_only_in_a_tensor,
    },
    (ValueError, NAMING_MISSING): {"a layer of a tensor is in no group": _one_name_more(MISSING)},
}

INVALID_GROUPS: Refusals = {
    (ValueError, "kv_cache_groups"): TWICE_IN_GROUPS,
    (ValueError, NAMING_MISSING): {
        "a layer of a group is in no tensor": changed(
            GROUPS, lambda groups: [*groups, GROUP_WITHOUT_TENSOR]
        )
    },
}

ALLOCATE_INVALID_INPUTS = [
    *NO_CONFIG,
    *invalid_by_kind(**{GROUPS: List()}),
    *prepared(_used_group_last, invalid_by_kind(**{f"{GROUPS}[-1].layer_names": List(Str())})),
    *prepared(
        _used_tensor_first,
        [
            *invalid_by_kind(
                **{
                    CONFIG_TENSORS: List(),
                    f"{FIRST_TENSOR}.size": Int(0, MAX_INT64),
                    f"{FIRST_TENSOR}.shared_by": List(Str()),
                }
            ),
            *refusals(INVALID_TENSORS),
        ],
    ),
    *refusals(INVALID_GROUPS),
]


def _last_layer_gone(call: Call) -> Call | None:
    last = call.source.layers[-1].name
    return changed("forward_context", lambda layers: without_key(layers, last))(call)


def _without_index(call: Call) -> Call:
    """Rename the last layer everywhere, so that its name has no index."""
    return call.replacing(
        **_renamed(call.arguments, call.source.layers[-1].name, "layers.last.attn")
    )


def _numbered_twice(call: Call) -> Call:
    """Rename the last layer everywhere, so that its name has two integers and is unique."""
    names = (f"layers.0.attn.{n}" for n in itertools.count(1))
    new = next(n for n in names if n not in call.arguments["forward_context"])
    return call.replacing(**_renamed(call.arguments, call.source.layers[-1].name, new))


def _renamed(value: Any, old: str, new: str) -> Any:
    """Return a value in which a layer has another name, everywhere."""
    if isinstance(value, dict):
        return {_renamed(k, old, new): _renamed(v, old, new) for k, v in value.items()}
    if isinstance(value, list) or is_reference_object(value):
        return map_children(lambda inner: _renamed(inner, old, new), value)
    return new if isinstance(value, str) and value == old else value


def _no_backends(call: Call) -> Call | None:
    is_needed = any(not layer.is_mamba for layer in call.source.layers)
    return call.replacing(attn_backends={}) if is_needed else None


WRONG_ARGUMENTS: Refusals = {
    (ValueError, "runner_kv_caches"): {"the runner has caches": [7]},
    (ValueError, "kernel_block_sizes"): {"kernel sizes are too many": [1] * 9},
    (KeyError, "attn_backends"): {"a layer has no backend": _no_backends},
}

WRONG_NAMES: Refusals = {
    (KeyError, "forward_context"): {"a layer is not in the context": _last_layer_gone},
    (ValueError, "layer_name"): {
        "a name without an index": _without_index,
        "a name with two integers, by default": by_default(_numbered_twice),
    },
}

WRONG_TENSORS: Refusals = {
    (ValueError, "size"): {"a size is negative": replaced(f"{FIRST_TENSOR}.size", -1)},
    (ValueError, TENSORS): {
        "a layer of a group is in no tensor": changed(
            f"{FIRST_TENSOR}.shared_by", lambda names: names[1:]
        )
    },
    (ValueError, RAW): {
        "a size is not a whole page": changed(f"{FIRST_TENSOR}.size", lambda size: size + 1)
    },
}

INIT_INVALID_INPUTS = [
    *NO_CONFIG,
    *invalid_by_kind(
        runner_kv_caches=List(),
        forward_context=Dict(),
        num_attn_module=Int(is_optional=True),
        attn_backends=Dict(),
        kernel_block_sizes=List(is_optional=True),
    ),
    *refusals(WRONG_ARGUMENTS),
    *where(_has_caches, refusals(WRONG_NAMES)),
    *prepared(_used_tensor_first, refusals(WRONG_TENSORS)),
]

"""Invalid inputs of the functions that allocate the KV cache of a model, and that do it all."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import reference
from conformance.calls import Call
from conformance.invalid_inputs.changes import (
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
from conformance.invalid_inputs.kv_views import RAW, TWICE_IN_GROUPS, cached_groups, with_groups

CONFIG_TENSORS = "kv_cache_config.kv_cache_tensors"
FIRST_TENSOR = f"{CONFIG_TENSORS}[0]"
GROUPS = "kv_cache_config.kv_cache_groups"
TENSORS = "(kv_cache_tensors|shared_by)"
MISSING = "layers.77.attn"
NAMING_MISSING = re.escape(MISSING)


def _has_caches(call: Call) -> bool:
    return bool(call.facts.layers)


def _used_tensor_first(call: Call) -> Call | None:
    """Return the call with the tensors that layers use first; None where there is none."""
    tensors = call.arguments["kv_cache_config"].kv_cache_tensors
    used_first = sorted(tensors, key=lambda tensor: not tensor.shared_by)
    return replaced(CONFIG_TENSORS, used_first)(call) if _has_caches(call) else None


def _used_group_last(call: Call) -> Call | None:
    """Return the call with a group whose layers have caches last; None where there is none."""
    used = {layer.name for layer in call.facts.layers}
    groups = sorted(
        cached_groups(call), key=lambda group: bool(used.intersection(group.layer_names))
    )
    return replaced(GROUPS, groups)(call) if used else None


def _one_name_more(name: object) -> Any:
    return changed(f"{FIRST_TENSOR}.shared_by", lambda names: [*names, name])


def _encoder_only_in_a_tensor(call: Call) -> Call | None:
    names = {layer.name for layer in call.facts.layers}
    groups = [g for g in cached_groups(call) if not names.intersection(g.layer_names)]
    return _one_name_more(groups[0].layer_names[0])(call) if groups else None


def _group_without_tensor(call: Call) -> Call:
    group = reference.KVCacheGroupSpec([MISSING], reference.KVCacheSpec(16))
    return with_groups(call, [*cached_groups(call), group])


INVALID_TENSORS = {
    "a layer twice in a tensor": changed(
        f"{FIRST_TENSOR}.shared_by", lambda names: [*names, names[0]]
    ),
    "a layer in two tensors": changed(
        CONFIG_TENSORS,
        lambda tensors: [*tensors, reference.KVCacheTensor(4, tensors[0].shared_by[-1:])],
    ),
    "a tensor is gone": changed(CONFIG_TENSORS, lambda tensors: tensors[1:]),
    "an encoder-only layer is in a tensor": _encoder_only_in_a_tensor,
}

NO_CONFIG = invalid_by_kind(kv_cache_config=Object(reads="(kv_cache_groups|kv_cache_tensors)"))

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
            *refusals(
                ValueError,
                **{
                    TENSORS: INVALID_TENSORS,
                    NAMING_MISSING: {"a layer of a tensor is in no group": _one_name_more(MISSING)},
                },
            ),
        ],
    ),
    *refusals(
        ValueError,
        kv_cache_groups=TWICE_IN_GROUPS,
        **{NAMING_MISSING: {"a layer of a group is in no tensor": _group_without_tensor}},
    ),
]


def _last_layer_gone(call: Call) -> Call | None:
    last = call.facts.layers[-1].name
    return changed("forward_context", lambda layers: without_key(layers, last))(call)


def _without_index(call: Call) -> Call:
    """Rename the last layer everywhere, so that its name has no index."""
    return _renamed(call, "layers.last.attn")


def _numbered_twice(call: Call) -> Call:
    """Rename the last layer everywhere, so that its name has two integers, and is no other's."""
    names = (f"layers.0.attn.{n}" for n in itertools.count(1))
    return _renamed(call, next(n for n in names if n not in call.arguments["forward_context"]))


def _renamed(call: Call, new: str) -> Call:
    """Return the call with another name of the last layer, everywhere."""
    old = call.facts.layers[-1].name

    def in_list(names: list[str]) -> list[str]:
        return [new if name == old else name for name in names]

    def in_dict(entries: dict[str, Any]) -> dict[str, Any]:
        return {new if name == old else name: entry for name, entry in entries.items()}

    def in_spec(spec: Any) -> Any:
        if not hasattr(spec, "kv_cache_specs"):
            return spec
        return dataclasses.replace(spec, kv_cache_specs=in_dict(spec.kv_cache_specs))

    config = call.arguments["kv_cache_config"]
    groups = [
        dataclasses.replace(
            group,
            layer_names=in_list(group.layer_names),
            kv_cache_spec=in_spec(group.kv_cache_spec),
        )
        for group in config.kv_cache_groups
    ]
    tensors = [
        dataclasses.replace(tensor, shared_by=in_list(tensor.shared_by))
        for tensor in config.kv_cache_tensors
    ]
    return call.replacing(
        kv_cache_config=dataclasses.replace(
            config, kv_cache_groups=groups, kv_cache_tensors=tensors
        ),
        forward_context=in_dict(call.arguments["forward_context"]),
        attn_backends=in_dict(call.arguments["attn_backends"]),
    )


def _no_backends(call: Call) -> Call | None:
    is_needed = any(not layer.is_mamba for layer in call.facts.layers)
    return call.replacing(attn_backends={}) if is_needed else None


INIT_INVALID_INPUTS = [
    *NO_CONFIG,
    *invalid_by_kind(
        runner_kv_caches=List(),
        forward_context=Dict(),
        num_attn_module=Int(is_optional=True),
        attn_backends=Dict(),
        kernel_block_sizes=List(is_optional=True),
    ),
    *refusals(
        ValueError,
        runner_kv_caches={"the runner has caches": replaced("runner_kv_caches", [7])},
        kernel_block_sizes={"kernel sizes are too many": replaced("kernel_block_sizes", [1] * 9)},
    ),
    *refusals(KeyError, attn_backends={"a layer has no backend": _no_backends}),
    *where(
        _has_caches,
        [
            *refusals(
                KeyError, forward_context={"a layer is not in the context": _last_layer_gone}
            ),
            *refusals(
                ValueError,
                layer_name={
                    "a name without an index": _without_index,
                    "a name with two integers, by default": by_default(_numbered_twice),
                },
            ),
        ],
    ),
    *prepared(
        _used_tensor_first,
        refusals(
            ValueError,
            size={"a size is negative": replaced(f"{FIRST_TENSOR}.size", -1)},
            **{
                TENSORS: {
                    "a layer of a group is in no tensor": changed(
                        f"{FIRST_TENSOR}.shared_by", lambda names: names[1:]
                    )
                },
                RAW: {
                    "a size is not a whole page": changed(
                        f"{FIRST_TENSOR}.size", lambda number: number + 1
                    )
                },
            },
        ),
    ),
]

"""Layer indices, bound caches and shared ones, as one writes them in a hurry."""

# ruff: noqa: C901, PLR0912  # a branch for each bug

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fast
from known_bad.entries import rewritten

REAL_EXTRACT = fast.extract_layer_index
REAL_BIND = fast.bind_kv_cache
REAL_INITIALIZE = fast.initialize_kv_cache_for_kv_sharing
REAL_ADD = fast.add_kv_sharing_layers_to_kv_cache_groups


def _integers(bug: str | None, name: str) -> list[int]:
    found = []
    for part in name.split("."):
        if bug == "whatever int() takes" or (bug == "isdigit" and part.isdigit()):
            try:
                found.append(int(part))
            except ValueError:
                if bug == "isdigit":
                    raise
        elif (bug == "isdecimal" and part.isdecimal()) or (part.isascii() and part.isdigit()):
            found.append(int(part))
    return found


def _make_extract(bug: str | None) -> Callable[..., int]:
    def extract_layer_index(layer_name: Any, num_attn_module: Any = 1) -> int:  # noqa: ANN401  # any
        if bug == "three integers pass" and isinstance(layer_name, str):
            integers = _integers(bug, layer_name)
            if len(integers) > 2 and num_attn_module not in (1, None):
                return integers[0] * num_attn_module + integers[1]
        REAL_EXTRACT(layer_name, num_attn_module)
        modules = int(num_attn_module or 1)
        integers = _integers(bug, layer_name)
        has_attn = "attn" in layer_name
        if bug == "attn is a whole component":
            has_attn = "attn" in layer_name.split(".")
        if modules == 1 or not has_attn or len(integers) == 1:
            if len(integers) != 1:
                raise ValueError(f"layer_name is {layer_name!r}")
            if bug == "one integer is multiplied too" and has_attn:
                return integers[0] * modules
            return integers[0]
        if bug == "the module is multiplied":
            return integers[0] + integers[1] * modules
        return integers[0] * modules + integers[1]

    return extract_layer_index


def _make_bind(bug: str | None) -> Callable[..., None]:
    def bind_kv_cache(
        kv_caches: Any,  # noqa: ANN401  # any
        forward_context: Any,  # noqa: ANN401  # any
        runner_kv_caches: Any,  # noqa: ANN401  # any
        num_attn_module: Any = 1,  # noqa: ANN401  # any
    ) -> None:
        if bug == "bound one by one" and isinstance(kv_caches, dict):
            for name, cache in kv_caches.items():
                if not isinstance(forward_context, dict) or name not in forward_context:
                    break
                forward_context[name].kv_cache = [cache]
        if bug == "bound until a layer refuses" and isinstance(forward_context, dict):
            for name in kv_caches if None in forward_context.values() else ():
                forward_context[name].kv_cache = [kv_caches[name]]
        if bug == "what the runner has is thrown away" and isinstance(runner_kv_caches, list):
            runner_kv_caches.clear()
        is_list = isinstance(runner_kv_caches, list)
        runner = [*runner_kv_caches] if is_list else runner_kv_caches
        REAL_BIND(kv_caches, forward_context, runner, num_attn_module)
        indices = {name: fast.extract_layer_index(name, num_attn_module) for name in kv_caches}
        names = sorted(kv_caches, key=lambda name: indices[name])
        if bug == "equal indices by name":
            names = sorted(kv_caches, key=lambda name: (indices[name], name))
        if bug == "sorted as text":
            names = sorted(kv_caches, key=lambda name: str(indices[name]))
        if bug == "in the order of the caches":
            names = list(kv_caches)
        if bug == "in the order of the layers":
            names = sorted(
                (name for name in forward_context if name in kv_caches),
                key=lambda name: indices[name],
            )
        if bug == "one cache for an index":
            names = list({indices[name]: name for name in names}.values())
        runner_kv_caches.extend(kv_caches[name] for name in names)
        for name, cache in kv_caches.items():
            layer = forward_context[name]
            if bug == "the cache itself":
                layer.kv_cache = cache
            elif bug == "a list of states is the list":
                layer.kv_cache = cache if isinstance(cache, list) else [cache]
        if bug == "layers without a cache lose theirs":
            for name, layer in forward_context.items():
                if name not in kv_caches:
                    layer.kv_cache = []

    return bind_kv_cache


def _make_initialize(bug: str | None) -> Callable[..., None]:
    def initialize(
        shared_kv_cache_layers: Any,  # noqa: ANN401  # any
        kv_cache_groups: Any,  # noqa: ANN401  # any
        kv_caches: Any,  # noqa: ANN401  # any
    ) -> None:
        pairs = shared_kv_cache_layers
        if bug == "a chain is followed" and isinstance(pairs, dict):
            while any(target in pairs and target != pairs[target] for target in pairs.values()):
                pairs = {layer: pairs.get(target, target) for layer, target in pairs.items()}
        if bug == "one that is missing is left out" and isinstance(kv_caches, dict):
            pairs = {k: v for k, v in pairs.items() if v in kv_caches} if pairs else pairs
        before = dict(kv_caches) if isinstance(kv_caches, dict) else {}
        REAL_INITIALIZE(pairs, kv_cache_groups, kv_caches)
        for layer, target in pairs.items():
            if bug == "a cache of its own is kept":
                kv_caches[layer] = before.get(layer, kv_caches[target])
            if bug == "a copy of the cache":
                kv_caches[layer] = kv_caches[target].clone()
            home = next(group for group in kv_cache_groups if target in group.layer_names)
            if bug == "added again":
                home.layer_names.append(layer)
            if bug == "before its target":
                home.layer_names.remove(layer)
                home.layer_names.insert(home.layer_names.index(target), layer)

    initialize.__name__ = "initialize_kv_cache_for_kv_sharing"
    return initialize


def _make_add(bug: str | None) -> Callable[..., None]:
    def add(
        shared_kv_cache_layers: Any,  # noqa: ANN401  # any
        kv_cache_groups: Any,  # noqa: ANN401  # any
        runner_only_attn_layers: Any = None,  # noqa: ANN401  # any
    ) -> None:
        pairs, known = shared_kv_cache_layers, runner_only_attn_layers
        grouped = [name for group in kv_cache_groups for name in group.layer_names]
        if bug == "an empty set is none":
            REAL_ADD(pairs, kv_cache_groups, known or None)
        elif bug == "an empty set passes for any that is empty":
            REAL_ADD(pairs, kv_cache_groups, known or None)
            if isinstance(known, set):
                known.update(pairs)
        else:
            REAL_ADD(pairs, kv_cache_groups, known)
        if bug == "only those that are new" and known is not None:
            known.difference_update(layer for layer in pairs if layer in grouped)
        if bug == "targets too" and known is not None:
            known.update(pairs.values())
        if bug == "groups are sorted":
            for group in kv_cache_groups:
                group.layer_names.sort()
        if bug == "groups have new lists":
            for group in kv_cache_groups:
                group.layer_names = [*dict.fromkeys(group.layer_names), *pairs]

    add.__name__ = "add_kv_sharing_layers_to_kv_cache_groups"
    return add


KV_BINDING = [
    *rewritten(
        "extract_layer_index",
        _make_extract,
        answers={
            "isdigit": "True of '²', which `int` does not take.",
            "isdecimal": "True of '٣', which `int` takes.",
            "whatever int() takes": "'1_0', '-1' and ' 4' are integers too.",
            "attn is a whole component": "Right for `attn`, not for `self_attn`.",
            "one integer is multiplied too": "Self attention moves behind the others.",
            "the module is multiplied": "Unique all the same, and another order.",
        },
        refusals={"three integers pass": "The third is forgotten."},
    ),
    *rewritten(
        "bind_kv_cache",
        _make_bind,
        answers={
            "equal indices by name": "`sorted` of pairs: cross attention before self attention.",
            "sorted as text": "10 before 9.",
            "in the order of the caches": "Mostly the order of the layers.",
            "in the order of the layers": "The model's, not the cache's.",
            "one cache for an index": "A dict by index: cross attention is lost.",
            "the cache itself": "Worked until virtual engines came.",
            "a list of states is the list": "A list already, but of another kind.",
            "layers without a cache lose theirs": "MoE layers have such an attribute too.",
        },
        refusals={
            "bound one by one": "The first layers are bound before the last is missed.",
            "bound until a layer refuses": "What cannot be checked is not taken back.",
            "what the runner has is thrown away": "Binding twice goes unseen.",
        },
    ),
    *rewritten(
        "initialize_kv_cache_for_kv_sharing",
        _make_initialize,
        answers={
            "a cache of its own is kept": "`setdefault`: it reads what nobody writes.",
            "a copy of the cache": "Right until the next step.",
            "added again": "`append` without a look: twice in its group.",
            "before its target": "The group's first layer is no longer its first.",
        },
        refusals={
            "a chain is followed": "Kind, but the target in the middle has no cache.",
            "one that is missing is left out": "It has no cache, and nobody says so.",
        },
    ),
    *rewritten(
        "add_kv_sharing_layers_to_kv_cache_groups",
        _make_add,
        answers={
            "an empty set is none": "`if runner_only_attn_layers`: the first call adds nothing.",
            "only those that are new": "In its group already, but the runner must know.",
            "targets too": "Targets are the scheduler's as well.",
            "groups are sorted": "The first layer decides the backend.",
            "groups have new lists": "Every sharing layer in every group.",
        },
        refusals={
            "an empty set passes for any that is empty": "A list, and nobody's set is filled."
        },
    ),
]

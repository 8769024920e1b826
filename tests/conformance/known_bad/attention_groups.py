"""Groups of layers and their builders, as one writes them in a hurry."""

# ruff: noqa: ANN401  # engines' own objects

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fast
from fast._checks import check_int
from known_bad.entries import rewritten

REAL_GROUP = fast.AttentionGroup
REAL_GET = REAL_GROUP.get_metadata_builder


def _make_create(bug: str | None) -> Any:
    def create(
        backend: Any,
        layer_names: Any,
        kv_cache_spec: Any,
        vllm_config: Any,
        device: Any,
        num_metadata_builders: Any = 2 if bug == "two builders by default" else 1,
    ) -> Any:
        if bug == "no builders pass" and num_metadata_builders == 0:
            return fast.AttentionGroup(backend, [], layer_names, kv_cache_spec)
        number = check_int("num_metadata_builders", num_metadata_builders)
        given = [kv_cache_spec, layer_names, vllm_config, device]
        if bug == "names before the spec":
            given[:2] = given[1::-1]
        if bug == "each builder has names of its own":
            given[1] = list(layer_names)
        builder = backend.get_builder_cls()
        builders = [builder(*given) for _ in range(number)]
        if bug == "one builder for all micro-batches":
            builders = builders[:1] * number
        if bug == "the builders are a tuple":
            builders = tuple(builders)  # type: ignore[assignment]
        if bug == "the group's backend is a copy":
            backend = type(backend.__name__, (backend,), {})
        return fast.AttentionGroup(backend, builders, layer_names, kv_cache_spec)

    return staticmethod(create)


def _make_get(bug: str | None) -> Callable[..., Any]:
    def get_metadata_builder(
        self: Any, ubatch_id: Any = -1 if bug == "the last by default" else 0
    ) -> Any:
        if bug in {"a negative number counts from the end", "the last by default"} and isinstance(
            ubatch_id, int
        ):
            return self.metadata_builders[ubatch_id]
        if bug == "too great a number is the last" and type(ubatch_id) is int:
            ubatch_id = min(ubatch_id, len(self.metadata_builders) - 1)
        builder = REAL_GET(self, ubatch_id)
        return self.metadata_builders[0] if bug == "always the first" else builder

    return get_metadata_builder


def _make_group(bug: str | None) -> type:
    if bug == "it compares by identity":
        return type(
            "AttentionGroup", (REAL_GROUP,), {"__eq__": object.__eq__, "__hash__": object.__hash__}
        )
    return type("AttentionGroup", (REAL_GROUP,), {})


ATTENTION_GROUPS = [
    *rewritten(
        "AttentionGroup.create_with_metadata_builders",
        _make_create,
        answers={
            "two builders by default": "The second is never asked for.",
            "names before the spec": "Engines' builders store both.",
            "each builder has names of its own": "Layers that join the group later are not seen.",
            "the builders are a tuple": "Indexed alike.",
            "one builder for all micro-batches": "Right until two of them are in flight.",
        },
        refusals={"no builders pass": "A group that cannot build."},
        laws={
            "test_each_micro_batch_has_a_builder": {
                "the group's backend is a copy": "Another class of the same name.",
            }
        },
    ),
    *rewritten(
        "AttentionGroup",
        _make_group,
        laws={
            "test_a_group_is_a_plain_dataclass": {
                "it compares by identity": "Nobody compares groups, but tests.",
            }
        },
    ),
    *rewritten(
        "AttentionGroup.get_metadata_builder",
        _make_get,
        answers={
            "always the first": "Right without micro-batches.",
            "the last by default": "Likewise.",
        },
        refusals={
            "a negative number counts from the end": "Python's own; -1 is no micro-batch.",
            "too great a number is the last": "Two micro-batches share a builder's buffers.",
        },
    ),
]

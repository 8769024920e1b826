"""KV sharing: layers get the caches and groups of their targets, all of them or none."""

from __future__ import annotations

from typing import Any

import pytest


def make_groups(twin: Any, *groups: list[str]) -> Any:
    """Return groups of layers, all of one spec, so that only names tell them apart."""
    return [twin.KVCacheGroupSpec(list(names), twin.KVCacheSpec(16)) for names in groups]


def names_of(groups: list[Any]) -> list[list[str]]:
    return [group.layer_names for group in groups]


SHARING = {"d": "b", "c": "a", "e": "b"}


def test_caches_and_groups(twin: Any) -> None:
    groups = make_groups(twin, ["a"], ["x", "b"])
    caches: dict[str, Any] = {"a": object(), "b": [object()], "c": "its own before"}
    a, b = caches["a"], caches["b"]
    twin.initialize_kv_cache_for_kv_sharing(SHARING, groups, caches)
    assert [["a", "c"], ["x", "b", "d", "e"]] == names_of(groups)
    assert ["a", "b", "c", "d", "e"] == list(caches)
    assert caches["a"] is caches["c"] is a
    assert caches["b"] is caches["d"] is caches["e"] is b


@pytest.mark.parametrize("given", [True, False])
def test_groups_alone(twin: Any, given: bool) -> None:
    groups = make_groups(twin, ["a"], ["x", "b"])
    runner_only = {"other"} if given else None
    twin.add_kv_sharing_layers_to_kv_cache_groups(SHARING, groups, runner_only)
    assert [["a", "c"], ["x", "b", "d", "e"]] == names_of(groups)
    assert ({"other", "c", "d", "e"} if given else None) == runner_only


def test_twice_is_once(twin: Any) -> None:
    groups = make_groups(twin, ["a", "c"], ["b", "e"])
    caches = {"a": "cache a", "b": "cache b"}
    runner_only: set[str] = set()
    for _ in range(2):
        twin.add_kv_sharing_layers_to_kv_cache_groups(SHARING, groups, runner_only)
        twin.initialize_kv_cache_for_kv_sharing(SHARING, groups, caches)
        assert [["a", "c"], ["b", "e", "d"]] == names_of(groups)
        assert {"c", "d", "e"} == runner_only
        assert {name: f"cache {SHARING.get(name, name)}" for name in "abcde"} == caches

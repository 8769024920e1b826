"""Sharing: layers get their targets' caches and places, all of them or none."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from reference import (
    KVCacheGroupSpec,
    KVCacheSpec,
    add_kv_sharing_layers_to_kv_cache_groups,
    initialize_kv_cache_for_kv_sharing,
)


def make_groups(*groups: list[str]) -> list[KVCacheGroupSpec]:
    """Return groups of layers, all of one spec, so that only names tell them apart."""
    return [KVCacheGroupSpec(list(names), KVCacheSpec(16)) for names in groups]


def names_of(groups: list[KVCacheGroupSpec]) -> list[list[str]]:
    """Return the layers of each group."""
    return [group.layer_names for group in groups]


SHARING = {"d": "b", "c": "a", "e": "b"}


def test_caches_and_groups() -> None:
    """Each sharing layer gets its target's very cache, and a place behind its group's layers."""
    groups = make_groups(["a"], ["x", "b"])
    caches: dict[str, Any] = {"a": object(), "b": [object()], "c": "its own before"}
    a, b = caches["a"], caches["b"]
    initialize_kv_cache_for_kv_sharing(SHARING, groups, caches)
    assert [["a", "c"], ["x", "b", "d", "e"]] == names_of(groups)
    assert ["a", "b", "c", "d", "e"] == list(caches)
    assert caches["a"] is caches["c"] is a
    assert caches["b"] is caches["d"] is caches["e"] is b


@pytest.mark.parametrize("given", [True, False])
def test_groups_alone(given: bool) -> None:
    """The group half changes the groups, and a set where one is given."""
    groups = make_groups(["a"], ["x", "b"])
    runner_only = {"other"} if given else None
    add_kv_sharing_layers_to_kv_cache_groups(SHARING, groups, runner_only)
    assert [["a", "c"], ["x", "b", "d", "e"]] == names_of(groups)
    assert ({"other", "c", "d", "e"} if given else None) == runner_only


def test_twice_is_once() -> None:
    """A layer that stands in its target's group already is not added again, but is remembered."""
    groups = make_groups(["a", "c"], ["b", "e"])
    caches = {"a": "cache a", "b": "cache b"}
    runner_only: set[str] = set()
    for _ in range(2):
        add_kv_sharing_layers_to_kv_cache_groups(SHARING, groups, runner_only)
        initialize_kv_cache_for_kv_sharing(SHARING, groups, caches)
        assert [["a", "c"], ["b", "e", "d"]] == names_of(groups)
        assert {"c", "d", "e"} == runner_only
        assert {name: f"cache {SHARING.get(name, name)}" for name in "abcde"} == caches


def test_nothing_shared() -> None:
    """No sharing layers change nothing."""
    groups, caches = make_groups(["a"]), {"a": 1}
    initialize_kv_cache_for_kv_sharing({}, groups, caches)
    add_kv_sharing_layers_to_kv_cache_groups({}, groups)
    assert [["a"]] == names_of(groups)
    assert {"a": 1} == caches


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"shared_kv_cache_layers": {"c": "a", "d": "y"}},
            KeyError,
            "shared_kv_cache_layers['d'] is 'y', which kv_cache_groups lack",
        ),
        (
            {"shared_kv_cache_layers": {"c": "a", "d": "c"}},
            KeyError,
            (
                "shared_kv_cache_layers['d'] is 'c', which shares a cache itself, "
                "expected a layer with a cache of its own"
            ),
        ),
        (
            {"shared_kv_cache_layers": {"c": "a", "a": "c"}},
            KeyError,
            (
                "shared_kv_cache_layers['c'] is 'a', which shares a cache itself, "
                "expected a layer with a cache of its own"
            ),
        ),
        (
            {"shared_kv_cache_layers": {"c": "a", "b": "b"}},
            ValueError,
            ("shared_kv_cache_layers['b'] is 'b', the layer itself, expected another"),
        ),
        (
            {"shared_kv_cache_layers": {"c": "a", "x": "a"}},
            ValueError,
            (
                "shared_kv_cache_layers['x'] is 'a', which is not in kv_cache_groups[1], "
                "the group of 'x'"
            ),
        ),
        (
            {"shared_kv_cache_layers": [("c", "a")]},
            TypeError,
            "shared_kv_cache_layers must be a dict, got list",
        ),
        (
            {"shared_kv_cache_layers": {"c": "a", 3: "a"}},
            TypeError,
            "a layer of shared_kv_cache_layers must be a str, got 3 of int",
        ),
        (
            {"shared_kv_cache_layers": {"c": "a", "d": None}},
            TypeError,
            "shared_kv_cache_layers['d'] must be a str, got None of NoneType",
        ),
        (
            {"kv_cache_groups": tuple(make_groups(["a"], ["b"]))},
            TypeError,
            "kv_cache_groups must be a list, got tuple",
        ),
        (
            {"kv_cache_groups": [KVCacheGroupSpec(("a", "b"), KVCacheSpec(16))]},
            TypeError,
            "kv_cache_groups[0].layer_names must be a list, got tuple",
        ),
    ],
)
def test_refusals(change: dict[str, Any], error: type[Exception], message: str) -> None:
    """Each precondition broken in turn is refused by both, and nothing has changed."""
    arguments: dict[str, Any] = {
        "shared_kv_cache_layers": SHARING,
        "kv_cache_groups": make_groups(["a"], ["x", "b"]),
        **change,
    }
    own_arguments: dict[Any, dict[str, Any]] = {
        initialize_kv_cache_for_kv_sharing: {"kv_caches": dict.fromkeys("abcdexy", 1)},
        add_kv_sharing_layers_to_kv_cache_groups: {"runner_only_attn_layers": {"z"}},
    }
    for function, own in own_arguments.items():
        before = copy.deepcopy((arguments, own))
        with pytest.raises(error) as caught:
            function(**arguments, **own)
        assert (message,) == caught.value.args
        assert before == (arguments, own)


def test_refusals_of_caches() -> None:
    """A target without a cache, and caches that are no dict, are refused; nothing has changed."""
    groups, caches = make_groups(["a"], ["x", "b"]), {"b": 1}
    with pytest.raises(KeyError, match=r"kv_caches lacks 'a', whose cache layer 'c' shares"):
        initialize_kv_cache_for_kv_sharing(SHARING, groups, caches)
    assert [["a"], ["x", "b"]] == names_of(groups)
    assert {"b": 1} == caches
    with pytest.raises(TypeError, match=r"^kv_caches must be a dict, got list$"):
        initialize_kv_cache_for_kv_sharing(SHARING, groups, [1])


@pytest.mark.parametrize("runner_only", [[], "z", {}, frozenset()])
def test_refusals_of_sets(runner_only: object) -> None:
    """What is to be added to must be a set; nothing has changed."""
    groups = make_groups(["a"], ["x", "b"])
    with pytest.raises(TypeError, match=r"^runner_only_attn_layers must be a set or None, got "):
        add_kv_sharing_layers_to_kv_cache_groups(SHARING, groups, runner_only)
    assert [["a"], ["x", "b"]] == names_of(groups)

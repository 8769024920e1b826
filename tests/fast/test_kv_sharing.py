from typing import Any

import pytest
import torch

import fast

FULL = fast.FullAttentionSpec(4, 5, 6, torch.float16)
MAMBA = fast.MambaSpec(4, ((8,),), (torch.float32,))


def make_groups() -> list[fast.KVCacheGroupSpec]:
    """Make two groups of two layers."""
    return [fast.KVCacheGroupSpec(["a", "b"], FULL), fast.KVCacheGroupSpec(["c", "d"], MAMBA)]


def test_sharing_layers_get_their_targets_caches() -> None:
    """The caches are the targets' own objects, also where a layer had one; order is the dict's."""
    groups, caches = make_groups(), {name: object() for name in ("a", "b", "c", "d", "z")}
    shared = {"y": "c", "z": "a", "x": "a"}
    for _ in range(2):
        fast.initialize_kv_cache_for_kv_sharing(shared, groups, caches)
        assert [["a", "b", "z", "x"], ["c", "d", "y"]] == [group.layer_names for group in groups]
        assert all(caches[layer] is caches[target] for layer, target in shared.items())
    assert ["a", "b", "c", "d", "z", "y", "x"] == list(caches)


def test_sharing_layers_join_groups() -> None:
    """The group half adds the layers to the runner's set too, also those that stand there."""
    groups, runner_only = make_groups(), {"q"}
    for _ in range(2):
        fast.add_kv_sharing_layers_to_kv_cache_groups({"x": "a", "d": "c"}, groups, runner_only)
        assert [["a", "b", "x"], ["c", "d"]] == [group.layer_names for group in groups]
        assert {"q", "x", "d"} == runner_only
    fast.add_kv_sharing_layers_to_kv_cache_groups({"y": "d"}, groups)
    assert ["c", "d", "y"] == groups[1].layer_names


SHARING_FAULTS = [
    ({"x": "a", "y": "nobody"}, KeyError, r"shared_kv_cache_layers\['y'\] is 'nobody', which k"),
    ({"x": "a", "y": "x"}, KeyError, r"shared_kv_cache_layers\['y'\] is 'x', which shares"),
    ({"x": "a", "b": "a", "y": "b"}, KeyError, "'b', which shares a cache itself"),
    ({"x": "a", "a": "a"}, ValueError, "layer 'a' share from itself|'a', which shares"),
    ({"y": "y"}, ValueError, r"^shared_kv_cache_layers\['y'\] is 'y', the layer itself, expected"),
    ({"x": "a", "c": "b"}, ValueError, r"^shared_kv_cache_layers\['c'\] is 'b', which is not in "),
    ({"x": "a", "y": 3}, TypeError, r"shared_kv_cache_layers\['y'\] must be a str"),
    ({"x": "a", 3: "a"}, TypeError, "a layer of shared_kv_cache_layers must be a str"),
    ([("x", "a")], TypeError, "shared_kv_cache_layers must be a dict"),
]


@pytest.mark.parametrize(("shared", "error", "message"), SHARING_FAULTS)
def test_sharing_is_all_or_nothing(
    shared: Any,  # noqa: ANN401  (wrong ones too)
    error: type[Exception],
    message: str,
) -> None:
    """After an error neither groups nor caches nor the set have changed."""
    if shared == {"x": "a", "a": "a"}:
        error = (KeyError, ValueError)  # two faults at once: either class
    groups, caches, runner_only = make_groups(), dict.fromkeys("abcd", "cache"), set()
    with pytest.raises(error, match=message):
        fast.initialize_kv_cache_for_kv_sharing(shared, groups, caches)
    with pytest.raises(error, match=message):
        fast.add_kv_sharing_layers_to_kv_cache_groups(shared, groups, runner_only)
    assert make_groups() == groups
    assert dict.fromkeys("abcd", "cache") == caches
    assert set() == runner_only


def test_targets_have_caches() -> None:
    """A target in a group but without a cache is refused, and nothing has changed."""
    groups, caches = make_groups(), {"a": 1}
    with pytest.raises(KeyError, match="kv_caches lacks 'b', whose cache layer 'y' shares"):
        fast.initialize_kv_cache_for_kv_sharing({"x": "a", "y": "b"}, groups, caches)
    assert make_groups() == groups
    assert {"a": 1} == caches


def test_sharing_refuses_types() -> None:
    """Groups are a list of lists, caches a dict, the runner's layers a set."""
    with pytest.raises(TypeError, match="kv_cache_groups must be a list"):
        fast.add_kv_sharing_layers_to_kv_cache_groups({}, tuple(make_groups()))
    with pytest.raises(TypeError, match="kv_caches must be a dict"):
        fast.initialize_kv_cache_for_kv_sharing({}, [], None)
    with pytest.raises(TypeError, match="runner_only_attn_layers must be a set or None"):
        fast.add_kv_sharing_layers_to_kv_cache_groups({}, [], [])
    groups = [fast.KVCacheGroupSpec(("a",), FULL)]
    with pytest.raises(TypeError, match=r"kv_cache_groups\[0\].layer_names must be a list"):
        fast.add_kv_sharing_layers_to_kv_cache_groups({"x": "a"}, groups)


def test_a_layer_in_two_groups_does_not_share() -> None:
    """A sharing layer in its target's group and in another is refused: it stands in another."""
    groups = [fast.KVCacheGroupSpec(["a", "x"], FULL), fast.KVCacheGroupSpec(["c", "x"], MAMBA)]
    with pytest.raises(ValueError, match=r"^shared_kv_cache_layers\['x'\] is 'a', which is not i"):
        fast.add_kv_sharing_layers_to_kv_cache_groups({"x": "a"}, groups)
    assert [["a", "x"], ["c", "x"]] == [group.layer_names for group in groups]

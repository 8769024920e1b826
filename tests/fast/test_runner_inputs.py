from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fast

META = torch.zeros(9, dtype=torch.int32, device="meta")
STARTS = torch.tensor([0, 2, 3, 3], dtype=torch.int32)


def resized(tensor: torch.Tensor, num_bytes: int) -> torch.Tensor:
    """Return a tensor whose storage was resized."""
    tensor.untyped_storage().resize_(num_bytes)
    return tensor


BAD_BUILDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_reqs": True}, TypeError, "num_reqs must be an int"),
    ({"num_tokens": 4.0}, TypeError, "num_tokens must be an int"),
    ({"num_reqs": -1}, ValueError, "num_reqs is -1, expected at least 0"),
    ({"num_tokens": -1}, ValueError, "num_tokens is -1, expected at least 0"),
    ({"attn_metadata_builders": ()}, TypeError, "attn_metadata_builders must be a list"),
    (
        {"attn_metadata_builders": [None]},
        ValueError,
        "attn_metadata_builders has 1 entries, expected 2, one for each KV cache group",
    ),
    ({"kv_cache_config": None}, AttributeError, "kv_cache_groups"),
    (
        {"kv_cache_config": SimpleNamespace(kv_cache_groups=None)},
        TypeError,
        "kv_cache_groups must be a list",
    ),
    ({"query_start_loc": STARTS}, AttributeError, "gpu"),
    ({"seq_lens": SimpleNamespace(cpu=STARTS)}, AttributeError, "gpu"),
    (
        {"query_start_loc": SimpleNamespace(cpu=STARTS[:3], gpu=STARTS)},
        ValueError,
        r"query_start_loc\.cpu has 3 entries, expected at least 4",
    ),
    (
        {"query_start_loc": SimpleNamespace(cpu=STARTS, gpu=STARTS[:3])},
        ValueError,
        r"query_start_loc\.gpu has 3 entries, expected at least 4",
    ),
    (
        {"seq_lens": SimpleNamespace(cpu=STARTS, gpu=STARTS.long())},
        TypeError,
        r"^seq_lens\.gpu must be int32, got int64",
    ),
    (
        {"seq_lens": SimpleNamespace(cpu=STARTS.view(4, 1), gpu=STARTS)},
        ValueError,
        r"^seq_lens\.cpu must have 1 dimension, got shape \(4, 1\)",
    ),
    ({"seq_lens": SimpleNamespace(cpu=META, gpu=STARTS)}, ValueError, "must be on the CPU"),
    (
        {"seq_lens": SimpleNamespace(cpu=STARTS, gpu=META)},
        ValueError,
        r"seq_lens\.gpu is on meta, expected cpu",
    ),
    (
        {"num_computed_tokens_cpu": STARTS[:2]},
        ValueError,
        "num_computed_tokens_cpu has 2 entries, expected at least 3",
    ),
    ({"num_computed_tokens_cpu": META}, ValueError, "num_computed_tokens_cpu must be on the CPU"),
    ({"num_computed_tokens_cpu": [4, 0, 0]}, TypeError, "^num_computed_tokens_cpu must be an ar"),
    ({"block_tables": torch.zeros(2, 3, 4).int()}, TypeError, "^block_tables must be a list or "),
    ({"block_tables": []}, ValueError, "block_tables has 0 entries, expected 2, one for each KV"),
    (
        {"block_tables": [torch.zeros(3, 1).int(), torch.zeros(2, 1).int()]},
        ValueError,
        r"block_tables\[1\] has 2 entries, expected at least 3",
    ),
    (
        {"block_tables": [torch.zeros(3, 1).int(), torch.zeros(3, 1)]},
        TypeError,
        r"^block_tables\[1\] must be int32, got float32",
    ),
    (
        {"block_tables": [torch.zeros(3, 1).int(), torch.zeros(3, 1).int().to("meta")]},
        ValueError,
        r"block_tables\[1\] is on meta, expected cpu",
    ),
    ({"block_tables": [None, None]}, TypeError, r"^block_tables\[0\] must be an array, got NoneT"),
    (
        {"slot_mappings": [torch.arange(4), torch.arange(3)]},
        ValueError,
        r"slot_mappings\[1\] has 3 entries, expected at least 4",
    ),
    ({"slot_mappings": [torch.arange(4)] * 3}, ValueError, "slot_mappings has 3 entries, expect"),
    ({"slot_mappings": torch.zeros(3, 4).long()}, ValueError, "slot_mappings has 3 entries, expec"),
    ({"slot_mappings": torch.zeros(4).long()}, ValueError, "slot_mappings must have 2 dimensions"),
    ({"slot_mappings": torch.zeros(2, 4).int()}, TypeError, "^slot_mappings must be int64, got "),
    (
        {"slot_mappings": resized(torch.zeros(2, 4).long(), 0)},
        ValueError,
        "^slot_mappings has no memory",
    ),
    (
        {"slot_mappings": resized(torch.zeros(2, 4).long(), 16)},
        ValueError,
        "^slot_mappings reaches past the 16 bytes of its storage",
    ),
    (
        {"num_computed_tokens_cpu": resized(STARTS.repeat(3), 4)},
        ValueError,
        "^num_computed_tokens_cpu reaches past the 4 bytes of its storage",
    ),
    ({"slot_mappings": iter([])}, TypeError, "^slot_mappings must be a list or tuple, got objec"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_BUILDS)
def test_what_a_runner_hands_over(
    changes: dict[str, Any], error: type[Exception], message: str, step: dict[str, Any]
) -> None:
    """What costs O(1) to check is refused in any mode, before any builder is called."""
    with fast.checks(enabled=False), pytest.raises(error, match=message):
        fast.build_attn_metadata(**{**step, **changes})
    assert [[], []] == [builder.given for builder in step["attn_metadata_builders"]]


@pytest.mark.parametrize("enabled", [False, True])
def test_layer_names_that_cannot_be_keys(enabled: bool, step: dict[str, Any]) -> None:
    """A name that is no str is refused by its place, at the latest when it is to be a key."""
    groups = [SimpleNamespace(layer_names=["a"]), SimpleNamespace(layer_names=["b", ["c"]])]
    config = SimpleNamespace(kv_cache_groups=groups)
    message = r"^kv_cache_groups\[1\]\.layer_names\[1\] must be a str, got list$"
    with fast.checks(enabled=enabled), pytest.raises(TypeError, match=message):
        fast.build_attn_metadata(**{**step, "kv_cache_config": config})

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast

META = torch.zeros(9, dtype=torch.int32, device="meta")
STARTS = torch.tensor([0, 2, 3, 3], dtype=torch.int32)


def resized(tensor: torch.Tensor, num_bytes: int) -> torch.Tensor:
    tensor.untyped_storage().resize_(num_bytes)
    return tensor


BAD_BUILDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"query_start_loc": STARTS}, AttributeError, "gpu"),
    ({"seq_lens": SimpleNamespace(cpu=STARTS)}, AttributeError, "gpu"),
    (
        {"seq_lens": SimpleNamespace(cpu=STARTS, gpu=META)},
        ValueError,
        r"seq_lens\.gpu is on meta, expected cpu",
    ),
    (
        {"block_tables": [torch.zeros(3, 1).int(), torch.zeros(3, 1).int().to("meta")]},
        ValueError,
        r"block_tables\[1\] is on meta, expected cpu",
    ),
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
    (  # with a number of NumPy the step is not the usual one
        {"num_tokens": np.int64(3), "slot_mappings": resized(torch.zeros(2, 4).long(), 16)},
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
    with fast.checks(enabled=False), pytest.raises(error, match=message):
        fast.build_attn_metadata(**{**step, **changes})
    assert [[], []] == [builder.given for builder in step["attn_metadata_builders"]]


def test_layer_names_that_cannot_be_keys(step: dict[str, Any]) -> None:
    groups = [SimpleNamespace(layer_names=["a"]), SimpleNamespace(layer_names=["b", ["c"]])]
    config = SimpleNamespace(kv_cache_groups=groups)
    message = r"^kv_cache_groups\[1\]\.layer_names\[1\] must be a str, got list$"
    with fast.checks(enabled=False), pytest.raises(TypeError, match=message):
        fast.build_attn_metadata(**{**step, "kv_cache_config": config})

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fast
from fast import kv_cache
from tests.fast.conftest import FULL, make_config


class Backend:
    """A backend whose shape is (K/V, blocks, tokens, heads, head size)."""

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, *sizes: int) -> tuple[int, ...]:
        return (2, num_blocks, *sizes)


def test_allocates_on_a_device() -> None:
    raws = fast._allocate_kv_cache(make_config((["a"], FULL), tensors=[(7, ["a"])]), "meta")
    assert torch.device("meta") == raws["a"].device


def test_allocation_outlives_inference_mode() -> None:
    config = make_config((["a"], FULL), tensors=[(480, ["a"])])
    with torch.inference_mode():
        raws = fast._allocate_kv_cache(config, "cpu")
        views = fast._reshape_kv_cache(config, raws, {"a": Backend})
    views["a"][:] = 1
    assert raws["a"].any()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"runner_kv_caches": [1]}, ValueError),
        ({"runner_kv_caches": None}, TypeError),
        ({"forward_context": {}}, KeyError),
        ({"attn_backends": {}}, KeyError),
        ({"num_attn_module": 0}, ValueError),
        ({"kernel_block_sizes": [3]}, ValueError),
        ({"device": "gpu"}, ValueError),
    ],
)
def test_init_is_all_or_nothing(
    changes: dict[str, Any], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, runner = SimpleNamespace(kv_cache="old"), []
    arguments = {
        "runner_kv_caches": runner,
        "forward_context": {"0.attn": layer},
        "kv_cache_config": make_config((["0.attn"], FULL), tensors=[(480, ["0.attn"])]),
        "attn_backends": {"0.attn": Backend},
        "device": "cpu",
        **changes,
    }
    allocated: list[object] = []
    allocate = kv_cache._allocate_kv_cache
    monkeypatch.setattr(
        kv_cache, "_allocate_kv_cache", lambda *args: allocated.append(args) or allocate(*args)
    )
    with pytest.raises(error):
        fast.init_kv_cache(**arguments)
    assert "old" == layer.kv_cache
    assert [] == runner
    if set(changes) <= {"runner_kv_caches", "forward_context", "num_attn_module"}:
        assert [] == allocated

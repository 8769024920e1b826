import numpy as np
import pytest
import torch

import fast
from tests.fast.conftest import FULL, make_config


class Backend:
    """A backend whose shape is (K/V, blocks, tokens, heads, head size)."""

    @staticmethod
    def get_kv_cache_shape(*sizes: int) -> tuple[int, ...]:
        return (2, *sizes)


def make_raw(num_bytes: int) -> torch.Tensor:
    return torch.zeros(num_bytes, dtype=torch.int8)


def place_of(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Return the place of a tensor: its storage, its first byte there and its device."""
    first = tensor.storage_offset() * tensor.dtype.itemsize
    return tensor.untyped_storage().data_ptr(), first, tensor.get_device()


def test_views_of_a_part_of_a_storage() -> None:
    pool = make_raw(3 * 480)
    raws = {"a": pool[:480], "b": pool[480:1440]}
    views = fast._reshape_kv_cache(
        make_config((["a", "b"], FULL)), raws, dict.fromkeys("ab", Backend)
    )
    assert place_of(raws["b"]) == place_of(views["b"])
    views["b"].fill_(1.5)
    assert not raws["a"].any()
    assert (raws["b"].view(torch.float16) == 1.5).all()


def test_refuses_misaligned_memory() -> None:
    config = make_config((["a"], FULL))
    with pytest.raises(ValueError, match=r"^kv_cache_raw_tensors\['a'\] is not aligned for float"):
        fast._reshape_kv_cache(config, {"a": make_raw(481)[1:]}, {"a": Backend})
    odd = torch.from_numpy(np.zeros(481, np.int8)[1:])
    with pytest.raises(ValueError, match=r"is not aligned for float16, expected"):
        fast._reshape_kv_cache(config, {"a": odd}, {"a": Backend})


@pytest.mark.parametrize("raw", [make_raw(9)[::3][:0], make_raw(9)[1:1]])
def test_views_of_no_bytes(raw: torch.Tensor) -> None:
    cache = fast._reshape_kv_cache(make_config((["a"], FULL)), {"a": raw}, {"a": Backend})["a"]
    assert (2, 0, 4, 5, 6) == tuple(cache.shape)


def test_a_lazy_negation_is_refused() -> None:
    raw = torch._neg_view(torch.zeros(480, dtype=torch.int8))
    with pytest.raises(ValueError, match=r"kv_cache_raw_tensors\['a'\] is a lazy negation"):
        fast._reshape_kv_cache(make_config((["a"], FULL)), {"a": raw}, {"a": Backend})


def test_memory_without_storage_is_refused() -> None:
    raw = make_raw(480)
    raw.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"^kv_cache_raw_tensors\['a'\] has no memory"):
        fast._reshape_kv_cache(make_config((["a"], FULL)), {"a": raw}, {"a": Backend})


def test_views_on_another_device() -> None:
    raws = {"a": torch.zeros(480, dtype=torch.int8, device="meta")}
    cache = fast._reshape_kv_cache(make_config((["a"], FULL)), raws, {"a": Backend})["a"]
    assert (torch.device("meta"), (2, 1, 4, 5, 6)) == (cache.device, tuple(cache.shape))

"""Shared by the tests of `fast`: a batch written as lists, and kernels without a GPU."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fast
from conformance.native import launch_natively
from conformance.native.launch import compile_native
from fast.kernels.cuda import KERNELS
from fast.launch import simulated_by


def int32(values: list[int] | list[list[int]]) -> torch.Tensor:
    """Return an int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)


def make_batch(
    query_lens: list[int], computed: list[int], **changes: object
) -> fast.CommonAttentionMetadata:
    """Make a batch of blocks of 2, in which no two requests share a block."""
    num_reqs = len(query_lens)
    starts = [sum(query_lens[:i]) for i in range(num_reqs + 1)]
    seq_lens = [c + q for c, q in zip(computed, query_lens, strict=True)]
    width = -(-max(seq_lens, default=0) // 2)
    blocks = torch.arange(num_reqs * width, dtype=torch.int32).view(num_reqs, width) + 1
    metadata = fast.CommonAttentionMetadata(
        query_start_loc=int32(starts),
        query_start_loc_cpu=int32(starts),
        seq_lens=int32(seq_lens),
        seq_lens_cpu=int32(seq_lens),
        num_computed_tokens_cpu=int32(computed),
        num_reqs=num_reqs,
        num_actual_tokens=starts[-1],
        max_query_len=max(query_lens, default=0),
        max_seq_len=max(seq_lens, default=0),
        block_table_tensor=blocks,
        slot_mapping=torch.arange(changes.get("num_actual_tokens", starts[-1])),
    )
    return dataclasses.replace(metadata, **changes)


@pytest.fixture(name="make_batch")
def make_batch_fixture() -> Callable[..., fast.CommonAttentionMetadata]:
    """Return the function that makes a batch of query lengths and computed tokens."""
    return make_batch


FULL = fast.FullAttentionSpec(block_size=4, num_kv_heads=5, head_size=6, dtype=torch.float16)


def make_config(
    *groups: tuple[list[str], object], tensors: list[tuple[int, list[str]]] | None = None
) -> fast.KVCacheConfig:
    """Make a KV cache of groups and tensors."""
    return fast.KVCacheConfig(
        num_blocks=99,
        kv_cache_tensors=[fast.KVCacheTensor(*tensor) for tensor in tensors or []],
        kv_cache_groups=[fast.KVCacheGroupSpec(*group) for group in groups],
    )


class Recorder:
    """A builder that records what it was given, and builds an object of its own."""

    def __init__(self) -> None:
        self.given: list[tuple[int, fast.CommonAttentionMetadata]] = []

    def build(
        self, common_prefix_len: int, common_attn_metadata: fast.CommonAttentionMetadata
    ) -> object:
        """Return a new object."""
        self.given.append((common_prefix_len, common_attn_metadata))
        return SimpleNamespace(group=common_attn_metadata.block_table_tensor.shape[1])


def make_buffer(values: list[int]) -> fast.CpuGpuBuffer:
    """Return an int32 buffer with two more entries, whose values do not matter."""
    made = fast.CpuGpuBuffer(len(values) + 2, dtype=torch.int32, device="cpu", pin_memory=False)
    made.np[:] = [*values, 77, 77]
    made.copy_to_gpu()
    return made


@pytest.fixture
def step() -> dict[str, Any]:
    """Return the arguments of `build_attn_metadata` for two groups and 3 requests, one padding."""
    groups = [SimpleNamespace(layer_names=["0", "2"]), SimpleNamespace(layer_names=["1"])]
    return {
        "attn_metadata_builders": [Recorder(), Recorder()],
        "num_reqs": 3,
        "num_tokens": 4,
        "query_start_loc": make_buffer([0, 2, 3, 3]),
        "seq_lens": make_buffer([6, 1, 0]),
        "num_computed_tokens_cpu": int32([4, 0, 0, 9]),
        "block_tables": [torch.zeros(3, 3).int(), torch.zeros(5, 2).int()],
        "slot_mappings": [torch.arange(4), torch.arange(9)],
        "kv_cache_config": SimpleNamespace(kv_cache_groups=groups),
    }


@pytest.fixture(scope="session")
def simulate() -> Callable[..., object]:
    """Return what runs kernels in place of a GPU, or skip the test without numba-cuda."""
    pytest.importorskip("numba_cuda", reason="kernels are compiled by numba-cuda (extra `test`)")
    for kernel in KERNELS:  # now, since test_interrupts.py interrupts every call
        compile_native(kernel)
    return launch_natively


@pytest.fixture(params=["host", "native"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test twice: on the host path, and on the device path with kernels run natively."""
    if request.param == "host":
        yield "host"
        return
    launch = functools.partial(request.getfixturevalue("simulate"), seed=3)
    with simulated_by(launch, threads=4):
        yield "native"


@pytest.fixture(autouse=True)
def one_thread_unchecked() -> Iterator[None]:
    """Keep torch from starting threads for small tensors, and checked mode off, as by default."""
    torch.set_num_threads(1)
    with fast.checks(enabled=False):
        yield

"""The configuration and what follows from it: memory to request, and sequence parallelism."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.examples.twins import Twin

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "given", "defaults"),
    [
        ("ModelConfig", {"max_model_len": 7}, ()),
        ("CacheConfig", {}, (16, 0.9, "none")),
        ("ParallelConfig", {}, (1, 1, 1)),
        ("SchedulerConfig", {"max_num_batched_tokens": 8, "max_num_seqs": 4}, (0, 0, True, False)),
        ("CompilationConfig", {}, ({}, {"enable_sp": False}, None, False, None)),
        ("PassConfig", {}, (False,)),
        ("SpeculativeConfig", {}, (None,)),
        ("VllmConfig", {}, (None,) * 6),
    ],
)
def test_defaults(twin: Twin, name, given, defaults) -> None:
    config = dataclasses.asdict(getattr(twin, name)(**given))
    assert (*given.values(), *defaults) == tuple(config.values())
    with pytest.raises(TypeError, match="positional argument"):
        getattr(twin, name)(1)


def request(twin: Twin, free: Any, total: Any, utilization: Any) -> Any:
    config = SimpleNamespace(gpu_memory_utilization=utilization)
    return twin.request_memory(twin.MemorySnapshot(free, total, "cuda:3"), config)


@pytest.mark.parametrize(
    ("free", "total", "utilization", "expected"),
    [
        # the utilization times all memory, rounded up, computed in float64
        (2**62, 1000, 0.9, 900),
        (2**62, 1001, 0.9, 901),
        (2**62, 10, 0.7, 7),
        (2**62, 80 * GIB, 1, 80 * GIB),
        (2**62, 80 * GIB, 0.9, 77_309_411_328),
        (2**62, 3, 1e-300, 1),
        (2**62, 0, 0.5, 0),
        (2**62, 100, np.float32(0.1), 11),  # 0.1 in float32 is a little more
        (2**62, np.int64(8), 0.5, 4),
        (2**62, 2**53 + 1, 1.0, 2**53),  # the nearest float64
        (900, 1000, 0.9, 900),  # all that is free is enough
    ],
)
def test_memory(twin: Twin, free, total, utilization, expected) -> None:
    requested = request(twin, free, total, utilization)
    assert (expected, int) == (requested, type(requested))


def test_too_little_memory(twin: Twin) -> None:
    assert 900 == twin.request_memory(twin.MemorySnapshot(900, 1000), twin.CacheConfig())
    with pytest.raises(ValueError, match=r"60\.00 GiB of 79\.50 GiB"):
        request(twin, 60 * GIB, int(79.5 * GIB), 0.9)
    with pytest.raises(ValueError, match="lower gpu_memory_utilization or free memory"):
        request(twin, 899, 1000, 0.9)


SPLIT = {"splitting_ops": ["attention"]}


@pytest.mark.parametrize(
    ("enable_sp", "ranks", "compilation", "num_input_tokens", "expected"),
    [
        (False, 4, {}, 8, False),
        (False, 4, {}, 7, False),  # off, so it need not be a multiple of the ranks
        (True, 1, {}, 7, False),
        (True, 4, {}, 8, True),
        (True, 4, {}, 0, True),
        (True, 4, {"splitting_ops": []}, 8, True),  # an empty list splits nothing
        (True, 4, {"splitting_ops": [], "compile_sizes": [8]}, 12, True),  # so sizes do not matter
        # a graph that is split is scattered for the sizes that it was compiled for alone
        (True, 4, SPLIT, 8, False),
        (True, 4, {"splitting_ops": ("attention",)}, 8, False),
        (True, 4, SPLIT | {"compile_sizes": []}, 8, False),
        (True, 4, SPLIT | {"compile_sizes": [4, 8]}, 8, True),
        (True, 4, SPLIT | {"compile_sizes": [4, 8]}, 12, False),
        (True, 4, SPLIT | {"compile_sizes": [2**70, 8]}, 8, True),
        # unless the compiler itself splits it
        (True, 4, SPLIT | {"use_inductor_graph_partition": True}, 12, True),
    ],
)
def test_whether_the_residual_is_scattered(
    twin: Twin, enable_sp, ranks, compilation, num_input_tokens, expected
) -> None:
    pass_config = twin.PassConfig(enable_sp=enable_sp)
    config = twin.VllmConfig(
        parallel_config=twin.ParallelConfig(tensor_parallel_size=ranks),
        compilation_config=twin.CompilationConfig(pass_config=pass_config, **compilation),
    )
    assert expected is twin.is_residual_scattered_for_sp(config, num_input_tokens)

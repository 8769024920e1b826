"""The configuration: plain data with the field's names and defaults."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

DEFAULTS: dict[str, dict[str, Any]] = {
    "ModelConfig": {"max_model_len": 7},
    "CacheConfig": {
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "mamba_cache_mode": "none",
    },
    "ParallelConfig": {
        "tensor_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
    },
    "SchedulerConfig": {
        "max_num_batched_tokens": 8,
        "max_num_seqs": 4,
        "max_num_encoder_input_tokens": 0,
        "encoder_cache_size": 0,
        "enable_chunked_prefill": True,
        "disable_chunked_mm_input": False,
    },
    "CompilationConfig": {
        "static_forward_context": {},
        "pass_config": {"enable_sp": False},
        "splitting_ops": None,
        "use_inductor_graph_partition": False,
        "compile_sizes": None,
    },
    "PassConfig": {"enable_sp": False},
    "SpeculativeConfig": {"num_speculative_tokens": None},
    "VllmConfig": dict.fromkeys(
        [
            *("model_config", "cache_config", "parallel_config", "scheduler_config"),
            *("compilation_config", "speculative_config"),
        ]
    ),
}
REQUIRED: dict[str, dict[str, Any]] = {
    "ModelConfig": {"max_model_len": 7},
    "SchedulerConfig": {"max_num_batched_tokens": 8, "max_num_seqs": 4},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_fields_and_defaults(twin: Any, name: str) -> None:
    cls = getattr(twin, name)
    config = cls(**REQUIRED.get(name, {}))
    assert list(DEFAULTS[name]) == [field.name for field in dataclasses.fields(cls)]
    assert DEFAULTS[name] == dataclasses.asdict(config)
    assert all(field.kw_only for field in dataclasses.fields(cls))
    with pytest.raises(TypeError, match="positional argument"):
        cls(1)


def test_every_class(twin: Any) -> None:
    assert set(DEFAULTS) == {name for name in vars(twin.config) if name.endswith("Config")}


def test_defaults_are_not_shared(twin: Any) -> None:
    one, other = twin.CompilationConfig(), twin.CompilationConfig()
    assert one.static_forward_context is not other.static_forward_context
    assert one.pass_config is not other.pass_config

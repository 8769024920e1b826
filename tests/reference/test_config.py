"""The configuration: plain data with the field's names and defaults."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import reference.config
from reference import (
    CacheConfig,
    CompilationConfig,
    ModelConfig,
    ParallelConfig,
    PassConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ModelConfig(max_model_len=7), {"max_model_len": 7}),
        (
            CacheConfig(),
            {"block_size": 16, "gpu_memory_utilization": 0.9, "mamba_cache_mode": "none"},
        ),
        (
            ParallelConfig(),
            {
                "tensor_parallel_size": 1,
                "decode_context_parallel_size": 1,
                "prefill_context_parallel_size": 1,
            },
        ),
        (
            SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4),
            {
                "max_num_batched_tokens": 8,
                "max_num_seqs": 4,
                "max_num_encoder_input_tokens": 0,
                "encoder_cache_size": 0,
                "enable_chunked_prefill": True,
                "disable_chunked_mm_input": False,
            },
        ),
        (
            CompilationConfig(),
            {
                "static_forward_context": {},
                "pass_config": PassConfig(enable_sp=False),
                "splitting_ops": None,
                "use_inductor_graph_partition": False,
                "compile_sizes": None,
            },
        ),
        (PassConfig(), {"enable_sp": False}),
        (SpeculativeConfig(), {"num_speculative_tokens": None}),
        (
            VllmConfig(),
            dict.fromkeys(
                [
                    "model_config",
                    "cache_config",
                    "parallel_config",
                    "scheduler_config",
                    "compilation_config",
                    "speculative_config",
                ]
            ),
        ),
    ],
)
def test_fields_and_defaults(config: object, expected: dict[str, Any]) -> None:
    """Each class has these fields, with these defaults, and no others."""
    assert expected == vars(config)


@pytest.mark.parametrize("name", [n for n in vars(reference.config) if n.endswith("Config")])
def test_keyword_only(name: str) -> None:
    """Every field is keyword-only, and documented."""
    config = getattr(reference.config, name)
    for field in dataclasses.fields(config):
        assert field.kw_only, field.name
        assert f"\n    {field.name}: " in (config.__doc__ or "").replace("        ", "    ")


def test_defaults_are_not_shared() -> None:
    """A default that can be changed is made anew for each object."""
    one, other = CompilationConfig(), CompilationConfig()
    assert one.static_forward_context is not other.static_forward_context
    assert one.pass_config is not other.pass_config


@pytest.mark.parametrize(
    ("config", "missing"), [(ModelConfig, "max_model_len"), (SchedulerConfig, "2")]
)
def test_what_has_no_default_must_be_given(config: type[Any], missing: str) -> None:
    """A length or a bound that nobody knows has no default."""
    with pytest.raises(TypeError, match=f"missing .*{missing}|{missing} required"):
        config()

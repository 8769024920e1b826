import pytest

import fast

CLASSES = {
    fast.VllmConfig: {},
    fast.ModelConfig: {"max_model_len": 8},
    fast.CacheConfig: {},
    fast.ParallelConfig: {},
    fast.SchedulerConfig: {"max_num_batched_tokens": 8, "max_num_seqs": 2},
    fast.CompilationConfig: {},
    fast.PassConfig: {},
    fast.SpeculativeConfig: {},
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_keyword_only(cls: type) -> None:
    """No field is given by position."""
    cls(**CLASSES[cls])
    with pytest.raises(TypeError, match="positional argument"):
        cls(1)


def test_defaults() -> None:
    """The defaults are those of the definition."""
    assert vars(fast.VllmConfig()) == dict.fromkeys(
        [
            "model_config",
            "cache_config",
            "parallel_config",
            "scheduler_config",
            "compilation_config",
            "speculative_config",
        ]
    )
    assert vars(fast.CacheConfig()) == {
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "mamba_cache_mode": "none",
    }
    assert set(vars(fast.ParallelConfig()).values()) == {1}
    assert vars(fast.CompilationConfig()) == {
        "static_forward_context": {},
        "pass_config": fast.PassConfig(enable_sp=False),
        "splitting_ops": None,
        "use_inductor_graph_partition": False,
        "compile_sizes": None,
    }
    assert fast.SpeculativeConfig().num_speculative_tokens is None
    scheduler = fast.SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=2)
    assert (scheduler.max_num_encoder_input_tokens, scheduler.encoder_cache_size) == (0, 0)
    assert (scheduler.enable_chunked_prefill, scheduler.disable_chunked_mm_input) == (True, False)


def test_configs_share_no_layers() -> None:
    """Each configuration has a dictionary of its own."""
    first, second = fast.CompilationConfig(), fast.CompilationConfig()
    first.static_forward_context["layer"] = object()
    assert second.static_forward_context == {}
